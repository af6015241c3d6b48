"""What sets one architecture apart from the shared decoder."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Traits:
    """Read from the config by the architecture's own file.

    qkv_bias, output_bias, mlp_bias: which projections add a bias.
    qk_norm: every query and key head is normed before rotary.
    head_dim: size of a head where the config names none; None: hidden_size / heads.
    sliding_window: tokens that a token sees, itself included; None: all before it.
    """

    qkv_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    head_dim: int | None = None
    sliding_window: int | None = None
