"""The gated delta rule (Yang et al., 2024): a layer whose state is a matrix for each head, which
fades, and in which each token corrects what its key reads.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from radixlm.layers.causal_conv import CausalConv
from radixlm.layers.linear import Linear
from radixlm.layers.lora import Multiply
from radixlm.layers.scan_kernel import ScanShape
from radixlm.layers.scans import Scan
from radixlm.layers.state_gates import Decays, OutputGate
from radixlm.layers.state_layer import StateLayer
from radixlm.layers.step_states import StepStates
from radixlm.layers.torch_scans import ScanInputs
from radixlm.products.compiled import TensorOptions


class DeltaSizes(NamedTuple):
    """The sizes of a layer with the gated delta rule.

    keys, values: heads of each; a key's head is that of several values' in a row. key, value: of a
    head. width: of the convolution. projections: names of what makes queries, keys, values and
    gates, and of what makes betas and decays: one or two tensors each, see `GatedDelta`, or six.
    most: that betas can be. eps: of the norm of what is read; 0: the model's. norm, output: names.
    """

    keys: int
    values: int
    key: int
    value: int
    width: int
    projections: tuple[str, ...]
    place: str = "linear_attn"
    most: float = 1.0
    eps: float = 0.0
    norm: str = "norm"
    output: str = "out_proj"

    @property
    def channels(self) -> int:
        """Queries, keys and values of all heads."""
        return 2 * self.keys * self.key + self.values * self.value

    @property
    def matrix(self) -> tuple[int, ...]:
        """The shape of the recurrent state."""
        return self.values, self.key, self.value

    @property
    def parts(self) -> dict[str, int]:
        """The outputs of the projections, by name."""
        gates, heads, keys = self.values * self.value, self.values, self.keys * self.key
        sizes = [self.channels, gates, heads, heads]
        if len(self.projections) == 6:
            sizes = [keys, keys, gates, *sizes[1:]]
        if len(self.projections) == 2:
            sizes = [self.channels + gates, 2 * heads]
        return dict(zip(self.projections, sizes, strict=True))

    def orders(self) -> dict[str, Tensor]:
        """The rows of projections that are stored by heads of keys, in the order in which they are
        used, by name.
        """
        if len(self.projections) != 2:
            return {}
        repeats = self.values // self.keys
        sizes = [self.key, self.key, repeats * self.value, repeats * self.value]
        kinds = [sizes, [repeats, repeats]]
        return {
            name: by_kind(its, self.keys) for name, its in zip(self.projections, kinds, strict=True)
        }


def by_kind(sizes: Sequence[int], heads: int) -> Tensor:
    """List where rows stand that are stored head by head, each with `sizes` of every kind."""
    by_head = torch.arange(heads * sum(sizes)).view(heads, -1)
    return torch.cat([part.flatten() for part in by_head.split_with_sizes(list(sizes), 1)])


class GatedDelta(StateLayer):
    """A layer's state and the projections around it, in place of attention.

    What is projected are, of all heads: queries, keys and values, which go through the convolution;
    gates of what is read; betas, how much a token corrects; and what decays are made of.
    """

    def __init__(
        self, sizes: DeltaSizes, layer: int, hidden: int, eps: float, options: TensorOptions
    ) -> None:
        self._sizes, self._layer = sizes, layer
        self.projections = Linear(hidden, sizes.parts, options, bias=False)
        self.conv = CausalConv(sizes.channels, sizes.width, options, bias=False)
        exact = TensorOptions(torch.float32, options.device)
        self.decay, self.step = exact.empty(sizes.values), exact.empty(sizes.values)
        self._decays = Decays(self.decay, self.step, options, most=sizes.most)
        self._scan = Scan(ScanShape(sizes.key, sizes.value, delta=True), options)
        self.norm = options.empty(sizes.value)
        eps = sizes.eps or eps
        self._gate = OutputGate((sizes.values, sizes.value), self.norm, "before", eps, options)
        inner = sizes.values * sizes.value
        self.output = Linear(inner, {sizes.output: hidden}, options, bias=False)
        own = {"A_log": self.decay, "dt_bias": self.step, f"{sizes.norm}.weight": self.norm}
        super().__init__([self.projections, self.output], own, conv1d=self.conv)

    def __call__(self, x: Tensor, states: StepStates, multiply: Multiply) -> Tensor:
        """(tokens, hidden_size) -> (tokens, hidden_size)."""
        sizes = self._sizes
        gates, heads = sizes.values * sizes.value, sizes.values
        made = multiply(self.projections, x, None)
        mixed, gate, beta, step = made.split_with_sizes((sizes.channels, gates, heads, heads), 1)
        mixed = self.conv(mixed, self._layer, states)
        each = sizes.keys * sizes.key
        queries, keys, values = (
            part.unflatten(1, (count, -1))
            for part, count in zip(
                mixed.split_with_sizes((each, each, gates), 1),
                (sizes.keys, sizes.keys, heads),
                strict=True,
            )
        )
        inputs = ScanInputs(queries, keys, values, *self._decays(step, beta))
        read = self._scan(inputs, self._layer, states).flatten(1)
        return multiply(self.output, self._gate(read, gate), None)
