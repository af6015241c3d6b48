"""A runner without a model: for tests and for trying the scheduler without weights."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import chain, islice

import numpy as np
import numpy.typing as npt

from radixlm.core.batch import MOST_SIBLINGS, ScheduledBatch, ScheduledRow, StepResult
from radixlm.core.errors import InvariantError
from radixlm.core.keys import Key, Slots
from radixlm.core.request import Namespace

_MASK = np.uint64(0x7FFF_FFFF_FFFF_FFFF)


class FakeRunner:
    """Answers with a token that depends on every token before it, and on nothing else.

    Instead of keys and values a slot holds a fingerprint of the whole prefix up to its token.
    Before a row is computed, the fingerprints of all its earlier tokens are compared with what
    they must be: a slot that is shared wrongly, overwritten or remapped wrongly is found in the
    step that reads it, and raises InvariantError. With a window the same is true of a second
    memory, for the last `window` tokens that each new one sees.
    """

    def __init__(
        self,
        capacity: int,
        n_rows: int,
        vocab_size: int,
        *,
        window: int = 0,
        window_capacity: int = 0,
    ) -> None:
        self._window = window
        self._window_slots: npt.NDArray[np.int64] = np.zeros(capacity, dtype=np.int64)
        self._window_memory: npt.NDArray[np.uint64] = np.zeros(window_capacity, dtype=np.uint64)
        self._memory: npt.NDArray[np.uint64] = np.zeros(capacity, dtype=np.uint64)
        self._tables: list[npt.NDArray[np.int64]] = [
            np.empty(0, dtype=np.int64) for _ in range(n_rows + MOST_SIBLINGS)
        ]
        self._vocab_size = vocab_size
        self._drawn: dict[int, int] = {}

    def launch(self, batch: ScheduledBatch) -> Callable[[], StepResult]:
        """Compute a step, in which promised tokens are those that the last one has drawn."""
        rows = tuple(self._kept(row) for row in batch.rows)
        result = self.execute(replace(batch, rows=rows))
        drawn = zip(rows, result.tokens, strict=True)
        self._drawn = {row.row: token for row, token in drawn if token is not None}
        return lambda: result

    def _kept(self, row: ScheduledRow) -> ScheduledRow:
        tokens = row.tokens.copy()
        if row.promised:
            tokens[-1] = self._drawn[row.row]
        return replace(row, tokens=tokens)

    def execute(self, batch: ScheduledBatch) -> StepResult:
        if batch.windows is not None:
            self._window_slots[batch.windows.slots] = batch.windows.window_slots
        made = [[self._write(part) for part in row.parts] for row in batch.rows]
        for part, each in zip(batch.parts, chain.from_iterable(made), strict=True):
            self._compare(part, each)
        prints = [
            [
                *chain.from_iterable(
                    its[part.known - 1 :] for part, its in zip(row.parts, of, strict=True)
                )
            ]
            for row, of in zip(batch.rows, made, strict=True)
        ]
        places = () if batch.masks is None else batch.masks.places
        allowed = iter(_allowed(batch, self._vocab_size))
        drawn: list[tuple[int, ...]] = []
        for place, (row, print_) in enumerate(zip(batch.rows, prints, strict=True)):
            choices = [np.arange(self._vocab_size)] * row.n_draws
            if row.samples and place in places:
                choices = [*islice(allowed, row.n_draws)]
            both = zip(choices, print_, strict=True)
            its = [int(each[int(number) % len(each)]) for each, number in both]
            drawn.append(row.taken(its) if row.samples else ())
        return StepResult(
            tuple(next(iter(its), None) for its in drawn),
            more={place: its[1:] for place, its in enumerate(drawn)},
            hidden={
                place: np.ones(4, dtype=np.float32)
                for place, row in enumerate(batch.rows)
                if row.request.pooled and row.samples
            },
        )

    def pack(self, slots: Slots, windows: Slots) -> list[npt.NDArray[np.uint64]]:
        """The content of these slots, and of these window slots, where there are some; a copy, as a
        store keeps it. windows: as in a Transfer, of a block.
        """
        kept = [self._memory[slots]]
        return [*kept, self._window_memory[windows]] if (windows >= 0).any() else kept

    def unpack(self, kept: Sequence[npt.NDArray[np.uint64]], slots: Slots, windows: Slots) -> bool:
        """Put what `pack` gave into slots. False: it gave less than is wanted."""
        there = windows >= 0
        if there.any() and len(kept) == 1:
            return False
        self._memory[slots] = kept[0]
        if there.any():
            self._window_memory[windows[there]] = kept[1][there]
        return True

    def _write(self, row: ScheduledRow) -> npt.NDArray[np.uint64]:
        table = self._tables[row.row]
        if table.size < row.stop:
            table = np.concatenate((table, np.empty(row.stop, dtype=np.int64)))
            self._tables[row.row] = table
        if row.beside is not None:
            table[: row.start] = self._tables[row.beside][: row.start]
        for start, slots in row.remaps:
            table[start : start + slots.size] = slots
        table[row.start : row.stop] = row.new_slots
        prints = fingerprints(row.tokens, row.request.namespace)
        self._memory[row.new_slots] = prints[row.start :]
        if self._window:
            self._window_memory[self._window_slots[row.new_slots]] = prints[row.start :]
        return prints

    def _compare(self, row: ScheduledRow, prints: npt.NDArray[np.uint64]) -> None:
        slots = self._tables[row.row][: row.stop]
        wrong = np.flatnonzero(self._memory[slots] != prints)
        if wrong.size:
            at = int(wrong[0])
            raise InvariantError(
                f"{row.request.request_id}: slot {slots[at]} does not hold token {at}"
            )
        seen = max(row.start + 1 - self._window, 0)
        there = self._window_memory[self._window_slots[slots[seen:]]] if self._window else prints
        if self._window and not np.array_equal(there, prints[seen:]):
            raise InvariantError(f"{row.request.request_id}: a window from {seen} on is not there")
        listed = np.concatenate(
            [np.arange(*extent) for segment in row.segments for extent in segment.extents]
        )
        if not np.array_equal(listed, slots):
            raise InvariantError(f"{row.request.request_id}: segments and table differ")


def _allowed(batch: ScheduledBatch, vocab_size: int) -> list[npt.NDArray[np.int64]]:
    """The tokens that each mask allows."""
    if batch.masks is None:
        return []
    bits = batch.masks.bits.result().view(np.uint8)
    each = np.unpackbits(bits, axis=1, count=vocab_size, bitorder="little")
    return [*map(np.flatnonzero, each)]


def fingerprints(tokens: Key, namespace: Namespace) -> npt.NDArray[np.uint64]:
    """(len(tokens),) one number for each prefix of `tokens`, the namespace mixed in."""
    salt = np.uint64(hash(namespace) & int(_MASK))
    weights = np.arange(1, tokens.size + 1, dtype=np.uint64) * np.uint64(0x9E37_79B9_7F4A_7C15)
    mixed = (tokens.astype(np.uint64) + np.uint64(1)) * weights
    mixed ^= mixed >> np.uint64(29)
    return (np.cumsum(mixed * np.uint64(0xBF58_476D_1CE4_E5B9), dtype=np.uint64) ^ salt) & _MASK
