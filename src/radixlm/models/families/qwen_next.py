"""Qwen3-Next and the text of Qwen3.5: the gated delta rule in most layers, attention in others."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from radixlm.layers.gated_delta import DeltaSizes
from radixlm.models.config_fields import Count, Flag, Share, Size, supported, unsupported
from radixlm.models.families.qwen_moe import sparse_layers
from radixlm.models.hf_config import HFConfig, RopeFields
from radixlm.models.traits import Experts, Mixer, Norms, QueryKeyNorms, Traits

_Kind = Literal["linear_attention", "full_attention"]
Kinds = Annotated[list[_Kind] | None, supported("linear_attention and full_attention")]
_MIXERS: dict[str, Mixer] = {"linear_attention": "state", "full_attention": "attention"}


class _TextRope(RopeFields):
    """Rotary parameters of a text: its tokens have one position in time, height and width."""

    mrope_section: Any = None


class Qwen35(HFConfig):
    """Qwen3.5, dense. Without `layer_types` every fourth layer has attention."""

    turns_part = True
    partial_rotary_factor: Share = 0.25
    rope_scaling: _TextRope | None = None
    rope_parameters: _TextRope | None = None
    attention_bias: Flag
    linear_conv_kernel_dim: Annotated[int, Field(strict=True, ge=2, le=64), supported("2 to 64")]
    linear_key_head_dim: Size
    linear_value_head_dim: Size
    linear_num_key_heads: Size
    linear_num_value_heads: Size
    layer_types: Kinds = None
    full_attention_interval: Size = 4

    def traits(self) -> Traits:
        return Traits(
            self.attention_bias,
            self.attention_bias,
            qk_norm=QueryKeyNorms(),
            norms=Norms(base=1.0),
            gated_queries=True,
            state=self._delta(),
            mixers=self._mixers(),
            experts=self._experts(),
            spare=("mtp.", "model.visual."),
        )

    def _experts(self) -> Experts | None:
        return None

    def _mixers(self) -> tuple[Mixer, ...]:
        kinds, layers = self.layer_types, self.num_hidden_layers
        if kinds is None:
            every = self.full_attention_interval
            return tuple("state" if (n + 1) % every else "attention" for n in range(layers))
        if len(kinds) != layers:
            raise unsupported("layer_types", kinds, f"one for each of {layers} layers")
        return tuple(_MIXERS[kind] for kind in kinds)

    def _delta(self) -> DeltaSizes:
        names = "in_proj_qkv", "in_proj_z", "in_proj_b", "in_proj_a"
        return self._sizes(names)

    def _sizes(self, names: tuple[str, ...]) -> DeltaSizes:
        keys, values = self.linear_num_key_heads, self.linear_num_value_heads
        if values % keys:
            what = f"a multiple of the {keys} heads of keys (linear_num_key_heads)"
            raise unsupported("linear_num_value_heads", values, what)
        heads = keys, values, self.linear_key_head_dim, self.linear_value_head_dim
        return DeltaSizes(*heads, self.linear_conv_kernel_dim, names)


class Qwen35Moe(Qwen35):
    """Qwen3.5 with experts in all layers, and one more for all tokens."""

    intermediate_size: Size = 1  # no layer has an MLP
    num_experts_per_tok: Size
    moe_intermediate_size: Size
    shared_expert_intermediate_size: Size

    def _experts(self) -> Experts:
        return Experts(
            self.num_experts,
            self.num_experts_per_tok,
            self.moe_intermediate_size,
            renormalised=True,
            shared=self.shared_expert_intermediate_size,
            stacked="or one by one",
        )


class Qwen3Next(Qwen35):
    """Qwen3-Next: rows of the projections stand by heads; experts in all layers or some."""

    num_experts_per_tok: Size
    moe_intermediate_size: Size
    shared_expert_intermediate_size: Size
    norm_topk_prob: Flag
    decoder_sparse_step: Size
    mlp_only_layers: Annotated[list[Count], supported("numbers of layers, from 0")] = Field([])

    def _experts(self) -> Experts:
        return Experts(
            self.num_experts,
            self.num_experts_per_tok,
            self.moe_intermediate_size,
            renormalised=self.norm_topk_prob,
            shared=self.shared_expert_intermediate_size,
            layers=sparse_layers(self, self.decoder_sparse_step, self.mlp_only_layers),
        )

    def _delta(self) -> DeltaSizes:
        return self._sizes(("in_proj_qkvz", "in_proj_ba"))
