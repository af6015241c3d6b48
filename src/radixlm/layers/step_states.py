"""States that layers carry from token to token, in place of keys and values of all of them: where
those of a step's rows are, and the short causal convolution that most of them begin with.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional


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

    conv: of each layer (slots, channels, width - 1), of the model's type. matrices: of each layer
    (slots, *matrix) float32. Layers without a state have none. longer: rows with several tokens.
    single: (n,) int64 tokens of rows with one; slots: (n,) int64 of their states.
    """

    def __init__(
        self, rows: Sequence[StateRow], conv: Sequence[Tensor], matrices: Sequence[Tensor]
    ) -> None:
        self.conv, self.matrices = conv, matrices
        self.longer = [row for row in rows if row.stop - row.first > 1]
        alone = [row for row in rows if row.stop - row.first == 1]
        device = conv[0].device if conv else None
        self.single, self.slots = (
            torch.tensor(numbers, dtype=torch.int64, device=device)
            for numbers in ([row.first for row in alone], [row.slot for row in alone])
        )


NO_STATES = StepStates((), (), ())


class CausalConv:
    """A convolution of each channel over its last `width` inputs."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        """weight: (channels, 1, width), filled later. bias: (channels,)."""
        self.weight, self.bias = weight, bias

    def __call__(self, x: Tensor, layer: int, states: StepStates) -> Tensor:
        """(tokens, channels) -> the same shape, new; the layer's states take the inputs in."""
        kept, weight, bias = states.conv[layer], self.weight, self.bias
        made = torch.empty_like(x)
        if states.single.numel():
            seen = torch.cat((kept[states.slots], x[states.single][:, :, None]), dim=2)
            kept[states.slots] = seen[:, :, 1:]
            # With one window each a convolution is a product, which torch computes in the same way
            # for any number of rows.
            summed = torch.einsum("ncw,cw->nc", seen, weight[:, 0])
            made[states.single] = summed if bias is None else summed + bias
        for first, stop, _, slot in states.longer:
            seen = torch.cat((kept[slot], x[first:stop].t()), dim=1)
            kept[slot] = seen[:, stop - first :]
            convolved = functional.conv1d(seen[None], weight, bias, groups=x.shape[1])
            made[first:stop] = convolved[0].t()
        return made

    def named_weights(self, place: str) -> Iterator[tuple[str, Tensor]]:
        yield f"{place}.weight", self.weight
        if self.bias is not None:
            yield f"{place}.bias", self.bias
