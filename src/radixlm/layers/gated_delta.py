"""The gated delta rule (Yang et al., 2024): a layer whose state is a matrix for each head, which
fades, and in which each token corrects what its key reads.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from radixlm.layers.linear import Linear
from radixlm.layers.lora import Multiply
from radixlm.layers.scans import ScanInputs, through
from radixlm.layers.step_states import CausalConv, StepStates
from radixlm.products.compiled import TensorOptions

_LEAST = 1e-6


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
            name: _by_kind(its, self.keys)
            for name, its in zip(self.projections, kinds, strict=True)
        }


def _by_kind(sizes: Sequence[int], heads: int) -> Tensor:
    """List where rows stand that are stored head by head, each with `sizes` of every kind."""
    by_head = torch.arange(heads * sum(sizes)).view(heads, -1)
    return torch.cat([part.flatten() for part in by_head.split_with_sizes(list(sizes), 1)])


class GatedDelta:
    """A layer's state and the projections around it, in place of attention.

    What is projected are, of all heads: queries, keys and values, which go through the convolution;
    gates of what is read; betas, how much a token corrects; and what decays are made of.
    """

    is_compiled = False

    def __init__(
        self, sizes: DeltaSizes, layer: int, hidden: int, eps: float, options: TensorOptions
    ) -> None:
        self._sizes, self._layer, self._eps = sizes, layer, sizes.eps or eps
        self.projections = Linear(hidden, sizes.parts, options, bias=False)
        self.conv = CausalConv(options.empty(sizes.channels, 1, sizes.width), None)
        exact = TensorOptions(torch.float32, options.device)
        self.decay, self.step = exact.empty(sizes.values), exact.empty(sizes.values)
        self.norm = options.empty(sizes.value)
        inner = sizes.values * sizes.value
        self.output = Linear(inner, {sizes.output: hidden}, options, bias=False)

    def __call__(self, x: Tensor, states: StepStates, multiply: Multiply) -> Tensor:
        """(tokens, hidden_size) -> (tokens, hidden_size)."""
        sizes = self._sizes
        gates, heads = sizes.values * sizes.value, sizes.values
        made = multiply(self.projections, x, None)
        mixed, gate, beta, step = made.split_with_sizes((sizes.channels, gates, heads, heads), 1)
        mixed = functional.silu(self.conv(mixed, self._layer, states)).float()
        queries, keys, values = self._heads(mixed)
        decay = self.decay.exp().neg() * functional.softplus(step.float() + self.step)
        inputs = ScanInputs(queries, keys, values, decay, beta.float().sigmoid() * sizes.most)
        read = through(inputs, self._layer, states)
        normed = functional.rms_norm(read, (sizes.value,), self.norm.float(), self._eps)
        gated = normed * functional.silu(gate.float().view_as(normed))
        return multiply(self.output, gated.to(x.dtype).flatten(1), None)

    def _heads(self, mixed: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries and keys, of length 1, and values: (tokens, values' heads, size)."""
        sizes = self._sizes
        each, repeats = sizes.keys * sizes.key, sizes.values // sizes.keys
        parts = mixed.split_with_sizes((each, each, sizes.values * sizes.value), 1)
        queries, keys = (
            unit(part.unflatten(1, (sizes.keys, -1))).repeat_interleave(repeats, 1)
            for part in parts[:2]
        )
        return queries * sizes.key**-0.5, keys, parts[2].unflatten(1, (sizes.values, -1))

    def linears(self) -> list[Linear]:
        """The projections in the order in which they are computed."""
        return [self.projections, self.output]

    def named_weights(self) -> Iterator[tuple[str, Tensor]]:
        for linear in self.linears():
            yield from linear.named_weights()
        yield from self.conv.named_weights("conv1d")
        yield "A_log", self.decay
        yield "dt_bias", self.step
        yield f"{self._sizes.norm}.weight", self.norm


def unit(x: Tensor) -> Tensor:
    """Scale to length 1 along the last dimension."""
    return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + _LEAST)
