"""LFM2's short convolution: a layer whose state are the last inputs of each channel."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from radixlm.layers.causal_conv import CausalConv
from radixlm.layers.linear import Linear
from radixlm.layers.lora import Multiply
from radixlm.layers.state_layer import StateLayer
from radixlm.layers.step_states import StepStates
from radixlm.products.compiled import TensorOptions


class ConvSizes(NamedTuple):
    """The sizes of a layer with a short convolution. bias: all of it has one."""

    channels: int
    width: int
    bias: bool
    place: str = "conv"

    @property
    def matrix(self) -> tuple[int, ...]:
        """The shape of the recurrent state: there is none."""
        return (0,)

    def orders(self) -> dict[str, Tensor]:
        """Rows that are put into another order, by name: none."""
        return {}


class ShortConv(StateLayer):
    """out(second * conv(first * x)), both gates and x being one product."""

    def __init__(self, sizes: ConvSizes, layer: int, options: TensorOptions) -> None:
        hidden, self._layer = sizes.channels, layer
        self.projections = Linear(hidden, {"in_proj": 3 * hidden}, options, bias=sizes.bias)
        self.conv = CausalConv(hidden, sizes.width, options, bias=sizes.bias, gated=True)
        self.output = Linear(hidden, {"out_proj": hidden}, options, bias=sizes.bias)
        super().__init__([self.projections, self.output], {}, conv=self.conv)

    def __call__(self, x: Tensor, states: StepStates, multiply: Multiply) -> Tensor:
        """(tokens, hidden_size) -> (tokens, hidden_size)."""
        made = self.conv(multiply(self.projections, x, None), self._layer, states)
        return multiply(self.output, made, None)
