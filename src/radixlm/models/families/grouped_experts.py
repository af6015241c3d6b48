"""Families whose experts stand in groups, some for all tokens, as DeepSeek's do."""

from __future__ import annotations

from pydantic import AliasChoices, Field

from radixlm.layers.grouped_router import GroupedRouting
from radixlm.models.config_fields import Count, Flag, Number, Size, unsupported
from radixlm.models.hf_config import HFConfig
from radixlm.models.traits import Experts

# By sigmoids, with a correction; groups by the sum of their best two.
SIGMOIDS = GroupedRouting("sigmoid", "gate.e_score_correction_bias", best=2)


class GroupedExperts(HFConfig):
    """`first_k_dense_replace`: that many layers have no experts, the first ones. What comes after
    the last layer predicts further tokens.
    """

    n_shared_experts: Count = 1
    num_experts_per_tok: Size
    moe_intermediate_size: Size = 2048
    first_k_dense_replace: Count = 0
    routed_scaling_factor: Number = 1.0
    norm_topk_prob: Flag = True
    n_group: Size | None = None
    topk_group: Size | None = None
    num_nextn_predict_layers: Count = Field(
        1, validation_alias=AliasChoices("num_nextn_predict_layers", "num_mtp_layers")
    )

    def sparse(self) -> tuple[bool, ...]:
        """See `Experts.layers`."""
        return tuple(n >= self.first_k_dense_replace for n in range(self.num_hidden_layers))

    def experts(self, routing: GroupedRouting) -> Experts:
        return Experts(
            self.num_experts,
            self.num_experts_per_tok,
            self.moe_intermediate_size,
            renormalised=self.norm_topk_prob,
            shared=self.n_shared_experts * self.moe_intermediate_size,
            shared_place="shared_experts",
            shared_gate="",
            scale=self.routed_scaling_factor,
            routing=routing,
            layers=self.sparse(),
        )

    def grouped(self, routing: GroupedRouting) -> GroupedRouting:
        """Raises UnsupportedModelError where groups do not divide, or leave too few experts."""
        experts, wanted = self.num_experts, self.num_experts_per_tok
        groups, chosen = self.n_group, self.topk_group
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
