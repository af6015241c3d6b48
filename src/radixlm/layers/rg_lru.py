"""The real-gated linear recurrent unit (De et al., 2024): a layer in which each channel has one
number for a state, which fades by a gate of the token's.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from radixlm.layers.causal_conv import CausalConv
from radixlm.layers.linear import Linear
from radixlm.layers.lora import Multiply
from radixlm.layers.mlps import sigmoid
from radixlm.layers.scan_kernel import ScanShape
from radixlm.layers.scans import Scan
from radixlm.layers.state_layer import StateLayer
from radixlm.layers.step_states import StepStates
from radixlm.layers.torch_scans import ScanInputs
from radixlm.products.compiled import GATES, TensorOptions

_SHARPNESS = 8.0  # of recurrent gates


class LruSizes(NamedTuple):
    """The sizes of a layer. channels: that states have. blocks: of which each gate is made. width:
    of the convolution.
    """

    channels: int
    blocks: int
    width: int
    place: str = "temporal_block"

    @property
    def matrix(self) -> tuple[int, ...]:
        """The shape of the recurrent state."""
        return self.channels, 1, 1

    def orders(self) -> dict[str, Tensor]:
        """Rows that are put into another order, by name: none."""
        return {}


class RgLru(StateLayer):
    """A layer's state and the projections around it, in place of attention."""

    def __init__(self, sizes: LruSizes, layer: int, hidden: int, options: TensorOptions) -> None:
        self._sizes, self._layer = sizes, layer
        inner, block = sizes.channels, sizes.channels // sizes.blocks
        parts = dict.fromkeys(("linear_y", "linear_x"), inner)
        self.projections = Linear(hidden, parts, options, bias=True)
        self.conv = CausalConv(inner, sizes.width, options, bias=True, plain=True)
        exact = TensorOptions(torch.float32, options.device)
        self.rate = exact.empty(inner)
        self.gates = {
            name: (exact.empty(sizes.blocks, block, block), exact.empty(sizes.blocks, block))
            for name in ("input_gate", "recurrent_gate")
        }
        self._scan = Scan(ScanShape(1, 1, delta=False), options)
        self.output = Linear(inner, {"linear_out": hidden}, options, bias=True)
        own = {"rg_lru.recurrent_param": self.rate}
        for name, (weight, bias) in self.gates.items():
            own |= {f"rg_lru.{name}_weight": weight, f"rg_lru.{name}_bias": bias}
        super().__init__([self.projections, self.output], own, conv_1d=self.conv)

    def __call__(self, x: Tensor, states: StepStates, multiply: Multiply) -> Tensor:
        """(tokens, hidden_size) -> (tokens, hidden_size)."""
        gate, mixed = multiply(self.projections, x, None).chunk(2, dim=1)
        values = self.conv(mixed, self._layer, states)
        taken, recurrent = (self._gate(values, *its) for its in self.gates.values())
        decay = recurrent.mul_(functional.softplus(self.rate)).mul_(-_SHARPNESS)
        added = (1 - (2 * decay).exp()).sqrt_()
        added.index_fill_(0, states.starts, 1.0)
        values = (values * taken)[..., None]
        one = torch.ones_like(values)
        inputs = ScanInputs(one, one, values, decay, added)
        read = self._scan(inputs, self._layer, states)[..., 0]
        gate = GATES["gelu_tanh"](gate)
        return multiply(self.output, (read.to(x.dtype) * gate), None)

    def _gate(self, values: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        """(tokens, channels) float32 -> the same shape, new."""
        blocks = values.unflatten(1, bias.shape).transpose(0, 1)
        made = torch.baddbmm(bias[:, None], blocks, weight)
        return sigmoid(made.transpose(0, 1).reshape(values.shape))
