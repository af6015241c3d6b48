"""GLM-4: half of each head turns, neighbours together; one tensor for gate and up."""

from __future__ import annotations

from radixlm.models.config_fields import Flag, Number, Size
from radixlm.models.hf_config import HFConfig
from radixlm.models.traits import Norms, Traits


class Glm(HFConfig):
    """GLM-4 9B, GLM-Edge. The flag is for q, k and v alone."""

    default_share = 0.5
    attention_bias: Flag = True
    head_dim: Size = 128
    rms_norm_eps: Number = 1.5625e-07

    def traits(self) -> Traits:
        return Traits(qkv_bias=self.attention_bias, gate_up=("gate_up_proj",), interleaved=True)


class Glm4(Glm):
    """GLM-4-0414: what attention and MLP give is normed, too."""

    def traits(self) -> Traits:
        norms = Norms(after_attention="post_self_attn_layernorm", after_mlp="post_mlp_layernorm")
        return super().traits()._replace(norms=norms)
