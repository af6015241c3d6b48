"""Where each running request's tokens lie, as the device sees it."""

from __future__ import annotations

import torch

from radixlm.core.batch import ScheduledRow
from radixlm.core.keys import Slots


class ReqToTokenPool:
    """table[row, i] is the slot of token i of the request that runs in `row`.

    Only the runner writes it, and only from what a batch says. Beyond a request's own length a row
    holds whatever was there before; nobody may read it.
    """

    def __init__(
        self,
        max_running_requests: int,
        context_length: int,
        device: torch.device | str = "cpu",
    ) -> None:
        self.table = torch.zeros(
            (max_running_requests, context_length), dtype=torch.int32, device=device
        )
        # The same memory; numpy writes a few numbers ten times as fast.
        self._numbers = self.table.numpy() if self.table.device.type == "cpu" else None

    def apply(self, row: ScheduledRow) -> None:
        """Follow one scheduled row: its remaps in order, then its new slots at [start, stop).

        Raises IndexError when they lie outside the table.
        """
        for remap in row.remaps:
            self._put(row.row, remap.start, remap.slots)
        self._put(row.row, row.start, row.new_slots)

    def _put(self, row: int, start: int, slots: Slots) -> None:
        rows, length = self.table.shape
        stop = start + slots.size
        if not (0 <= row < rows and start >= 0 and stop <= length):
            raise IndexError(
                f"tokens [{start}, {stop}) of row {row} lie outside "
                f"a table of {rows} rows and {length} tokens"
            )
        if self._numbers is not None:
            self._numbers[row, start:stop] = slots
        else:
            # torch.tensor copies: slots may be a read-only view, and it is not to be kept.
            self.table[row, start:stop] = torch.tensor(slots, dtype=torch.int32)
