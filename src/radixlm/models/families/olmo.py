"""OLMo 2: norms after attention and MLP, none before; queries and keys are normed as whole rows."""

from __future__ import annotations

from radixlm.models.config_fields import Flag, Number
from radixlm.models.hf_config import HFConfig
from radixlm.models.traits import Norms, QueryKeyNorms, Traits


class Olmo2(HFConfig):
    attention_bias: Flag = False
    rms_norm_eps: Number = 1e-5

    def traits(self) -> Traits:
        norms = Norms("", "post_attention_layernorm", "", "post_feedforward_layernorm")
        bias = self.attention_bias
        return Traits(bias, bias, qk_norm=QueryKeyNorms("row"), norms=norms)
