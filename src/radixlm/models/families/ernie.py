"""ERNIE 4.5: Llama whose neighbours turn together; with experts, some for all tokens."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from radixlm.layers.grouped_router import GroupedRouting
from radixlm.models.config_fields import Count, Flag, Size, supported
from radixlm.models.hf_config import HFConfig
from radixlm.models.traits import Experts, Traits


class Ernie45(HFConfig):
    use_bias: Flag

    def traits(self) -> Traits:
        bias = self.use_bias
        return Traits(bias, bias, bias, interleaved=True)


class PaddleOCR(Ernie45):
    """PaddleOCR-VL's text: halves of heads turn together, as Llama's."""

    def traits(self) -> Traits:
        return super().traits()._replace(interleaved=False)


class Ernie45Moe(Ernie45):
    """Experts in every `moe_layer_interval`th layer from `moe_layer_start_index` up to
    `moe_layer_end_index`; -1: the last one.
    """

    use_bias: Annotated[Literal[False], supported("false")] = False
    num_experts: Count = Field(64, validation_alias="moe_num_experts")
    num_experts_per_tok: Size = Field(6, validation_alias="moe_k")
    moe_intermediate_size: Size = 1536
    moe_num_shared_experts: Count = 2
    moe_layer_start_index: Count = 1
    moe_layer_end_index: int = -1
    moe_layer_interval: Size = 1

    def traits(self) -> Traits:
        layers, every, last = self.num_hidden_layers, self.moe_layer_interval, None
        if self.moe_layer_end_index != -1:
            last = self.moe_layer_end_index + 1
        sparse = range(layers)[self.moe_layer_start_index : last]
        experts = Experts(
            self.num_experts,
            self.num_experts_per_tok,
            self.moe_intermediate_size,
            renormalised=True,
            shared=self.moe_num_shared_experts * self.moe_intermediate_size,
            shared_place="shared_experts",
            shared_gate="",
            routing=GroupedRouting(
                correction="moe_statics.e_score_correction_bias", correction_dims=2
            ),
            layers=tuple((n + 1) % every == 0 and n in sparse for n in range(layers)),
        )
        return super().traits()._replace(experts=experts, spare=("model.mtp_",))
