"""Mistral's later models: contexts stretched by YaRN, queries that grow with their position."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import model_validator

from radixlm.layers.grouped_router import GroupedRouting
from radixlm.models.config_fields import Flag
from radixlm.models.families.deepseek import Latents
from radixlm.models.families.llama import Mistral
from radixlm.models.traits import Traits

_SHARE = "partial_rotary_factor"


class Ministral3(Mistral):
    """Ministral 3, Devstral 2."""


class Mistral4(Latents):
    """Mistral Small 4: DeepSeek's latents; the weights of experts are parts of a softmax."""

    rope_interleave: Flag

    @model_validator(mode="before")
    @classmethod
    def _without_share(cls, values: Any) -> Any:
        """Their config says which part of a head turns, which its two sizes say already."""
        if not isinstance(values, Mapping):
            return values
        made = {name: its for name, its in values.items() if name != _SHARE}
        for rope in ("rope_parameters", "rope_scaling"):
            if isinstance(given := made.get(rope), Mapping):
                made[rope] = {name: its for name, its in given.items() if name != _SHARE}
        return made

    def traits(self) -> Traits:
        experts = self.experts(self.grouped(GroupedRouting(best=2)))._replace(
            gate_up=("experts.gate_up_proj.{}",), down="experts.down_proj.{}", stacked="rows"
        )
        return self.latent_traits(experts, interleaved=self.rope_interleave)
