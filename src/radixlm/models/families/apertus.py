"""Apertus: Llama with xIELU and no gate, and a norm for each head of queries and keys."""

from __future__ import annotations

from radixlm.models.config_fields import Flag, Number
from radixlm.models.hf_config import HFConfig, RopeFields
from radixlm.models.traits import Norms, QueryKeyNorms, Traits

_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 12_000_000.0,
    "factor": 8.0,
    "original_max_position_embeddings": 8192,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
}


class Apertus(HFConfig):
    activations = ("xielu",)
    attention_bias: Flag = False
    rms_norm_eps: Number = 1e-5
    rope_theta: Number = 12_000_000.0
    rope_parameters: RopeFields | None = RopeFields.model_validate(_ROPE)

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
