"""MiniMax: Mixtral with sigmoids that choose and a norm over all heads (M2); with lightning
attention in most layers, and what is normed goes on (Text-01). A part of each head turns.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import model_validator

from radixlm.layers.grouped_router import GroupedRouting
from radixlm.layers.lightning import LightningSizes
from radixlm.models.config_fields import Number
from radixlm.models.families.mamba_hybrids import mixers_of
from radixlm.models.families.mixtral import ChosenExperts, Mixtral
from radixlm.models.families.qwen_next import Kinds
from radixlm.models.hf_config import HFConfig
from radixlm.models.traits import Experts, Norms, QueryKeyNorms, Traits


class TurnedPart(HFConfig):
    """Published configs have the dimensions that turn as `rotary_dim`."""

    turns_part = True

    @model_validator(mode="before")
    @classmethod
    def _share(cls, values: Any) -> Any:
        if not isinstance(values, Mapping):
            return values
        turned, size = values.get("rotary_dim"), values.get("head_dim") or 128
        if not (isinstance(turned, int) and isinstance(size, int)):
            return values
        return {"partial_rotary_factor": turned / size, **values}


class MiniMaxM2(TurnedPart, ChosenExperts):
    """All layers have attention."""

    def traits(self) -> Traits:
        routing = GroupedRouting("sigmoid", "e_score_correction_bias")
        experts = self.experts()._replace(routing=routing)
        return Traits(qk_norm=QueryKeyNorms("row"), mlp="block_sparse_moe", experts=experts)


class MiniMaxText(TurnedPart, Mixtral):
    """Alpha multiplies what is normed, beta what attention, a state or experts add to it."""

    layer_types: Kinds = None
    full_attn_alpha_factor: Number
    full_attn_beta_factor: Number
    linear_attn_alpha_factor: Number
    linear_attn_beta_factor: Number
    mlp_alpha_factor: Number
    mlp_beta_factor: Number

    def experts(self) -> Experts:
        return super().experts()._replace(scale=self.mlp_beta_factor)

    def traits(self) -> Traits:
        layers, heads = self.num_hidden_layers, self.num_attention_heads
        usual = (["full_attention", "linear_attention"] * layers)[:layers]
        mixers = mixers_of(self, "layer_types", self.layer_types or usual)
        full, linear = self.full_attn_alpha_factor, self.linear_attn_alpha_factor
        betas = {"o_proj": self.full_attn_beta_factor, "out_proj": self.linear_attn_beta_factor}
        return (
            super()
            .traits()
            ._replace(
                state=LightningSizes(heads, self.head_dim or self.hidden_size // heads, layers),
                mixers=mixers,
                norms=Norms(kept=(full, self.mlp_alpha_factor)),
                state_norms=Norms(kept=(linear, self.mlp_alpha_factor)),
                factors=tuple((f"self_attn.{n}.weight", ((0, its),)) for n, its in betas.items()),
            )
        )
