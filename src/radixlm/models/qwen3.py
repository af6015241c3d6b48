"""Qwen3, dense: a norm on each query and key head took the place of Qwen2's biases."""

from __future__ import annotations

from radixlm.models.config_fields import Fields, Traits
from radixlm.models.qwen2 import sliding_window


def qwen3(config: Fields) -> Traits:
    bias = config.flag("attention_bias")
    return Traits(
        qkv_bias=bias,
        output_bias=bias,
        qk_norm=True,
        head_dim=128,
        sliding_window=sliding_window(config),
    )
