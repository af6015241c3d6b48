"""OLMo 2 norms what attention and MLP give, not what they take; OLMoE has experts. Both norm
queries and keys as whole rows.
"""

from __future__ import annotations

from typing import Annotated

from radixlm.models.config_fields import Count, Flag, Number, Size, supported
from radixlm.models.hf_config import HFConfig
from radixlm.models.traits import Experts, Norms, QueryKeyNorms, Traits


class Olmo2(HFConfig):
    attention_bias: Flag = False
    rms_norm_eps: Number = 1e-5

    def traits(self) -> Traits:
        norms = Norms("", "post_attention_layernorm", "", "post_feedforward_layernorm")
        bias = self.attention_bias
        return Traits(bias, bias, qk_norm=QueryKeyNorms("row"), norms=norms)


class Olmoe(HFConfig):
    attention_bias: Flag = False
    rms_norm_eps: Number = 1e-5
    clip_qkv: Annotated[None, supported("null")] = None
    num_experts: Count = 64
    num_experts_per_tok: Size = 8
    norm_topk_prob: Flag = False

    def traits(self) -> Traits:
        experts = Experts(
            self.num_experts or self.num_local_experts,
            self.num_experts_per_tok,
            self.intermediate_size,
            renormalised=self.norm_topk_prob,
        )
        bias = self.attention_bias
        return Traits(bias, bias, qk_norm=QueryKeyNorms("row"), experts=experts)
