"""The order of a batch: keys are sorted in runs on disk, as large as memory is given for, and
merged. What stays in memory is a number and an offset for each line, no body and no key.
"""

from __future__ import annotations

import contextlib
import struct
import tempfile
import time
from array import array
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from hashlib import blake2b
from heapq import merge
from itertools import pairwise
from pathlib import Path
from typing import IO, BinaryIO, TypeVar

import numpy as np

from radixlm.batch.lines import BatchLine, LineError, raw_lines

Entry = tuple[bytes, int]
T = TypeVar("T")

RUN_BYTES = 64 * 2**20
_BESIDE = 160  # of a key in Python's memory
_HEAD = struct.Struct("<IIQ")  # bytes shared with the key before, further ones, place
MOST_LINES = 50_000_000
# A part may be larger or smaller by this much of one, at each end.
_SLACK = 0.05
# An answer, of some tokens, costs about as much as that much of a prompt.
_ANSWER_BYTES = 200
# The engine's thread is let in after about a millisecond.
_BREATH_BYTES, _BREATH_SECONDS = 32_768, 0.0001


@dataclass(frozen=True, slots=True)
class BatchPlan:
    """The lines of an input, in the order in which they are to be answered.

    places: indices of `numbers` and `offsets`, which are in the file's order. shared, fresh: in the
    order of places, how many bytes of a key are as in the one before, and how many are not. mark:
    what identifies the input's content.
    """

    path: Path
    numbers: array[int]
    offsets: array[int]
    places: array[int]
    shared: array[int]
    fresh: array[int]
    mark: str

    def __len__(self) -> int:
        return len(self.places)

    def parts(self, count: int) -> list[range]:
        """Cut the order into parts of about as much to compute, none of them empty, at places of
        the tree that share least with what is before. There are fewer where there are few lines.
        """
        sums = np.cumsum(np.frombuffer(self.fresh, np.uint32), dtype=np.float64)
        sums += _ANSWER_BYTES * np.arange(1, len(self) + 1)
        shared = np.frombuffer(self.shared, np.uint32)
        cuts = [0]
        for number in range(1, count):
            wanted = sums[-1] * np.array([number - _SLACK, number, number + _SLACK]) / count
            low, middle, high = np.searchsorted(sums, wanted) + 1
            low = max(low, cuts[-1] + 1)
            found = shared[low : max(high, low + 1)]
            if found.size:
                best = low + np.flatnonzero(found == found.min())
                cuts.append(int(best[np.abs(best - middle).argmin()]))
        return [range(*each) for each in pairwise([*cuts, len(self)])]

    def read(self, file: BinaryIO, place: int) -> bytes:
        """The line at a place, from the open input."""
        file.seek(self.offsets[place])
        return file.readline()


def plan(
    path: Path,
    longest: int,
    endpoint: str | None = None,
    *,
    scratch: Path | None = None,
    stopped: Callable[[], bool] = lambda: False,
) -> BatchPlan:
    """Look at each line of an input once, and sort them. Takes time in proportion to the file.

    longest: most bytes of a line. endpoint: the only url that lines may have. scratch: a folder
        with room for the keys, at most the size of the input; by default the system's.
    stopped: whether nobody waits for it any more; it raises InterruptedError then.
    Raises LineError for the first line that is wrong, or has a custom_id of one before; OSError.
    """
    numbers, offsets, ids = array("I"), array("Q"), array("Q")
    content = blake2b(digest_size=8)

    def entries() -> Iterator[Entry]:
        lines = _gently(raw_lines(path, longest), lambda raw: len(raw.content), stopped)
        for place, raw in enumerate(lines):
            if place >= MOST_LINES:
                raise LineError(raw.number + 1, f"there are more than {MOST_LINES} lines")
            line = BatchLine.parse(raw.number + 1, raw.content, endpoint)
            numbers.append(raw.number)
            offsets.append(raw.offset)
            digest = blake2b(line.custom_id.encode("utf-8", "surrogatepass"), digest_size=8)
            ids.frombytes(digest.digest())
            content.update(raw.content)
            yield line.key(), place

    places, shared, fresh = array("I"), array("I"), array("I")
    before = b""
    ordered = in_order(entries(), scratch)
    for key, place in _gently(ordered, lambda entry: len(entry[0]), stopped):
        places.append(place)
        shared.append(_shared(before, key))
        fresh.append(len(key) - shared[-1])
        before = key
    if not places:
        raise LineError(1, "there is no request in the file", "empty_file")
    _check_ids(ids, numbers)
    return BatchPlan(path, numbers, offsets, places, shared, fresh, content.hexdigest())


def _gently(
    items: Iterable[T], size: Callable[[T], int], stopped: Callable[[], bool]
) -> Iterator[T]:
    """Yield all, with a pause now and then. Raises InterruptedError where nobody waits any more."""
    done = 0
    for item in items:
        done += _BESIDE + size(item)
        if done >= _BREATH_BYTES:
            done = 0
            time.sleep(_BREATH_SECONDS)
            if stopped():
                raise InterruptedError
        yield item


def in_order(
    entries: Iterable[Entry], scratch: Path | None, run_bytes: int = RUN_BYTES
) -> Iterator[Entry]:
    """Yield entries sorted, with about `run_bytes` of them in memory at a time; the others are in
    files without a name, each without what it shares with the one before.
    """
    with contextlib.ExitStack() as files:
        runs: list[IO[bytes]] = []
        run: list[Entry] = []
        size = 0
        for entry in entries:
            run.append(entry)
            size += len(entry[0]) + _BESIDE
            if size >= run_bytes:
                runs.append(files.enter_context(tempfile.TemporaryFile(dir=scratch)))
                _write(sorted(run), runs[-1])
                run, size = [], 0
        run.sort()
        yield from merge(run, *map(_read, runs)) if runs else run


def _write(run: list[Entry], file: IO[bytes]) -> None:
    before = b""
    for key, place in run:
        shared = _shared(before, key)
        file.write(_HEAD.pack(shared, len(key) - shared, place))
        file.write(key[shared:])
        before = key
    file.seek(0)


def _read(file: IO[bytes]) -> Iterator[Entry]:
    key = b""
    while head := file.read(_HEAD.size):
        shared, more, place = _HEAD.unpack(head)
        key = key[:shared] + file.read(more)
        yield key, place


def _shared(first: bytes, second: bytes) -> int:
    """How many bytes two keys begin with alike: by halves, each compared at once."""
    low, high = 0, min(len(first), len(second))
    while low < high:
        middle = (low + high + 1) // 2
        if first[low:middle] == second[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def _check_ids(ids: array[int], numbers: array[int]) -> None:
    """Raise LineError for a custom_id that stands twice, at the later line."""
    digests = np.frombuffer(ids, dtype=np.uint64)
    order = np.argsort(digests, kind="stable")
    twice = np.flatnonzero(digests[order[1:]] == digests[order[:-1]])
    if twice.size:
        later, first = min((int(order[at + 1]), int(order[at])) for at in twice[:1000])
        raise LineError(
            numbers[later] + 1,
            f"its custom_id stands in line {numbers[first] + 1}, too",
            "duplicate_custom_id",
        )
