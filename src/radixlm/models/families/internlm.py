"""InternLM 3: Llama whose biases have flags of other names."""

from __future__ import annotations

from pydantic import AliasChoices, Field

from radixlm.models.config_fields import Flag
from radixlm.models.hf_config import HFConfig
from radixlm.models.traits import Traits


class InternLM3(HFConfig):
    """`bias` is for the output of attention and the MLP."""

    qkv_bias: Flag = Field(validation_alias=AliasChoices("qkv_bias", "attention_bias"))
    bias: Flag = Field(validation_alias=AliasChoices("bias", "mlp_bias"))

    def traits(self) -> Traits:
        return Traits(self.qkv_bias, self.bias, self.bias)
