"""The parts of a decoder's layer that a family chooses: what carries a state, MLP, experts."""

from __future__ import annotations

from typing import Any

from radixlm.layers.experts import (
    ExpertMLP,
    ExpertRouter,
    ExpertsBeside,
    LatentSpace,
    ScaledRouter,
    SharedExpert,
)
from radixlm.layers.gated_delta import DeltaSizes, GatedDelta
from radixlm.layers.grouped_router import GroupedRouter
from radixlm.layers.kimi_delta import KimiDelta, KimiSizes
from radixlm.layers.lightning import LightningAttention, LightningSizes
from radixlm.layers.mamba1 import Mamba1, Mamba1Sizes
from radixlm.layers.mamba2 import Mamba2, MambaSizes
from radixlm.layers.mamba_heads import MambaHeads
from radixlm.layers.mlps import MLP
from radixlm.layers.rg_lru import LruSizes, RgLru
from radixlm.layers.short_conv import ConvSizes, ShortConv
from radixlm.models.model_config import ModelConfig
from radixlm.models.traits import Experts
from radixlm.products.compiled import TensorOptions

StateLayer = (
    GatedDelta | KimiDelta | LightningAttention | Mamba1 | Mamba2 | MambaHeads | RgLru | ShortConv
)


def make_state(config: ModelConfig, layer: int, options: TensorOptions) -> StateLayer:
    """Make what a layer with a state has before its MLP."""
    sizes, hidden, eps = config.traits.state, config.hidden_size, config.norm_eps
    match sizes:
        case DeltaSizes():
            return GatedDelta(sizes, layer, hidden, eps, options)
        case KimiSizes():
            return KimiDelta(sizes, layer, hidden, eps, options)
        case LightningSizes():
            return LightningAttention(sizes, layer, hidden, options)
        case LruSizes():
            return RgLru(sizes, layer, hidden, options)
        case Mamba1Sizes() if sizes.heads:
            return MambaHeads(sizes, layer, hidden, options)
        case Mamba1Sizes():
            return Mamba1(sizes, layer, hidden, eps, options)
        case MambaSizes():
            return Mamba2(sizes, layer, hidden, eps, options)
        case ConvSizes():
            return ShortConv(sizes, layer, options)
        case None:
            raise ValueError(f"{config.model_type} has no states")


def make_mlp(config: ModelConfig, layer: int, options: TensorOptions) -> MLP | ExpertMLP | None:
    """Make a layer's MLP or experts; None: it has none."""
    traits = config.traits
    if traits.mlps and not traits.mlps[layer]:
        return None
    experts = traits.experts
    chosen = experts is not None and not experts.beside
    if experts is not None and chosen and (not experts.layers or experts.layers[layer]):
        return _experts(config, experts, options)
    return plain_mlp(config, options)


def plain_mlp(config: ModelConfig, options: TensorOptions) -> MLP:
    """Make an MLP that all tokens take."""
    traits = config.traits
    return MLP(
        config.hidden_size,
        config.intermediate_size,
        options,
        bias=traits.mlp_bias,
        gate_up=traits.gate_up,
        down=traits.down,
        gated=traits.gated,
        activation=traits.activation,
    )


def make_beside(config: ModelConfig, options: TensorOptions) -> ExpertsBeside | None:
    """Make experts beside a layer's MLP."""
    experts = config.traits.experts
    if experts is None or not experts.beside:
        return None
    made = _experts(config, experts, options)
    return ExpertsBeside(made, config.hidden_size, config.norm_eps, options)


def _experts(config: ModelConfig, traits: Experts, options: TensorOptions) -> ExpertMLP:
    hidden, act = config.hidden_size, config.traits.activation

    def mlp(width: int, size: int, gate_up: tuple[str, ...], down: str) -> MLP:
        bias, gated = traits.bias, config.traits.gated
        names: dict[str, Any] = {"gate_up": gate_up, "down": down}
        return MLP(width, size, options, bias=bias, gated=gated, activation=act, **names)

    router = _router(config, traits, options)
    experts = [
        mlp(
            traits.latent or hidden,
            traits.size,
            tuple(name.format(number) for name in traits.gate_up),
            traits.down.format(number),
        )
        for number in range(traits.number)
    ]
    shared: SharedExpert | MLP | None = None
    if traits.shared:
        *gate_up, down = (f"{traits.shared_place}.{name}" for name in traits.shared_names)
        shared = mlp(hidden, traits.shared, tuple(gate_up), down)
        if traits.shared_gate:
            shared = SharedExpert(shared, hidden, options, gate=traits.shared_gate)
    latent = None
    if traits.latent:
        latent = LatentSpace(hidden, traits.latent, options)
    return ExpertMLP(router, experts, shared, weighs_inputs=traits.weighs_inputs, latent=latent)


def _router(
    config: ModelConfig, traits: Experts, options: TensorOptions
) -> ExpertRouter | GroupedRouter:
    hidden, number = config.hidden_size, traits.number
    if traits.beside:
        its, eps = traits, config.norm_eps
        return ScaledRouter(hidden, number, options, name=its.router, chosen=its.chosen, eps=eps)
    shared: dict[str, Any] = {
        "name": traits.router,
        "chosen": traits.chosen,
        "renormalised": traits.renormalised,
        "scale": config.traits.residual * traits.scale,
    }
    if traits.routing is None:
        return ExpertRouter(hidden, number, options, bias=traits.bias, **shared)
    return GroupedRouter(hidden, number, options, traits.routing, **shared)
