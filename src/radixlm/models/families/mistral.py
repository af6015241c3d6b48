"""Mistral's later models: contexts stretched by YaRN, queries that grow with their position."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import model_validator

from radixlm.layers.grouped_router import GroupedRouting
from radixlm.models.config_fields import Count, Flag, Number, Size
from radixlm.models.families.deepseek import Latents
from radixlm.models.families.llama import Mistral
from radixlm.models.hf_config import RopeFields
from radixlm.models.traits import Traits

_ROPE = {
    "rope_type": "yarn",
    "rope_theta": 1_000_000.0,
    "factor": 16.0,
    "original_max_position_embeddings": 16_384,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
    "llama_4_scaling_beta": 0.1,
}
_ROPE_4 = {"rope_theta": 10_000.0, "factor": 128.0, "original_max_position_embeddings": 8_192}


class Ministral3(Mistral):
    """Ministral 3, Devstral 2."""

    head_dim: Size = 128
    rms_norm_eps: Number = 1e-5
    rope_parameters: RopeFields | None = RopeFields.model_validate(_ROPE)
    sliding_window: Size | None = None


class Mistral4(Latents):
    """Mistral Small 4: DeepSeek's latents; the weights of experts are parts of a softmax."""

    q_lora_rank: Size | None = 1024
    kv_lora_rank: Size = 256
    qk_nope_head_dim: Size = 64
    n_routed_experts: Count = 128
    num_experts_per_tok: Size = 4
    rope_interleave: Flag = True
    rope_parameters: RopeFields | None = RopeFields.model_validate(_ROPE | _ROPE_4)

    @model_validator(mode="before")
    @classmethod
    def _without_share(cls, values: Any) -> Any:
        """Their config says which part of a head turns, which its two sizes say already."""
        given = values.get("rope_parameters") if isinstance(values, Mapping) else None
        if not isinstance(given, Mapping):
            return values
        others = {name: its for name, its in given.items() if name != "partial_rotary_factor"}
        return {**values, "rope_parameters": others}

    def traits(self) -> Traits:
        experts = self.experts(self.grouped(GroupedRouting(best=2)))._replace(
            gate_up=("experts.gate_up_proj.{}",), down="experts.down_proj.{}", stacked="rows"
        )
        return self.latent_traits(experts, interleaved=self.rope_interleave)
