"""LFM3: LFM2 with a window in some layers, gates of heads, norms after as well as before."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from radixlm.layers.rotary import RopeConfig
from radixlm.layers.short_conv import ConvSizes
from radixlm.models.config_fields import Flag, Number, supported
from radixlm.models.families.mamba_hybrids import ConvWidth, Never, mixers_of
from radixlm.models.families.windowed import TwoRopes
from radixlm.models.traits import Norms, QueryKeyNorms, Traits

_Kinds = Annotated[
    list[Literal["conv", "full_attention", "sliding_attention"]] | None,
    supported("conv, full_attention and sliding_attention"),
]


class Lfm3(TwoRopes):
    """Layers with a window turn by another base than those without."""

    rms_norm_eps: Number = Field(validation_alias="norm_eps")
    conv_bias: Flag
    width: ConvWidth = Field(validation_alias="conv_L_cache")
    layer_types: _Kinds = None  # type: ignore[assignment]
    use_sandwich_norm: Flag
    use_attention_gate: Flag
    attention_bias: Never = False
    rope_local_base_freq: Number = 10_000.0

    def _kinds(self) -> list[Any]:
        if self.layer_types is not None:
            return self.layer_types
        usual = {0: "sliding_attention", 2: "full_attention"}
        return ["conv", *(usual.get(n % 4, "conv") for n in range(1, self.num_hidden_layers))]

    def traits(self) -> Traits:
        kinds, window = self._kinds(), self.sliding_window
        after = ("post_operator_norm", "post_ffn_norm") if self.use_sandwich_norm else ("", "")
        norms = Norms("operator_norm", after[0], "ffn_norm", after[1], last="embedding_norm")
        return Traits(
            qk_norm=QueryKeyNorms(),
            norms=norms,
            mlp="feed_forward",
            gate_up=("w1", "w3"),
            down="w2",
            state=ConvSizes(self.hidden_size, self.width, self.conv_bias),
            mixers=mixers_of(self, "layer_types", kinds),
            windows=tuple(window if kind == "sliding_attention" else None for kind in kinds),
            head_gates="gate_proj" if self.use_attention_gate else "",
            renamed=((r"\.self_attn\.g_proj\.", ".self_attn.gate_proj."),),
        )

    def ropes(self, rope: RopeConfig) -> tuple[RopeConfig | None, ...]:
        windowed = [kind == "sliding_attention" for kind in self._kinds()]
        return self.two_ropes(rope, windowed, self.rope_local_base_freq)
