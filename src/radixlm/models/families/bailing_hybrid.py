"""Ling 3: Kimi Delta Attention in most layers, with bounded decays; DeepSeek's latents with a gate
for each head in the others; DeepSeek-V3's experts.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import AliasChoices, Field

from radixlm.layers.kimi_delta import KimiSizes
from radixlm.models.config_fields import Flag, Size, supported
from radixlm.models.families.kimi_linear import KimiNames
from radixlm.models.families.mamba_hybrids import ConvWidth, mixers_of
from radixlm.models.traits import Traits

_Bound = Annotated[float, Field(strict=True, ge=-80, lt=0), supported("from -80 to below 0")]


class BailingHybrid(KimiNames):
    """The last layer of each group has attention."""

    rope_interleave: Flag = True
    linear_head_dim: Size | None = None
    linear_conv_kernel_dim: ConvWidth = Field(
        validation_alias=AliasChoices("short_conv_kernel_size", "linear_conv_kernel_dim")
    )
    layer_group_size: Size
    kda_safe_gate: Flag
    kda_lower_bound: _Bound

    def traits(self) -> Traits:
        every, layers = self.layer_group_size, range(1, self.num_hidden_layers + 1)
        usual = ["linear_attention" if n % every else "full_attention" for n in layers]
        head = self.linear_head_dim or self.head_dim or 128
        sizes = self.num_attention_heads, head, self.linear_conv_kernel_dim
        least = self.kda_lower_bound if self.kda_safe_gate else 0.0
        return (
            super()
            .traits()
            ._replace(
                head_gates="g_proj",
                state=KimiSizes(*sizes, whole=True, least=least),
                mixers=mixers_of(self, "layer_types", self.layer_types or usual),
                renamed=(
                    (r"^model\.word_embeddings\.", "model.embed_tokens."),
                    (r"\.attention\.", ".self_attn."),
                    (r"\.self_attn\.forget_gate\.", ".self_attn."),
                    (r"\.self_attn\.dense\.", ".self_attn.o_proj."),
                    (r"\.mlp\.gate\.expert_bias$", ".mlp.gate.e_score_correction_bias"),
                ),
            )
        )
