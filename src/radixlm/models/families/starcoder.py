"""StarCoder2: LayerNorm, biases everywhere, an MLP without a gate."""

from __future__ import annotations

from pydantic import Field

from radixlm.models.config_fields import Flag, Number, Size
from radixlm.models.hf_config import HFConfig
from radixlm.models.traits import Norms, Traits


class Starcoder2(HFConfig):
    activations = ("gelu_pytorch_tanh",)
    rms_norm_eps: Number = Field(validation_alias="norm_epsilon")
    use_bias: Flag
    sliding_window: Size | None = None

    def traits(self) -> Traits:
        bias = self.use_bias
        return Traits(
            bias,
            bias,
            bias,
            windows=(self.sliding_window,) * self.num_hidden_layers,
            norms=Norms(kind="layer", bias=True),
            gate_up=("c_fc",),
            down="c_proj",
            gated=False,
            activation="gelu_tanh",
        )
