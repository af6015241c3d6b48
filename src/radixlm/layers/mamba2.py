"""Mamba-2 (Dao and Gu, 2024): a layer whose state is a matrix for each head, to which each token
adds what it was given, and which fades.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from radixlm.layers.causal_conv import CausalConv
from radixlm.layers.linear import Linear
from radixlm.layers.lora import Multiply
from radixlm.layers.scan_kernel import ScanShape
from radixlm.layers.scans import Scan
from radixlm.layers.state_gates import Decays, GateNorm, OutputGate
from radixlm.layers.state_layer import StateLayer
from radixlm.layers.step_states import StepStates
from radixlm.layers.torch_scans import ScanInputs
from radixlm.products.compiled import TensorOptions


class MambaSizes(NamedTuple):
    """The sizes of a layer of Mamba-2.

    heads, head: of values, and their size. groups: heads of queries and keys, each that of several
    heads in a row. key: their size. width: of the convolution. bias, conv_bias: what adds one.
    norm: of each group of what is read, once gates have multiplied it, or before, or none.
    eps: its; 0: the model's.
    """

    heads: int
    head: int
    groups: int
    key: int
    width: int
    bias: bool
    conv_bias: bool
    place: str = "mamba"
    norm: GateNorm = "after"
    eps: float = 0.0

    @property
    def channels(self) -> int:
        """Values, keys and queries of all heads."""
        return self.heads * self.head + 2 * self.groups * self.key

    @property
    def matrix(self) -> tuple[int, ...]:
        """The shape of the recurrent state."""
        return self.heads, self.key, self.head

    def orders(self) -> dict[str, Tensor]:
        """Rows that are put into another order, by name: none."""
        return {}


class Mamba2(StateLayer):
    """A layer's state and the projections around it, in place of attention. What is projected are
    gates; values, keys and queries, which go through the convolution; and the sizes of steps, by
    which values are multiplied and states decay.
    """

    def __init__(
        self, sizes: MambaSizes, layer: int, hidden: int, eps: float, options: TensorOptions
    ) -> None:
        self._sizes, self._layer = sizes, layer
        inner = sizes.heads * sizes.head
        self._parts = inner, sizes.channels, sizes.heads
        parts = {"in_proj": sum(self._parts)}
        self.projections = Linear(hidden, parts, options, bias=sizes.bias)
        self.conv = CausalConv(sizes.channels, sizes.width, options, bias=sizes.conv_bias)
        exact = TensorOptions(torch.float32, options.device)
        self.decay, self.step, self.skip = (exact.empty(sizes.heads) for _ in range(3))
        self._decays = Decays(self.decay, self.step, options)
        shape = ScanShape(sizes.key, sizes.head, delta=False)
        self._scan = Scan(shape, options, self.skip)
        self.norm = options.empty(inner)
        groups = sizes.groups, inner // sizes.groups
        self._gate = OutputGate(groups, self.norm, sizes.norm, sizes.eps or eps, options)
        self.output = Linear(inner, {"out_proj": hidden}, options, bias=sizes.bias)
        own = {"A_log": self.decay, "dt_bias": self.step, "D": self.skip}
        own |= {"norm.weight": self.norm} if sizes.norm else {}
        super().__init__([self.projections, self.output], own, conv1d=self.conv)

    def __call__(self, x: Tensor, states: StepStates, multiply: Multiply) -> Tensor:
        """(tokens, hidden_size) -> (tokens, hidden_size)."""
        sizes = self._sizes
        gate, mixed, step = multiply(self.projections, x, None).split_with_sizes(self._parts, 1)
        mixed = self.conv(mixed, self._layer, states)
        each = sizes.groups * sizes.key
        values, keys, queries = mixed.split_with_sizes((self._parts[0], each, each), 1)
        queries, keys = (part.unflatten(1, (sizes.groups, -1)) for part in (queries, keys))
        values = values.unflatten(1, (sizes.heads, -1))
        inputs = ScanInputs(queries, keys, values, *self._decays(step))
        read = self._scan(inputs, self._layer, states).flatten(1)
        return multiply(self.output, self._gate(read, gate), None)
