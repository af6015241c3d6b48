"""DeepSeek V2, V3 and R1: keys and values are latents; experts in groups, some for all tokens."""

from __future__ import annotations

from typing import Annotated, Literal

from radixlm.layers.expansion import LatentSizes
from radixlm.layers.grouped_router import GroupedRouting
from radixlm.models.config_fields import Flag, Size, supported, unsupported
from radixlm.models.families.grouped_experts import SIGMOIDS, GroupedExperts
from radixlm.models.traits import Experts, Traits


class Latents(GroupedExperts):
    """The fields of families with latents. `head_dim` says nothing: heads have two sizes of their
    own.
    """

    attention_bias: Flag
    q_lora_rank: Size | None = None
    kv_lora_rank: Size
    qk_nope_head_dim: Size
    qk_rope_head_dim: Size
    v_head_dim: Size
    moe_layer_freq: Annotated[Literal[1], supported("1")] = 1

    def latent_traits(self, experts: Experts, *, interleaved: bool = True) -> Traits:
        """Raises UnsupportedModelError for sizes that contradict themselves."""
        heads, turned = self.num_attention_heads, self.qk_rope_head_dim
        if (self.num_key_value_heads or heads) != heads:
            each = f"as many as num_attention_heads, {heads}: latents have no groups of heads"
            raise unsupported("num_key_value_heads", self.num_key_value_heads, each)
        if turned % 2:
            raise unsupported("qk_rope_head_dim", turned, "an even number")
        if self.attention_bias and self.q_lora_rank is None:
            raise unsupported("attention_bias", True, "false where q_lora_rank is null")
        plain, queries = self.qk_nope_head_dim, self.q_lora_rank or 0
        sizes = LatentSizes(self.kv_lora_rank, turned, plain, self.v_head_dim, queries)
        bias = self.attention_bias
        return Traits(bias, bias, experts=experts, interleaved=interleaved, latents=sizes)


class DeepseekV2(Latents):
    """The weights of those that are chosen stay parts of a softmax over all."""

    mlp_bias: Annotated[Literal[False], supported("false")] = False
    norm_topk_prob: Annotated[Literal[False], supported("false")] = False
    scoring_func: Annotated[Literal["softmax"], supported("softmax")] = "softmax"
    topk_method: Annotated[
        Literal["greedy", "group_limited_greedy"], supported("greedy, group_limited_greedy")
    ]

    def traits(self) -> Traits:
        routing = GroupedRouting()
        if self.topk_method == "group_limited_greedy":
            routing = self.grouped(routing)
        return self.latent_traits(self.experts(routing))


class DeepseekV3(Latents):
    """DeepSeek V3, also R1, and Kimi K2. A layer after the last one, which predicts a token more,
    is left out.
    """

    rope_interleave: Flag
    scoring_func: Annotated[Literal["sigmoid"], supported("sigmoid")] = "sigmoid"
    topk_method: Annotated[Literal["noaux_tc"], supported("noaux_tc")] = "noaux_tc"

    def routing(self) -> GroupedRouting:
        return self.grouped(SIGMOIDS)

    def traits(self) -> Traits:
        experts = self.experts(self.routing())
        made = self.latent_traits(experts, interleaved=self.rope_interleave)
        return made._replace(spare_layers=self.num_nextn_predict_layers)
