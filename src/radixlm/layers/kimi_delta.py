"""Kimi Delta Attention (2025): the gated delta rule, with a number for each channel of a key by
which the state fades.
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
from radixlm.layers.state_gates import OutputGate
from radixlm.layers.state_layer import StateLayer
from radixlm.layers.step_states import StepStates
from radixlm.layers.torch_scans import ScanInputs
from radixlm.products.compiled import TensorOptions


class KimiSizes(NamedTuple):
    """The sizes of a layer. heads, head: of queries, keys and values, and their size. width: of the
    convolution. whole: what fades and what gates are made by one product each. least: that a
    logarithm of a decay can be, its sigmoid's factor; 0: they have no bound.
    """

    heads: int
    head: int
    width: int
    place: str = "self_attn"
    whole: bool = False
    least: float = 0.0

    @property
    def channels(self) -> int:
        """Queries, keys and values of all heads."""
        return 3 * self.heads * self.head

    @property
    def matrix(self) -> tuple[int, ...]:
        """The shape of the recurrent state."""
        return self.heads, self.head, self.head

    def orders(self) -> dict[str, Tensor]:
        """Rows that are put into another order, by name: none."""
        return {}


class KimiDelta(StateLayer):
    """A layer's state and the projections around it, in place of attention. What fades and what
    gates what is read are made by two products each, the first of a head's size, or by one.
    """

    def __init__(
        self, sizes: KimiSizes, layer: int, hidden: int, eps: float, options: TensorOptions
    ) -> None:
        self._sizes, self._layer = sizes, layer
        inner, head = sizes.heads * sizes.head, sizes.head
        parts = dict.fromkeys(("q_proj", "k_proj", "v_proj"), inner) | {"b_proj": sizes.heads}
        names = ("f_proj", "g_proj") if sizes.whole else ("f_a_proj", "g_a_proj")
        self._between = inner if sizes.whole else head
        parts |= dict.fromkeys(names, self._between)
        self.projections = Linear(hidden, parts, options, bias=False)
        self.seconds = [
            Linear(head, {name: inner}, options, bias=False)
            for name in (() if sizes.whole else ("f_b_proj", "g_b_proj"))
        ]
        self.conv = CausalConv(sizes.channels, sizes.width, options, bias=False)
        exact = TensorOptions(torch.float32, options.device)
        self.decay, self.step = exact.empty(1, 1, sizes.heads, 1), exact.empty(inner)
        self._scan = Scan(ScanShape(head, head, delta=True, by_channel=True), options)
        self.norm = options.empty(head)
        groups = sizes.heads, head
        self._gate = OutputGate(groups, self.norm, "before", eps, options, "sigmoid")
        self.output = Linear(inner, {"o_proj": hidden}, options, bias=False)
        decay = self.decay.view(-1) if sizes.whole else self.decay
        own = {"A_log": decay, "dt_bias": self.step, "o_norm.weight": self.norm}
        linears = [self.projections, *self.seconds, self.output]
        super().__init__(linears, own, conv1d=self.conv)

    def __call__(self, x: Tensor, states: StepStates, multiply: Multiply) -> Tensor:
        """(tokens, hidden_size) -> (tokens, hidden_size)."""
        sizes = self._sizes
        made = multiply(self.projections, x, None)
        parts = sizes.channels, sizes.heads, self._between, self._between
        mixed, beta, *both = made.split_with_sizes(parts, 1)
        mixed = self.conv(mixed, self._layer, states)
        queries, keys, values = mixed.unflatten(1, (3, sizes.heads, sizes.head)).unbind(1)
        both = [each.contiguous() for each in both]
        if self.seconds:
            both = [multiply(its, x, None) for its, x in zip(self.seconds, both, strict=True)]
        forget, gate = both
        decay = self._decays((forget.float() + self.step).view(queries.shape))
        inputs = ScanInputs(queries, keys, values, decay, sigmoid(beta.float()))
        read = self._scan(inputs, self._layer, states).flatten(1)
        return multiply(self.output, self._gate(read, gate), None)

    def _decays(self, steps: Tensor) -> Tensor:
        """Logarithms of decays, of steps (tokens, heads, head) float32: the same shape."""
        rates, least = self.decay.view(-1, 1).exp(), self._sizes.least
        if least:
            return sigmoid(rates * steps).mul_(least)
        return rates.neg() * functional.softplus(steps)
