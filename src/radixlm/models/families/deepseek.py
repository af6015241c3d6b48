"""DeepSeek V2, V3 and R1: keys and values are latents; experts in groups, some for all tokens."""

from __future__ import annotations

from typing import Annotated, Literal

from radixlm.layers.expansion import LatentSizes
from radixlm.layers.grouped_router import GroupedRouting
from radixlm.models.config_fields import Count, Flag, Number, Size, supported, unsupported
from radixlm.models.hf_config import HFConfig
from radixlm.models.traits import Experts, Traits


class _Latents(HFConfig):
    """The fields that both have. `head_dim` says nothing: heads have two sizes of their own."""

    attention_bias: Flag
    q_lora_rank: Size | None = None
    kv_lora_rank: Size
    qk_nope_head_dim: Size
    qk_rope_head_dim: Size
    v_head_dim: Size
    n_shared_experts: Count
    moe_intermediate_size: Size
    first_k_dense_replace: Count
    moe_layer_freq: Annotated[Literal[1], supported("1")] = 1
    routed_scaling_factor: Number
    num_experts_per_tok: Size
    n_group: Size | None = None
    topk_group: Size | None = None

    def _traits(self, experts: Experts, *, interleaved: bool = True) -> Traits:
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

    def _experts(
        self, dense: int, shared: int, size: int, routing: GroupedRouting, norm: bool
    ) -> Experts:
        """dense: layers without experts, the first ones. shared: how many all tokens get."""
        return Experts(
            self.num_experts,
            self.num_experts_per_tok,
            size,
            renormalised=norm,
            shared=shared * size,
            shared_place="shared_experts",
            shared_gate="",
            scale=self.routed_scaling_factor,
            routing=routing,
            layers=tuple(layer >= dense for layer in range(self.num_hidden_layers)),
        )

    def _grouped(
        self, groups: int | None, chosen: int | None, routing: GroupedRouting
    ) -> GroupedRouting:
        """Raises UnsupportedModelError where groups do not divide, or leave too few experts."""
        experts, wanted = self.num_experts, self.num_experts_per_tok
        if not groups or experts % groups:
            raise unsupported("n_group", groups, f"a divisor of n_routed_experts, {experts}")
        if experts // groups < routing.best:
            at_least = f"groups of at least {routing.best} of {experts} experts"
            raise unsupported("n_group", groups, at_least)
        if not chosen or chosen > groups:
            raise unsupported("topk_group", chosen, f"1 to n_group, {groups}")
        if wanted > chosen * (experts // groups):
            most = f"at most the {chosen * (experts // groups)} of {chosen} groups (topk_group)"
            raise unsupported("num_experts_per_tok", wanted, most)
        return routing._replace(groups=groups, chosen_groups=chosen)


class DeepseekV2(_Latents):
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
            routing = self._grouped(self.n_group, self.topk_group, routing)
        dense, shared = self.first_k_dense_replace, self.n_shared_experts
        size = self.moe_intermediate_size
        return self._traits(self._experts(dense, shared, size, routing, norm=False))


class DeepseekV3(_Latents):
    """DeepSeek V3, also R1. A layer after the last one, which predicts a token more, is left
    out.
    """

    norm_topk_prob: Flag
    rope_interleave: Flag
    num_nextn_predict_layers: Count = 1
    scoring_func: Annotated[Literal["sigmoid"], supported("sigmoid")] = "sigmoid"
    topk_method: Annotated[Literal["noaux_tc"], supported("noaux_tc")] = "noaux_tc"

    def traits(self) -> Traits:
        routing = GroupedRouting("sigmoid", corrected=True, best=2)
        routing = self._grouped(self.n_group, self.topk_group, routing)
        dense, shared = self.first_k_dense_replace, self.n_shared_experts
        size, norm = self.moe_intermediate_size, self.norm_topk_prob
        experts = self._experts(dense, shared, size, routing, norm=norm)
        made = self._traits(experts, interleaved=self.rope_interleave)
        return made._replace(spare_layers=self.num_nextn_predict_layers)
