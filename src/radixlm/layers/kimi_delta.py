"""Kimi Delta Attention (2025): the gated delta rule, with a number for each channel of a key by
which the state fades.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from radixlm.layers.channel_scans import through_channels
from radixlm.layers.gated_delta import unit
from radixlm.layers.linear import Linear
from radixlm.layers.lora import Multiply
from radixlm.layers.scans import ScanInputs
from radixlm.layers.step_states import CausalConv, StepStates
from radixlm.products.compiled import TensorOptions


class KimiSizes(NamedTuple):
    """The sizes of a layer. heads, head: of queries, keys and values, and their size. width: of the
    convolution.
    """

    heads: int
    head: int
    width: int
    place: str = "self_attn"

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


class KimiDelta:
    """A layer's state and the projections around it, in place of attention. What fades and what
    gates what is read are made by two products each, the first of a head's size.
    """

    is_compiled = False

    def __init__(
        self, sizes: KimiSizes, layer: int, hidden: int, eps: float, options: TensorOptions
    ) -> None:
        self._sizes, self._layer, self._eps = sizes, layer, eps
        inner, head = sizes.heads * sizes.head, sizes.head
        parts = dict.fromkeys(("q_proj", "k_proj", "v_proj"), inner) | {"b_proj": sizes.heads}
        parts |= dict.fromkeys(("f_a_proj", "g_a_proj"), head)
        self.projections = Linear(hidden, parts, options, bias=False)
        self.forget, self.gate = (
            Linear(head, {name: inner}, options, bias=False) for name in ("f_b_proj", "g_b_proj")
        )
        self.conv = CausalConv(options.empty(sizes.channels, 1, sizes.width), None)
        exact = TensorOptions(torch.float32, options.device)
        self.decay, self.step = exact.empty(1, 1, sizes.heads, 1), exact.empty(inner)
        self.norm = options.empty(head)
        self.output = Linear(inner, {"o_proj": hidden}, options, bias=False)

    def __call__(self, x: Tensor, states: StepStates, multiply: Multiply) -> Tensor:
        """(tokens, hidden_size) -> (tokens, hidden_size)."""
        sizes = self._sizes
        made = multiply(self.projections, x, None)
        parts = sizes.channels, sizes.heads, sizes.head, sizes.head
        mixed, beta, forget, gate = made.split_with_sizes(parts, 1)
        mixed = functional.silu(self.conv(mixed, self._layer, states)).float()
        queries, keys, values = mixed.unflatten(1, (3, sizes.heads, sizes.head)).unbind(1)
        forget = multiply(self.forget, forget.contiguous(), None).float() + self.step
        decay = self.decay[0].exp().neg() * functional.softplus(forget).view_as(queries)
        queries = unit(queries) * sizes.head**-0.5
        inputs = ScanInputs(queries, unit(keys), values, decay, beta.float().sigmoid())
        read = through_channels(inputs, self._layer, states)
        normed = functional.rms_norm(read, (sizes.head,), self.norm.float(), self._eps)
        gate = multiply(self.gate, gate.contiguous(), None).float().view_as(normed)
        return multiply(self.output, (normed * gate.sigmoid()).to(x.dtype).flatten(1), None)

    def linears(self) -> list[Linear]:
        """The projections in the order in which they are computed."""
        return [self.projections, self.forget, self.gate, self.output]

    def named_weights(self) -> Iterator[tuple[str, Tensor]]:
        for linear in self.linears():
            yield from linear.named_weights()
        yield from self.conv.named_weights("conv1d")
        yield from (("A_log", self.decay), ("dt_bias", self.step), ("o_norm.weight", self.norm))
