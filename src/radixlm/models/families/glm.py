"""GLM-4: half of each head turns, neighbours together; one tensor for gate and up."""

from __future__ import annotations

from radixlm.models.config_fields import Flag
from radixlm.models.hf_config import HFConfig
from radixlm.models.traits import Norms, Traits


class Glm(HFConfig):
    """GLM-4 9B, GLM-Edge. The flag is for q, k and v alone."""

    turns_part = True
    attention_bias: Flag

    def traits(self) -> Traits:
        return Traits(qkv_bias=self.attention_bias, gate_up=("gate_up_proj",), interleaved=True)


class Glm4(Glm):
    """GLM-4-0414: what attention and MLP give is normed, too."""

    def traits(self) -> Traits:
        norms = Norms(after_attention="post_self_attn_layernorm", after_mlp="post_mlp_layernorm")
        return super().traits()._replace(norms=norms)


class Glm4V(Glm4):
    """GLM-4.1V's text: whose q, k and v always have biases."""

    attention_bias: Flag = True


class GlmOcr(Glm4):
    """GLM-OCR's text: whose q, k and v never have any."""

    attention_bias: Flag = False
