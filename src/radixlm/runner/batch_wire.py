"""A step's batch in bytes, for the other ranks: what computing needs of it, nothing of sampling.

numbers   int64: how many window slots have moved and how many rows there are, then of each row its
          fields, remaps and segments
slots     int32: of the moves the tokens' slots, then their window slots; of each row its new
          tokens, new slots and the slots of its remaps
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from radixlm.core.batch import (
    Extent,
    Remap,
    ScheduledBatch,
    ScheduledRow,
    Segment,
    WindowMoves,
)
from radixlm.core.request import GenerateRequest, Namespace
from radixlm.core.sampling import SamplingParams

_HEAD = struct.Struct("<q")
# In place of a node's id, of a number of log-probabilities and of moves: there is none.
_NONE = -1
_NO_TOKENS = np.zeros(0, dtype=np.int32)


def packed(batch: ScheduledBatch) -> bytes:
    """O(new tokens + segments of all rows + moves of window slots)."""
    moves = batch.windows
    numbers: list[int] = [_NONE if moves is None else moves.slots.size, len(batch.rows)]
    slots: list[npt.NDArray[np.int32]] = [_NO_TOKENS, *(moves or ())]
    for row in batch.rows:
        _put(row, numbers, slots)
    fields = np.array(numbers, dtype=np.int64)
    return _HEAD.pack(fields.size) + fields.tobytes() + np.concatenate(slots).tobytes()


def _put(row: ScheduledRow, numbers: list[int], slots: list[npt.NDArray[np.int32]]) -> None:
    params = row.request.params
    wanted = _NONE if params.prompt_logprobs is None else params.prompt_logprobs
    is_long = bool(row.request.namespace.long_rope)
    numbers += (row.row, row.start, row.stop, row.prompt_length, row.samples, is_long)
    numbers += (row.drafted, wanted, params.logprob_start_len)
    numbers += (len(row.remaps), len(row.segments))
    slots += (row.tokens[row.start :], row.new_slots)
    for remap in row.remaps:
        numbers += (remap.start, remap.slots.size)
        slots.append(remap.slots)
    for node, start, stop, extents in row.segments:
        numbers += (_NONE if node is None else node, start, stop, len(extents))
        for extent in extents:
            numbers += extent


def unpacked(message: bytes) -> ScheduledBatch:
    """The batch as `packed` took it, but for what sampling needs: tokens that were computed before
    are zeros, requests have no name.
    """
    (count,) = _HEAD.unpack_from(message)
    numbers = iter(np.frombuffer(message, np.int64, count, _HEAD.size).tolist())
    slots = _Slots(np.frombuffer(message, np.int32, offset=_HEAD.size + 8 * count))
    n_moves, n_rows = next(numbers), next(numbers)
    moves = None if n_moves == _NONE else WindowMoves(slots.take(n_moves), slots.take(n_moves))
    return ScheduledBatch(tuple(_row(numbers, slots) for _ in range(n_rows)), windows=moves)


class _Slots:
    """Handed out one piece after the other."""

    def __init__(self, every: npt.NDArray[np.int32]) -> None:
        self._every, self._at = every, 0

    def take(self, count: int) -> npt.NDArray[np.int32]:
        start, self._at = self._at, self._at + count
        return self._every[start : self._at]


def _row(numbers: Iterator[int], slots: _Slots) -> ScheduledRow:
    row, start, stop, prompt_length, samples, is_long = (next(numbers) for _ in range(6))
    drafted, wanted, first_wanted, n_remaps, n_segments = (next(numbers) for _ in range(5))
    tokens = np.zeros(stop, dtype=np.int32)
    tokens[start:] = slots.take(stop - start)
    new_slots = slots.take(stop - start)
    key, params = _NO_TOKENS, _PLAIN
    if wanted != _NONE:
        key = np.zeros(prompt_length, dtype=np.int32)
        params = SamplingParams(prompt_logprobs=wanted, logprob_start_len=first_wanted)
    remaps = [Remap(next(numbers), slots.take(next(numbers))) for _ in range(n_remaps)]
    return ScheduledRow(
        GenerateRequest("", key, params, namespace=Namespace(long_rope="long" * is_long)),
        row,
        tokens,
        start,
        prompt_length,
        new_slots,
        tuple(remaps),
        tuple(_segment(numbers) for _ in range(n_segments)),
        bool(samples),
        drafted=drafted,
    )


_PLAIN = SamplingParams()


def _segment(numbers: Iterator[int]) -> Segment:
    node, start, stop, count = (next(numbers) for _ in range(4))
    extents = tuple(Extent(next(numbers), next(numbers)) for _ in range(count))
    return Segment(None if node == _NONE else node, start, stop, extents)
