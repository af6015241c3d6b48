"""States that layers carry from token to token, in place of keys and values of all of them: where
those of a step's rows are.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor


class StateRow(NamedTuple):
    """A row's tokens [first, stop) of a step, the first of which is at `position` of its request.
    slot: of its state, which is that before them and will be that after them.
    """

    first: int
    stop: int
    position: int
    slot: int


class StepStates:
    """The states of one step.

    conv: of each layer (slots, width - 1, channels), of the model's type. matrices: of each layer
    (slots, *matrix) float32. Layers without a state have none. table: (rows, 3) int64, of each row
    tokens [first, stop) and its slot, those with most tokens first. longer: rows with several
    tokens. starts: first tokens of requests. single: (n,) int64 tokens of rows with one; slots:
    (n,) int64 of their states.
    """

    def __init__(
        self, rows: Sequence[StateRow], conv: Sequence[Tensor], matrices: Sequence[Tensor]
    ) -> None:
        self.conv, self.matrices = conv, matrices
        self.longer = [row for row in rows if row.stop - row.first > 1]
        self.starts = [row.first for row in rows if row.position == 0]
        alone = [row for row in rows if row.stop - row.first == 1]
        self.longer.sort(key=lambda row: row.first - row.stop)
        device = conv[0].device if conv else None
        table = [(row.first, row.stop, row.slot) for row in (*self.longer, *alone)]
        self.table = torch.tensor(table, dtype=torch.int64, device=device).view(-1, 3)
        self.single, _, self.slots = self.table[len(self.longer) :].unbind(1)
        self._room = torch.empty(0)

    def room(self, rows: int, width: int) -> Tensor:
        """Memory for (rows, width) float32 that one layer computes and uses. All layers of the step
        get the same: to be given new memory takes longer than to convolve what is put there.
        """
        if self._room.numel() < rows * width:
            self._room = torch.empty(rows * width)
        return self._room[: rows * width].view(rows, width)


NO_STATES = StepStates((), (), ())
