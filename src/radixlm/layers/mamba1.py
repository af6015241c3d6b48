"""Mamba (Gu and Dao, 2023): a layer whose states are those of single channels."""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from radixlm.layers.causal_conv import CausalConv
from radixlm.layers.linear import Linear
from radixlm.layers.lora import Multiply
from radixlm.layers.selective_scan import SelectiveInputs, SelectiveScan
from radixlm.layers.state_layer import StateLayer
from radixlm.layers.step_states import StepStates
from radixlm.products.compiled import TensorOptions


class Mamba1Sizes(NamedTuple):
    """The sizes of a layer of Mamba.

    channels: of values. key: numbers of a channel's state. rank: of steps, before they are made for
    each channel. width: of the convolution. bias, conv_bias: what adds one. norms: of steps, keys
    and queries, with weights or without, or none; eps: theirs, 0: the model's. heads: see
    `MambaHeads`; 0: there are none.
    """

    channels: int
    key: int
    rank: int
    width: int
    bias: bool
    conv_bias: bool
    place: str = "mamba"
    norms: Literal["weights", "plain", ""] = ""
    eps: float = 0.0
    heads: int = 0

    @property
    def matrix(self) -> tuple[int, ...]:
        """The shape of the recurrent state."""
        return self.channels, self.key

    def orders(self) -> dict[str, Tensor]:
        """Rows that are put into another order, by name: in heads each value's gate follows it."""
        rows = torch.arange(2 * self.channels).view(-1, 2).t().flatten()
        return {"in_proj": rows} if self.heads else {}


class Mamba1(StateLayer):
    """A layer's state and the projections around it, in place of attention. What the convolution
    gives are values, and what steps, keys and queries are made of.
    """

    def __init__(
        self, sizes: Mamba1Sizes, layer: int, hidden: int, eps: float, options: TensorOptions
    ) -> None:
        self._sizes, self._layer, self._eps = sizes, layer, sizes.eps or eps
        inner = sizes.channels
        self._parts = sizes.rank, sizes.key, sizes.key
        self.projections = Linear(hidden, {"in_proj": 2 * inner}, options, bias=sizes.bias)
        self.conv = CausalConv(inner, sizes.width, options, bias=sizes.conv_bias)
        self.inputs = Linear(inner, {"x_proj": sum(self._parts)}, options, bias=False)
        self.steps = Linear(sizes.rank, {"dt_proj": inner}, options, bias=True)
        exact = TensorOptions(torch.float32, options.device)
        self.decay, self.skip = exact.empty(inner, sizes.key), exact.empty(inner)
        self._scan = SelectiveScan(sizes.key, options)
        weighted = sizes.norms == "weights"
        self.norms = [options.empty(size) for size in self._parts] if weighted else []
        self.output = Linear(inner, {"out_proj": hidden}, options, bias=sizes.bias)
        named = zip(["dt", "b", "c"], self.norms, strict=False)
        own = {"A_log": self.decay, "D": self.skip}
        own |= {f"{name}_layernorm.weight": weight for name, weight in named}
        linears = [self.projections, self.inputs, self.steps, self.output]
        super().__init__(linears, own, conv1d=self.conv)

    def __call__(self, x: Tensor, states: StepStates, multiply: Multiply) -> Tensor:
        """(tokens, hidden_size) -> (tokens, hidden_size)."""
        mixed, gate = multiply(self.projections, x, None).chunk(2, dim=1)
        values = self.conv(mixed, self._layer, states)
        parts = multiply(self.inputs, values.to(x.dtype), None).split_with_sizes(self._parts, 1)
        step, keys, queries = self._normed(parts)
        step = functional.softplus(multiply(self.steps, step.contiguous(), None).float())
        inputs = SelectiveInputs(values, step, queries.float()[:, None], keys.float()[:, None])
        read = self._scan(inputs, self.decay.exp().neg(), self._layer, states)
        made = read.addcmul_(values, self.skip) * functional.silu(gate.float())
        return multiply(self.output, made.to(x.dtype), None)

    def _normed(self, parts: tuple[Tensor, ...]) -> list[Tensor]:
        if not self._sizes.norms:
            return list(parts)
        weights = self.norms or (None,) * len(parts)
        return [
            functional.rms_norm(part, part.shape[1:], weight, self._eps)
            for part, weight in zip(parts, weights, strict=True)
        ]
