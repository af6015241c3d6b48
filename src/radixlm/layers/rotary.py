"""Rotary position embedding, neox style: dimension i is rotated with dimension i + head_dim / 2."""

from __future__ import annotations

import torch
from torch import Tensor

from radixlm.layers import compiled
from radixlm.layers.rope_scaling import RopeConfig


class Rotation:
    """The rotation of each of a step's tokens, gathered once and used by every layer.

    table: (tokens, head_dim), of each token the cosines and then the sines of its angles.
    """

    def __init__(self, table: Tensor, rotate: compiled.Rotate | None) -> None:
        self._table = table
        self._compiled = rotate
        self._factors: tuple[Tensor, Tensor] | None = None
        if rotate is None:
            cos, sin = table.unsqueeze(1).chunk(2, dim=-1)
            # So that a rotation is x * cos + swap_halves(x) * sin.
            self._factors = torch.cat((cos, cos), dim=-1), torch.cat((-sin, sin), dim=-1)

    def turn(self, x: Tensor, heads: int) -> None:
        """Turn the first `heads` heads of x (tokens, heads and more, head_dim), in place."""
        if self._compiled is not None:
            self._compiled(x, heads, self._table)
        elif self._factors is not None:
            cos, sin = self._factors
            turned = x[:, :heads]
            first, second = turned.chunk(2, dim=-1)
            turned.copy_(torch.cat((second, first), dim=-1).mul_(sin).addcmul_(turned, cos))


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
        table = torch.empty(context_length, head_dim)
        torch.cos(angles, out=table[:, : head_dim // 2])
        torch.sin(angles, out=table[:, head_dim // 2 :])
        table.mul_(rope.attention_factor)
        self._table = table.to(device=device, dtype=dtype)
        known = compiled.known(device, dtype, head_dim // 2)
        self._compiled = compiled.Rotate(dtype) if known else None

    def at(self, positions: Tensor) -> Rotation:
        """The rotations of `positions` (tokens,) int64, each in [0, context_length)."""
        return Rotation(self._table.index_select(0, positions), self._compiled)
