"""gpt-oss: a sink in each head, windows in every other layer, experts with biases whose gates are
clamped.
"""

from __future__ import annotations

from radixlm.layers.mlps import Clamped
from radixlm.models.config_fields import Flag, Number, Size
from radixlm.models.families.windowed import Kinds, windowed_of
from radixlm.models.hf_config import HFConfig
from radixlm.models.traits import Experts, Traits


class GptOss(HFConfig):
    """The chosen experts' weights are a softmax over their scores alone, which is a softmax over
    all, renormalised.
    """

    attention_bias: Flag
    sliding_window: Size
    layer_types: Kinds = None
    num_experts_per_tok: Size
    swiglu_alpha: Number
    swiglu_limit: Number

    def traits(self) -> Traits:
        windowed = windowed_of(self, self.layer_types, 2)
        experts = Experts(
            self.num_experts,
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
            sinks=frozenset(range(self.num_hidden_layers)),
        )
