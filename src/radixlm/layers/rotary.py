"""Rotary position embedding, neox style: dimension i is rotated with dimension i + head_dim / 2."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from radixlm.layers.rope_scaling import RopeConfig


class Rotation(NamedTuple):
    """The rotation of each of a step's tokens, gathered once and used by every layer.

    cos: (tokens, 1, head_dim), both halves alike.
    sin: (tokens, 1, head_dim), the first half negated, so that a rotation is
        x * cos + swap_halves(x) * sin.
    """

    cos: Tensor
    sin: Tensor

    def apply(self, x: Tensor) -> Tensor:
        """(tokens, heads, head_dim) -> the same shape, new and contiguous."""
        first, second = x.chunk(2, dim=-1)
        return torch.cat((second, first), dim=-1).mul_(self.sin).addcmul_(x, self.cos)


class Rotary:
    """cos and sin of every position below `context_length`, computed once in float32."""

    def __init__(
        self,
        rope: RopeConfig,
        head_dim: int,
        context_length: int,
        *,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        positions = torch.arange(context_length, dtype=torch.float32)
        angles = torch.outer(positions, rope.frequencies(head_dim))
        table = torch.cat((angles.cos(), angles.sin()), dim=-1).mul_(rope.attention_factor)
        self._table = table.to(device=device, dtype=dtype)

    def at(self, positions: Tensor) -> Rotation:
        """The rotations of `positions` (tokens,) int64, each in [0, context_length)."""
        cos, sin = self._table.index_select(0, positions).unsqueeze(1).chunk(2, dim=-1)
        return Rotation(torch.cat((cos, cos), dim=-1), torch.cat((-sin, sin), dim=-1))
