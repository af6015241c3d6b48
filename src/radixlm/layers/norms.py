"""Norms that some architectures have, by torch; `RMSNorm` and `QueryKeyNorm` are in `linear`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor
from torch.nn import functional

from radixlm.layers.linear import RMSNorm
from radixlm.products.compiled import TensorOptions


class LayerNorm:
    """(x - mean) / deviation * weight + bias over the last dimension, called as `RMSNorm`."""

    is_compiled = False

    def __init__(self, size: int, eps: float, options: TensorOptions, *, bias: bool) -> None:
        self.eps = eps
        self.weight = options.empty(size)
        self.bias = options.empty(size) if bias else None

    def __call__(
        self, x: Tensor, added: Tensor | None = None, _out: Tensor | None = None
    ) -> Tensor:
        """Add `added` to x, in place, and norm the sum: (tokens, size) -> the same, new."""
        if added is not None:
            x.add_(added)
        return functional.layer_norm(x, self.weight.shape, self.weight, self.bias, self.eps)

    def named_weights(self) -> Iterator[tuple[str, Tensor]]:
        yield "weight", self.weight
        if self.bias is not None:
            yield "bias", self.bias


class GatedNorm:
    """RMSNorm times the sigmoid of what an MLP with few numbers between makes of it."""

    is_compiled = False

    def __init__(self, size: int, between: int, eps: float, options: TensorOptions) -> None:
        self.norm = RMSNorm(size, eps, options)
        self.down, self.up = options.empty(between, size), options.empty(size, between)

    def __call__(
        self, x: Tensor, added: Tensor | None = None, _out: Tensor | None = None
    ) -> Tensor:
        """Add `added` to x, in place, and norm the sum: (tokens, size) -> the same, new."""
        normed = self.norm(x, added)
        between = functional.silu(functional.linear(normed, self.down))
        gates = functional.linear(between, self.up).float().sigmoid_()
        return (normed * gates).to(normed.dtype)

    def named_weights(self) -> Iterator[tuple[str, Tensor]]:
        yield "norm.weight", self.norm.weight
        yield "W_down.weight", self.down
        yield "W_up.weight", self.up


class KeptNorm:
    """RMSNorm whose result, multiplied by a factor, takes the place of x, too."""

    is_compiled = False

    def __init__(self, size: int, factor: float, eps: float, options: TensorOptions) -> None:
        self._norm, self._factor = RMSNorm(size, eps, options), factor

    def __call__(
        self, x: Tensor, added: Tensor | None = None, _out: Tensor | None = None
    ) -> Tensor:
        """(tokens, size), and what is added to it -> the same, new."""
        normed = self._norm(x, added)
        torch.mul(normed, self._factor, out=x)
        return normed

    def named_weights(self) -> Iterator[tuple[str, Tensor]]:
        return self._norm.named_weights()


class NoNorm:
    """A norm that leaves the sum as it is."""

    is_compiled = False

    def __call__(
        self, x: Tensor, added: Tensor | None = None, _out: Tensor | None = None
    ) -> Tensor:
        """Add `added` to x, in place. Returns x itself."""
        return x if added is None else x.add_(added)

    def named_weights(self) -> Iterator[tuple[str, Tensor]]:
        yield from ()


class RowNorm:
    """RMSNorm of all query heads of a token together, and of all its key heads."""

    def __init__(
        self, sizes: tuple[int, int], eps: float, options: TensorOptions, names: Sequence[str]
    ) -> None:
        """sizes, names: of queries and keys."""
        self.eps, self._names = eps, names
        self._weights = [options.empty(size) for size in sizes]

    def __call__(self, qkv: Tensor) -> None:
        """(tokens, queries, then keys, then values), in place."""
        for part, weight in self.parts(qkv):
            part.copy_(functional.rms_norm(part, weight.shape, weight, self.eps))

    def parts(self, qkv: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Queries and keys, (tokens, numbers of all heads), each with its weight."""
        sizes = [weight.numel() for weight in self._weights]
        views = qkv[:, : sum(sizes)].split(sizes, dim=1)
        return list(zip(views, self._weights, strict=True))

    def named_weights(self) -> Iterator[tuple[str, Tensor]]:
        yield from zip(self._names, self._weights, strict=True)


class ValueNorm:
    """RMSNorm of each head of values, without weights. width: of all of them."""

    def __init__(self, width: int, head_dim: int, eps: float) -> None:
        self._width, self._head_dim, self._eps = width, head_dim, eps

    def __call__(self, qkv: Tensor) -> None:
        """(tokens, queries, then keys, then values), in place."""
        heads = qkv[:, -self._width :].unflatten(1, (-1, self._head_dim))
        heads.copy_(functional.rms_norm(heads, (self._head_dim,), None, self._eps))

    def named_weights(self) -> Iterator[tuple[str, Tensor]]:
        yield from ()


class HeadNorms:
    """LayerNorm without bias of each query and key head, with a weight for each of them."""

    def __init__(
        self,
        heads: tuple[int, int],
        head_dim: int,
        eps: float,
        options: TensorOptions,
        names: Sequence[str],
    ) -> None:
        """heads: of queries and of keys. names: with {} if each head's weight has a name."""
        self._eps, self._names = eps, names
        self._weight = options.empty(sum(heads), head_dim)
        self._parts = self._weight.split(heads)

    def __call__(self, qkv: Tensor) -> None:
        """(tokens, queries, then keys, then values), in place."""
        head_dim = self._weight.shape[1]
        heads = qkv.unflatten(1, (-1, head_dim))[:, : self._weight.shape[0]]
        normed = functional.layer_norm(heads.float(), (head_dim,), None, None, self._eps)
        heads.copy_(normed.mul_(self._weight))

    def named_weights(self) -> Iterator[tuple[str, Tensor]]:
        for name, part in zip(self._names, self._parts, strict=True):
            if "{}" in name:
                yield from ((name.format(head), weight) for head, weight in enumerate(part))
            else:
                yield name, part
