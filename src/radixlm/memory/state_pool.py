"""The pool of states on the device: a slot has those of all layers, after some token."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from radixlm.core.batch import EMPTY, StateMoves
from radixlm.memory.pools import zeros


class StateShape(NamedTuple):
    """The shape of a layer's state: the last inputs of its convolution, (width - 1, channels); and
    its recurrent state, float32. (0,): it has none.
    """

    conv: tuple[int, ...] = (0,)
    matrix: tuple[int, ...] = (0,)

    def nbytes(self, dtype: torch.dtype) -> int:
        """Bytes of one slot. dtype: of the model."""
        numbers = math.prod(self.conv), math.prod(self.matrix)
        return numbers[0] * dtype.itemsize + numbers[1] * torch.float32.itemsize


class StatePool:
    """States of all layers in `capacity` slots.

        conv[layer][slot]       (width - 1, channels) of the model's type
        matrices[layer][slot]   float32, as it is carried from token to token: a copy is exact

    Which slots are in use is not known here: `cache.StateSlots` owns that.
    """

    def __init__(
        self,
        shapes: Sequence[StateShape],
        capacity: int,
        dtype: torch.dtype,
        device: torch.device | str = "cpu",
    ) -> None:
        """shapes: of each layer."""
        self.capacity = capacity
        self.device = torch.device(device)
        self.conv = [zeros((capacity, *shape.conv), dtype, self.device) for shape in shapes]
        exact = torch.float32
        self.matrices = [zeros((capacity, *shape.matrix), exact, self.device) for shape in shapes]

    @property
    def nbytes(self) -> int:
        """Bytes of all slots together."""
        return sum(part.nbytes for part in self.parts())

    def move(self, moves: StateMoves) -> None:
        """Copy states, or empty their slots, as a batch says."""
        slots, sources = moves.slots.tolist(), moves.sources.tolist()
        written = {*slots} & {*sources}
        for part in self.parts():
            # One by one: an index of several makes a second copy of all of them.
            before = {slot: part[slot].clone() for slot in written}
            for slot, source in zip(slots, sources, strict=True):
                if source == EMPTY:
                    part[slot].zero_()
                else:
                    part[slot].copy_(before.get(source, part[source]))

    def parts(self) -> list[Tensor]:
        """The tensors of all layers, (slots, ...) each."""
        return [part for part in (*self.conv, *self.matrices) if part.numel()]
