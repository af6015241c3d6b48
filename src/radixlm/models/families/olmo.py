"""OLMo 2 norms what attention and MLP give, not what they take; OLMoE has experts. Both norm
queries and keys as whole rows.
"""

from __future__ import annotations

from typing import Annotated

from radixlm.layers.rotary import RopeConfig
from radixlm.models.config_fields import Flag, Size, supported
from radixlm.models.families.windowed import TwoRopes, windowed_of
from radixlm.models.hf_config import HFConfig
from radixlm.models.traits import Experts, Norms, QueryKeyNorms, Traits


class Olmo2(HFConfig):
    attention_bias: Flag

    def traits(self) -> Traits:
        norms = Norms("", "post_attention_layernorm", "", "post_feedforward_layernorm")
        bias = self.attention_bias
        return Traits(bias, bias, qk_norm=QueryKeyNorms("row"), norms=norms)


class Olmoe(HFConfig):
    attention_bias: Flag
    clip_qkv: Annotated[None, supported("null")] = None
    num_experts_per_tok: Size
    norm_topk_prob: Flag

    def traits(self) -> Traits:
        experts = Experts(
            self.num_experts,
            self.num_experts_per_tok,
            self.intermediate_size,
            renormalised=self.norm_topk_prob,
        )
        bias = self.attention_bias
        return Traits(bias, bias, qk_norm=QueryKeyNorms("row"), experts=experts)


class Olmo3(TwoRopes, Olmo2):
    """OLMo 2 with a window in three of four layers."""

    def traits(self) -> Traits:
        windowed = windowed_of(self, self.layer_types, 4)
        windows = tuple(self.sliding_window if w else None for w in windowed)
        return Olmo2.traits(self)._replace(windows=windows)

    def ropes(self, rope: RopeConfig) -> tuple[RopeConfig | None, ...]:
        return self.two_ropes(rope, windowed_of(self, self.layer_types, 4), self.rope_theta)
