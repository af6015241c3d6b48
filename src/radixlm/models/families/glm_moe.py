"""GLM-4.5 to 4.7: DeepSeek-V3's experts after GLM's attention, or after its latents (Flash)."""

from __future__ import annotations

from typing import Annotated, Literal

from radixlm.models.config_fields import Flag, supported, unsupported
from radixlm.models.families.deepseek import DeepseekV3
from radixlm.models.families.grouped_experts import SIGMOIDS, GroupedExperts
from radixlm.models.traits import QueryKeyNorms, Traits


class Glm4Moe(GroupedExperts):
    """GLM-4.5, 4.6, 4.7. Half of each head turns, its halves together."""

    turns_part = True
    attention_bias: Flag
    use_qk_norm: Flag = False

    def traits(self) -> Traits:
        return Traits(
            qkv_bias=self.attention_bias,
            qk_norm=QueryKeyNorms() if self.use_qk_norm else None,
            experts=self.experts(self.grouped(SIGMOIDS)),
            spare_layers=self.num_nextn_predict_layers,
        )


class Glm4MoeLite(DeepseekV3):
    """GLM-4.7-Flash."""

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
