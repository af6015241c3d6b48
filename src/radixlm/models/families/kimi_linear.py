"""Kimi Linear: Kimi Delta Attention in three of four layers, DeepSeek's latents without positions
in the others; DeepSeek-V3's experts.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AliasChoices, Field

from radixlm.layers.kimi_delta import KimiSizes
from radixlm.layers.rotary import RopeConfig
from radixlm.models.config_fields import Count, Fields, Flag, Size, supported
from radixlm.models.families.glm_moe import Glm4MoeLite
from radixlm.models.families.mamba_hybrids import ConvWidth, mixers_of
from radixlm.models.families.qwen_next import Kinds
from radixlm.models.traits import Traits

_Layers = Annotated[list[Count] | None, supported("numbers of layers, from 1")]
_True = Annotated[Literal[True], supported("true")]


class _Section(Fields):
    """Fields that published files have of layers with a state; layers are counted from 1."""

    head_dim: Size | None = None
    num_heads: Size | None = None
    short_conv_kernel_size: ConvWidth | None = None
    full_attn_layers: _Layers = None


class KimiNames(Glm4MoeLite):
    """Published files and those that transformers writes have other names of fields."""

    max_position_embeddings: Size = Field(
        validation_alias=AliasChoices("model_max_length", "max_position_embeddings")
    )
    n_shared_experts: Count = Field(
        validation_alias=AliasChoices("num_shared_experts", "n_shared_experts")
    )
    num_experts_per_tok: Size = Field(
        validation_alias=AliasChoices("num_experts_per_token", "num_experts_per_tok")
    )
    norm_topk_prob: Flag = Field(validation_alias=AliasChoices("moe_renormalize", "norm_topk_prob"))
    n_group: Size | None = Field(None, validation_alias=AliasChoices("num_expert_group", "n_group"))
    layer_types: Kinds = None


class KimiLinear(KimiNames):
    rope_theta: float = 10_000.0  # nothing turns
    rope_interleave: Flag = False
    mla_use_nope: _True = True
    first_k_dense_replace: Count = 1
    moe_router_activation_func: Annotated[Literal["sigmoid"], supported("sigmoid")] = "sigmoid"
    linear_attn_config: _Section = _Section()
    linear_head_dim: Size
    linear_num_heads: Size
    linear_conv_kernel_dim: ConvWidth

    def traits(self) -> Traits:
        made, its = super().traits(), self.linear_attn_config
        experts = made.experts and made.experts._replace(
            gate_up=("experts.{}.w1", "experts.{}.w3"), down="experts.{}.w2"
        )
        return made._replace(
            experts=experts,
            state=KimiSizes(
                its.num_heads or self.linear_num_heads,
                its.head_dim or self.linear_head_dim,
                its.short_conv_kernel_size or self.linear_conv_kernel_dim,
            ),
            mixers=mixers_of(self, "layer_types", self.layer_types or self._kinds()),
            renamed=((r"\.block_sparse_moe\.", ".mlp."),),
        )

    def _kinds(self) -> list[str]:
        attentive = self.linear_attn_config.full_attn_layers
        layers = range(1, self.num_hidden_layers + 1)
        known = set(layers[4::4] if attentive is None else attentive)
        return ["full_attention" if n in known else "linear_attention" for n in layers]

    def ropes(self, rope: RopeConfig) -> tuple[RopeConfig | None, ...]:  # noqa: ARG002
        return (None,) * self.num_hidden_layers
