"""States that layers carry from token to token, in place of keys and values of all of them: where
those of a step's rows are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from radixlm.kernels.vectors import inner, over_rows, words

# In place of a slot and of a part: there is none.
NOWHERE: Final = -1
# Of the table of parts: first, stop, slot, copy, and the part that goes on; 0: none does.
_COLUMNS: Final = 5
Put: TypeAlias = Callable[[npt.NDArray[np.int64]], Tensor]


class StateRow(NamedTuple):
    """A row's tokens [first, stop) of a step, the first of which is at `position` of its request.
    slot: of its state, which is that before them and will be that after them. checkpoints: tokens
    of the step after which it is copied, and to which slot, in order.
    """

    first: int
    stop: int
    position: int
    slot: int
    checkpoints: tuple[tuple[int, int], ...] = ()

    def parts(self) -> list[StatePart]:
        """The row, cut where it is copied."""
        ends = dict(self.checkpoints)
        cuts = sorted({self.first, self.stop, *ends})
        return [
            StatePart(at, to, self.position + at - self.first, self.slot, ends.get(to, NOWHERE))
            for at, to in pairwise(cuts)
        ]


class StatePart(NamedTuple):
    """A part of a row. copy: the slot that gets a copy of the state after it, or NOWHERE."""

    first: int
    stop: int
    position: int
    slot: int
    copy: int


class StepStates:
    """The states of one step.

    conv: of each layer (slots, width - 1, channels), of the model's type. matrices: of each layer
    (slots, *matrix) float32. Layers without a state have none. table: (parts, 5) int64; the
    first are those with which the `rows` begin, of most tokens first. longer: parts of rows with
    several tokens, or a copy, in order. starts: (n,) int64 first tokens of requests. single: (n,)
    int64 tokens of the other rows; slots: (n,) int64 of their states. put: sends
    numbers to where states are.
    """

    def __init__(
        self,
        rows: Sequence[StateRow],
        conv: Sequence[Tensor],
        matrices: Sequence[Tensor],
        put: Put | None = None,
    ) -> None:
        self.conv, self.matrices, self.rows = conv, matrices, len(rows)
        ordered = sorted(rows, key=lambda row: (row.first - row.stop, not row.checkpoints))
        parts = [row.parts() for row in ordered]
        alone = sum(row.stop - row.first == 1 and not row.checkpoints for row in rows)
        self.longer = [part for its in parts[: len(rows) - alone] for part in its]
        device = conv[0].device if conv else None
        put = put or (lambda numbers: torch.tensor(numbers, device=device))
        starts = [row.first for row in rows if row.position == 0]
        self.starts = put(np.array(starts, dtype=np.int64))
        table = put(np.array(_table(parts), dtype=np.int64))
        self.table = table.view(-1, _COLUMNS)
        self.single, _, self.slots, *_ = self.table[len(rows) - alone : len(rows)].unbind(1)
        self._room = torch.empty(0)

    def room(self, rows: int, width: int) -> Tensor:
        """Memory for (rows, width) float32 that one layer computes and uses. All layers of the step
        get the same: to be given new memory takes longer than to convolve what is put there.
        """
        if self._room.numel() < rows * width:
            self._room = torch.empty(rows * width)
        return self._room[: rows * width].view(rows, width)


def through_parts(take: Any) -> Any:
    """through(args, row, unit): takes the parts of a row of the table in order; take(args, unit,
    first, stop, slot, copy) one.
    """

    @inner
    def through(args: Any, row: int, unit: int) -> None:
        part, goes_on = row, True
        while goes_on:
            its = words(args.table + 8 * _COLUMNS * part)
            take(args, unit, its[0], its[1], its[2], its[3])
            part, goes_on = its[4], its[4] != 0

    return through


def over_channels(take: Any, at_once: int) -> Callable[[Any], None]:
    """A kernel of parts as `through_parts` takes them, whose units are `at_once` of the
    `args.channels` of a row: take(args, the first of them, first, stop, slot, copy).
    """
    through = through_parts(take)

    @inner
    def some(args: Any, unit: int) -> None:
        blocks = (args.channels + at_once - 1) // at_once
        through(args, unit // blocks, unit % blocks * at_once)

    return over_rows(some, 1)


def _table(parts: Sequence[Sequence[StatePart]]) -> list[list[int]]:
    table = [[its[0].first, its[0].stop, its[0].slot, its[0].copy, 0] for its in parts]
    for at, its in enumerate(parts):
        for part in its[1:]:
            table[at][-1] = len(table)
            at = len(table)
            table.append([part.first, part.stop, part.slot, part.copy, 0])
    return table


NO_STATES = StepStates((), (), ())
