"""StableLM 2 and 3B: LayerNorm, a quarter of each head turns; some have attention and MLP parallel,
some a norm for each head of queries and keys.
"""

from __future__ import annotations

from pydantic import Field

from radixlm.models.config_fields import Flag, Number
from radixlm.models.hf_config import HFConfig
from radixlm.models.traits import Norms, QueryKeyNorms, Traits

_NORMS = QueryKeyNorms("heads", ("q_layernorm.norms.{}.weight", "k_layernorm.norms.{}.weight"))


class StableLM(HFConfig):
    turns_part = True
    rms_norm_eps: Number = Field(validation_alias="layer_norm_eps")
    use_qkv_bias: Flag
    qk_layernorm: Flag
    use_parallel_residual: Flag

    def traits(self) -> Traits:
        parallel = self.use_parallel_residual
        norms = Norms(kind="layer", bias=True)
        return Traits(
            qkv_bias=self.use_qkv_bias,
            qk_norm=_NORMS if self.qk_layernorm else None,
            norms=norms._replace(mlp="") if parallel else norms,
            parallel=parallel,
        )
