"""What a model asks of attention: one call per layer, everything else is the plan's business."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor


class Attend(Protocol):
    """Attention of one step's new tokens over everything their rows have in the pool.

    layer: index of the decoder layer, from 0.
    q: (tokens, n_heads, head_dim), rotary applied.
    k, v: (tokens, n_kv_heads, head_dim) of the new tokens, k with rotary applied; they are written
        to the pool at this step's slots before anything is read.

    All three may be strided over tokens; heads and head_dim are contiguous. Scores are scaled by
    1 / sqrt(head_dim). Returns (tokens, n_heads, head_dim) in the type of q.
    """

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor: ...
