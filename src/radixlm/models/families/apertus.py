"""Apertus: Llama with xIELU and no gate, and a norm for each head of queries and keys."""

from __future__ import annotations

from radixlm.models.config_fields import Flag
from radixlm.models.hf_config import HFConfig
from radixlm.models.traits import Norms, QueryKeyNorms, Traits


class Apertus(HFConfig):
    activations = ("xielu",)
    attention_bias: Flag

    def traits(self) -> Traits:
        bias = self.attention_bias
        return Traits(
            bias,
            bias,
            qk_norm=QueryKeyNorms(),
            norms=Norms("attention_layernorm", "", "feedforward_layernorm"),
            gate_up=("up_proj",),
            gated=False,
            activation="xielu",
        )
