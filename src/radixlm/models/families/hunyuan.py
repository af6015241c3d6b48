"""Hunyuan 1, dense and with experts: norms of heads come after these have turned."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any

from pydantic import AliasChoices, BeforeValidator, Field

from radixlm.layers.grouped_router import GroupedRouting
from radixlm.layers.rotary import RopeConfig
from radixlm.models.config_fields import Count, Fields, Flag, Number, Size, read
from radixlm.models.hf_config import HFConfig
from radixlm.models.traits import Experts, QueryKeyNorms, Traits

_NORMS = QueryKeyNorms(names=("query_layernorm.weight", "key_layernorm.weight"), after=True)


class _Alpha(Fields):
    alpha: Number | None = None


class HunYuanDenseV1(HFConfig):
    """A `dynamic` rope with an alpha has one base for all lengths."""

    attention_bias: Flag

    def traits(self) -> Traits:
        return Traits(self.attention_bias, self.attention_bias, qk_norm=_NORMS)

    def ropes(self, rope: RopeConfig) -> tuple[RopeConfig | None, ...]:
        given = self.rope_scaling or self.rope_parameters
        if given is None or (given.rope_type or given.type) != "dynamic":
            return ()
        alpha = read(_Alpha, given.model_extra).alpha
        size = self.head_dim or self.hidden_size // self.num_attention_heads
        if alpha is None or size <= 2:
            return ()
        theta = rope.theta * alpha ** (size / (size - 2))
        return (replace(rope, theta=theta),) * self.num_hidden_layers


def _one(given: Any) -> Any:
    """The number that all layers have, of a list with each one's."""
    return given[0] if isinstance(given, list) and len(set(map(str, given))) == 1 else given


class HunYuanMoEV1(HunYuanDenseV1):
    """Hunyuan-A13B: one more expert is for all tokens."""

    num_experts: Annotated[Count, BeforeValidator(_one)] = 1
    num_experts_per_tok: Annotated[Size, BeforeValidator(_one)] = Field(
        1, validation_alias=AliasChoices("moe_topk", "num_experts_per_tok")
    )

    def traits(self) -> Traits:
        experts = Experts(
            self.num_experts,
            self.num_experts_per_tok,
            self.intermediate_size,
            renormalised=True,
            shared=self.intermediate_size,
            shared_place="shared_mlp",
            shared_gate="",
            routing=GroupedRouting(),
            router="gate.wg",
        )
        return super().traits()._replace(experts=experts)
