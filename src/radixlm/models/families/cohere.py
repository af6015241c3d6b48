"""Cohere's Command R: LayerNorm without bias, attention and MLP parallel, neighbours turn together,
logits are multiplied.
"""

from __future__ import annotations

from pydantic import Field

from radixlm.models.config_fields import Flag, Number
from radixlm.models.hf_config import HFConfig
from radixlm.models.traits import Norms, QueryKeyNorms, Traits


class Cohere(HFConfig):
    """Command R+ norms queries and keys, with a weight for each head."""

    rms_norm_eps: Number = Field(1e-5, validation_alias="layer_norm_eps")
    attention_bias: Flag = False
    use_qk_norm: Flag = False
    logit_scale: Number = 0.0625
    tie_word_embeddings: Flag = True

    def traits(self) -> Traits:
        bias = self.attention_bias
        return Traits(
            bias,
            bias,
            qk_norm=QueryKeyNorms("heads") if self.use_qk_norm else None,
            norms=Norms(mlp="", kind="layer"),
            interleaved=True,
            parallel=True,
            logits=self.logit_scale,
        )
