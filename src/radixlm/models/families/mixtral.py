"""Mixtral: Mistral with experts in place of the MLP."""

from __future__ import annotations

from radixlm.models.config_fields import Size
from radixlm.models.hf_config import HFConfig
from radixlm.models.traits import Experts, Traits


class ChosenExperts(HFConfig):
    """Experts by Mixtral's fields and names."""

    num_experts_per_tok: Size

    def experts(self) -> Experts:
        return Experts(
            self.num_experts,
            self.num_experts_per_tok,
            self.intermediate_size,
            renormalised=True,
            gate_up=("experts.{}.w1", "experts.{}.w3"),
            down="experts.{}.w2",
        )


class Mixtral(ChosenExperts):
    sliding_window: Size | None = None

    def traits(self) -> Traits:
        windows = (self.sliding_window,) * self.num_hidden_layers
        return Traits(windows=windows, mlp="block_sparse_moe", experts=self.experts())
