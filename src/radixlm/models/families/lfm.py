"""LFM2: short convolutions in most layers, attention in others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

from pydantic import AliasChoices, Field

from radixlm.layers.grouped_router import GroupedRouting
from radixlm.layers.short_conv import ConvSizes
from radixlm.models.config_fields import Count, Flag, Number, Size, supported
from radixlm.models.families.mamba_hybrids import ConvWidth, mixers_of
from radixlm.models.hf_config import HFConfig
from radixlm.models.traits import Experts, Norms, QueryKeyNorms, Traits

_Kind = Literal["conv", "full_attention"]
_Kinds = Annotated[list[_Kind] | None, supported("conv and full_attention")]


class Lfm2(HFConfig):
    """LFM2, dense. Without `layer_types` the layers in `full_attn_idxs` have attention."""

    rms_norm_eps: Number = Field(validation_alias="norm_eps")
    intermediate_size: Size = Field(
        validation_alias=AliasChoices("block_ff_dim", "intermediate_size")
    )
    tie_word_embeddings: Flag = Field(
        validation_alias=AliasChoices("tie_embedding", "tie_word_embeddings")
    )
    conv_bias: Flag
    width: ConvWidth = Field(validation_alias="conv_L_cache")
    block_auto_adjust_ff_dim: Flag
    block_ffn_dim_multiplier: Number | None = None
    block_multiple_of: Size
    layer_types: _Kinds = None
    full_attn_idxs: Annotated[list[Count] | None, supported("numbers of layers, from 0")] = None

    def traits(self) -> Traits:
        layers = range(self.num_hidden_layers)
        attentive = set(layers if self.full_attn_idxs is None else self.full_attn_idxs)
        kinds: Sequence[str] = self.layer_types or [
            "full_attention" if layer in attentive else "conv" for layer in layers
        ]
        return Traits(
            qk_norm=QueryKeyNorms(names=("q_layernorm.weight", "k_layernorm.weight")),
            norms=Norms("operator_norm", mlp="ffn_norm", last="embedding_norm"),
            output="out_proj",
            mlp="feed_forward",
            gate_up=("w1", "w3"),
            down="w2",
            mlp_sizes=(self._size(),) * len(layers),
            state=ConvSizes(self.hidden_size, self.width, self.conv_bias),
            mixers=mixers_of(self, "layer_types", kinds),
        )

    def _size(self) -> int:
        """The MLP's size: two thirds of what the config says, in whole multiples."""
        size, multiple = self.intermediate_size, self.block_multiple_of
        if not self.block_auto_adjust_ff_dim:
            return size
        size = int(2 * size / 3)
        if self.block_ffn_dim_multiplier is None:
            return size
        size = int(self.block_ffn_dim_multiplier * size)
        return -(-size // multiple) * multiple


class Lfm2Moe(Lfm2):
    """LFM2 with experts in all layers but the first ones, chosen by sigmoids."""

    block_auto_adjust_ff_dim: Flag = False
    block_multiple_of: Size = 1
    num_dense_layers: Count
    num_experts_per_tok: Size
    moe_intermediate_size: Size
    norm_topk_prob: Flag
    routed_scaling_factor: Number
    use_expert_bias: Flag

    def traits(self) -> Traits:
        correction = "expert_bias" if self.use_expert_bias else ""
        experts = Experts(
            self.num_experts,
            self.num_experts_per_tok,
            self.moe_intermediate_size,
            renormalised=self.norm_topk_prob,
            scale=self.routed_scaling_factor,
            routing=GroupedRouting("sigmoid", correction),
            layers=tuple(n >= self.num_dense_layers for n in range(self.num_hidden_layers)),
            gate_up=("experts.{}.w1", "experts.{}.w3"),
            down="experts.{}.w2",
        )
        return super().traits()._replace(experts=experts)
