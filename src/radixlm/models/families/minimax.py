"""MiniMax M2: Mixtral with sigmoids that choose, a norm over all heads; a part of each head
turns.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import model_validator

from radixlm.layers.grouped_router import GroupedRouting
from radixlm.models.config_fields import Size
from radixlm.models.hf_config import HFConfig
from radixlm.models.traits import Experts, QueryKeyNorms, Traits


class MiniMaxM2(HFConfig):
    """Published configs have the dimensions that turn as `rotary_dim`."""

    turns_part = True
    num_experts_per_tok: Size

    @model_validator(mode="before")
    @classmethod
    def _share(cls, values: Any) -> Any:
        turned = values.get("rotary_dim") if isinstance(values, Mapping) else None
        if not isinstance(turned, int):
            return values
        size = values.get("head_dim") or 128
        return {"partial_rotary_factor": turned / size, **values}

    def traits(self) -> Traits:
        experts = Experts(
            self.num_experts,
            self.num_experts_per_tok,
            self.intermediate_size,
            renormalised=True,
            routing=GroupedRouting("sigmoid", "e_score_correction_bias"),
            gate_up=("experts.{}.w1", "experts.{}.w3"),
            down="experts.{}.w2",
        )
        return Traits(qk_norm=QueryKeyNorms("row"), mlp="block_sparse_moe", experts=experts)
