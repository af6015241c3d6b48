"""Llama 1 to 3.3, and what took over their shape (SmolLM, Yi, TinyLlama, ...)."""

from __future__ import annotations

from radixlm.models.config_fields import Fields, Traits


def llama(config: Fields) -> Traits:
    """One flag gives all four attention projections a bias, another the three of the MLP."""
    bias = config.flag("attention_bias")
    return Traits(qkv_bias=bias, output_bias=bias, mlp_bias=config.flag("mlp_bias"))
