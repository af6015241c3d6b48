"""The norms of a decoder's layers, as a model's traits say."""

from __future__ import annotations

from radixlm.layers.linear import RMSNorm
from radixlm.layers.norms import GatedNorm, KeptNorm, LayerNorm, NoNorm
from radixlm.models.model_config import ModelConfig
from radixlm.products.compiled import TensorOptions

Norm = RMSNorm | LayerNorm | GatedNorm | KeptNorm | NoNorm


def make_norm(config: ModelConfig, options: TensorOptions) -> RMSNorm | LayerNorm:
    """Make a norm of all of a token."""
    kind = config.traits.norms
    if kind.kind == "layer":
        return LayerNorm(config.hidden_size, config.norm_eps, options, bias=kind.bias)
    return RMSNorm(config.hidden_size, config.norm_eps, options)


def norm_before(
    config: ModelConfig, name: str, options: TensorOptions, *, place: int, gated: bool
) -> Norm:
    """Make that of what attention (place 0) or an MLP takes. name: empty: there is none. gated:
    where this model has gates, it is one with them.
    """
    if not name:
        return NoNorm()
    if gated and config.traits.norms.gates:
        sizes = config.hidden_size, config.traits.norms.gates
        return GatedNorm(*sizes, config.norm_eps, options)
    if kept := config.traits.norms.kept:
        return KeptNorm(config.hidden_size, kept[place], config.norm_eps, options)
    return make_norm(config, options)
