"""Sums of whole weight files, remembered so that a file is read again only when it was written."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import xxhash

from radixlm.core.errors import CheckpointError
from radixlm.formats.files import open_regular, read_text
from radixlm.formats.private_files import replace_private
from radixlm.formats.weight_files import Stamp, WeightFile

REMEMBERED = "weight-sums.json"
# Of what is remembered; a file takes some 200 bytes. The oldest are given up.
_MOST_BYTES = 1 << 18
_PIECE = 1 << 20
# What is written within a tick of a file system's clock may leave the stamp as it was.
_SETTLED_NS = 2_000_000_000
_SUM_DIGITS = 32

Known = dict[WeightFile, str]


class WeightSums:
    """Sums of files, remembered in a private folder. now_ns: the time, since 1970."""

    def __init__(self, folder: Path, now_ns: Callable[[], int] = time.time_ns) -> None:
        self._path, self._now_ns = folder / REMEMBERED, now_ns

    def unknown(self, files: Iterable[WeightFile]) -> int:
        """Bytes that `of` would read."""
        known = self._known()
        return sum(file.stamp.nbytes for file in files if file not in known)

    def of(
        self, files: Iterable[WeightFile], step: Callable[[int], object] = lambda _: None
    ) -> list[str]:
        """32 hexadecimal digits for each file, of all its bytes. step: called with the bytes read
        since the last call. Raises CheckpointError for a file that cannot be read, or is not what
        it was when it was listed.
        """
        known, sums = self._known(), []
        for file in files:
            found = known.pop(file, None)  # put last: the youngest
            if found is None:
                began = self._now_ns()
                found = _read(file, step)
                if began - file.stamp.ctime_ns < _SETTLED_NS:
                    sums.append(found)
                    continue
            if not _is_as_listed(file):
                raise file.changed()
            known[file] = found
            sums.append(found)
        self._remember(known)
        return sums

    def _known(self) -> Known:
        """The remembered sums; none where the file is not as `_remember` writes it: then all is
        read again.
        """
        try:
            return dict(_parsed(json.loads(read_text(self._path, _MOST_BYTES))))
        except (OSError, ValueError, RecursionError):
            return {}

    def _remember(self, known: Known) -> None:
        """Remember the sums. Where they cannot be written, the next start reads the files again."""
        rows = [[str(file.path), *file.stamp, its] for file, its in known.items()]
        while len(text := json.dumps(rows)) > _MOST_BYTES:
            del rows[: len(rows) // 8 + 1]
        with contextlib.suppress(OSError):
            replace_private(self._path, text.encode())


def _read(file: WeightFile, step: Callable[[int], object]) -> str:
    total, buffer = xxhash.xxh3_128(), memoryview(bytearray(_PIECE))
    try:
        with open_regular(file.path) as opened:
            if Stamp.of(os.fstat(opened.fileno())) != file.stamp:
                raise file.changed()
            while count := opened.readinto(buffer):
                total.update(buffer[:count])
                step(count)
            if Stamp.of(os.fstat(opened.fileno())) != file.stamp:
                raise file.changed()
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{file.path} cannot be read: {error}") from None
    return total.hexdigest()


def _is_as_listed(file: WeightFile) -> bool:
    try:
        return Stamp.of(file.path.stat()) == file.stamp
    except OSError:
        return False


def _parsed(rows: Any) -> Iterator[tuple[WeightFile, str]]:
    """Raises ValueError."""
    if not isinstance(rows, list):
        raise ValueError("no list")
    for row in rows:
        match row:
            case [str(path), int(nbytes), int(mtime), int(ctime), int(inode), str(its)]:
                if len(its) != _SUM_DIGITS or not set(its) <= set("0123456789abcdef"):
                    raise ValueError("no sum")
                yield WeightFile(Path(path), Stamp(nbytes, mtime, ctime, inode)), its
            case _:
                raise ValueError("no row")
