"""GLM-4.5 to 4.7: DeepSeek-V3's experts after GLM's attention, or after its latents (Flash)."""

from __future__ import annotations

from typing import Annotated, Literal

from radixlm.models.config_fields import Count, Flag, Number, Size, supported, unsupported
from radixlm.models.families.deepseek import DeepseekV3
from radixlm.models.families.grouped_experts import SIGMOIDS, GroupedExperts
from radixlm.models.traits import QueryKeyNorms, Traits


class Glm4Moe(GroupedExperts):
    """GLM-4.5, 4.6, 4.7. Half of each head turns, its halves together."""

    default_share = 0.5
    attention_bias: Flag = False
    use_qk_norm: Flag = False
    rms_norm_eps: Number = 1e-5
    n_routed_experts: Count = 128
    moe_intermediate_size: Size = 1408
    first_k_dense_replace: Count = 1

    def traits(self) -> Traits:
        return Traits(
            qkv_bias=self.attention_bias,
            qk_norm=QueryKeyNorms() if self.use_qk_norm else None,
            experts=self.experts(self.grouped(SIGMOIDS)),
            spare_layers=self.num_nextn_predict_layers,
        )


class Glm4MoeLite(DeepseekV3):
    """GLM-4.7-Flash."""

    rms_norm_eps: Number = 1e-5
    q_lora_rank: Size | None = 768
    qk_nope_head_dim: Size = 192
    v_head_dim: Size = 256
    n_routed_experts: Count = 64
    num_experts_per_tok: Size = 4
    moe_intermediate_size: Size = 1536
    routed_scaling_factor: Number = 1.8
    n_group: Size | None = 1
    topk_group: Size | None = 1
    first_k_dense_replace: Count = 1
    mlp_layer_types: Annotated[
        list[Literal["dense", "sparse"]] | None, supported("dense and sparse")
    ] = None

    def sparse(self) -> tuple[bool, ...]:
        kinds, layers = self.mlp_layer_types, self.num_hidden_layers
        if kinds is None:
            return super().sparse()
        if len(kinds) != layers:
            raise unsupported("mlp_layer_types", kinds, f"one for each of {layers} layers")
        return tuple(kind == "sparse" for kind in kinds)
