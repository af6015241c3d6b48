"""Root-mean-square norms; the mean is taken in float32 whatever the type of the input."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor
from torch.nn import functional

from radixlm.layers import compiled
from radixlm.layers.compiled import TensorOptions


class RMSNorm:
    """x / rms(x) * weight over the last dimension (Zhang and Sennrich, 2019)."""

    def __init__(self, size: int, eps: float, options: TensorOptions) -> None:
        self.eps = eps
        self.weight = options.empty(size)
        self._compiled = compiled.AddNorm(self.weight, eps) if options.known(size) else None

    def __call__(self, x: Tensor, added: Tensor | None = None) -> Tensor:
        """Add `added` to x, in place, and norm the sum: (tokens, size) -> (tokens, size), new."""
        if self._compiled is not None:
            return self._compiled(x, added)
        if added is not None:
            x.add_(added)
        return functional.rms_norm(x, self.weight.shape, self.weight, self.eps)

    def named_weights(self) -> Iterator[tuple[str, Tensor]]:
        yield "weight", self.weight


class QueryKeyNorm:
    """RMSNorm of every query head and every key head by itself, as Qwen3 does before rotary."""

    def __init__(self, n_heads: int, head_dim: int, eps: float, options: TensorOptions) -> None:
        self.n_heads = n_heads
        self.eps = eps
        self.q_weight, self.k_weight = options.empty(head_dim), options.empty(head_dim)

    def __call__(self, qk: Tensor) -> Tensor:
        """(tokens, n_heads + n_kv_heads, head_dim), query heads first -> the same shape, new."""
        normed = functional.rms_norm(qk, self.q_weight.shape, None, self.eps)
        normed[:, : self.n_heads].mul_(self.q_weight)
        normed[:, self.n_heads :].mul_(self.k_weight)
        return normed

    def named_weights(self) -> Iterator[tuple[str, Tensor]]:
        yield "q_norm.weight", self.q_weight
        yield "k_norm.weight", self.k_weight
