"""gpt-oss: a sink in each head, windows in every other layer, experts with biases whose gates are
clamped.
"""

from __future__ import annotations

from radixlm.layers.mlps import Clamped
from radixlm.models.config_fields import Flag, Number, Size
from radixlm.models.families.windowed import Kinds, windowed_of
from radixlm.models.hf_config import HFConfig, RopeFields
from radixlm.models.traits import Experts, Traits

_ROPE = {
    "rope_type": "yarn",
    "factor": 32.0,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "truncate": False,
    "original_max_position_embeddings": 4096,
}


class GptOss(HFConfig):
    """The chosen experts' weights are a softmax over their scores alone, which is a softmax over
    all, renormalised.
    """

    attention_bias: Flag = True
    head_dim: Size = 64
    rms_norm_eps: Number = 1e-5
    rope_theta: Number = 150_000.0
    rope_parameters: RopeFields | None = RopeFields.model_validate(_ROPE)
    sliding_window: Size = 128
    layer_types: Kinds = None
    num_experts_per_tok: Size = 4
    swiglu_alpha: Number = 1.702
    swiglu_limit: Number = 7.0

    def traits(self) -> Traits:
        windowed = windowed_of(self, self.layer_types, 2)
        experts = Experts(
            self.num_local_experts or self.num_experts or 128,
            self.num_experts_per_tok,
            self.intermediate_size,
            renormalised=True,
            router="router",
            gate_up=("experts.gate_up_proj.{}",),
            down="experts.down_proj.{}",
            bias=True,
            stacked="columns",
            paired=True,
        )
        return Traits(
            self.attention_bias,
            self.attention_bias,
            activation=Clamped(self.swiglu_alpha, self.swiglu_limit),
            windows=tuple(self.sliding_window if its else None for its in windowed),
            experts=experts,
            sinks=True,
        )
