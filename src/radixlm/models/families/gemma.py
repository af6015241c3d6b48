"""Gemma 1 to 3: norms store their weight less 1, the gate is a gelu, embeddings are multiplied."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from radixlm.layers.rotary import RopeConfig
from radixlm.models.config_fields import Flag, Number, Size, supported
from radixlm.models.families.windowed import Kinds, TwoRopes, windowed_of
from radixlm.models.hf_config import HFConfig
from radixlm.models.traits import Norms, QueryKeyNorms, Traits

_Activation = Annotated[Literal["gelu_pytorch_tanh"], supported("gelu_pytorch_tanh")]


class Gemma(HFConfig):
    """Old configs say gelu; the models were trained with its approximation by tanh."""

    activations = ("gelu_pytorch_tanh", "gelu")
    attention_bias: Flag
    use_bidirectional_attention: Annotated[
        Literal[False] | None, supported("false: an answer has no tokens to come")
    ] = None

    def traits(self) -> Traits:
        return Traits(
            self.attention_bias,
            self.attention_bias,
            norms=Norms(base=1.0),
            activation="gelu_tanh",
            embedding=self.hidden_size**0.5,
        )


def _wrapped(traits: Traits) -> Traits:
    """Traits with norms after attention and the MLP, too."""
    after = ("post_attention_layernorm", "pre_feedforward_layernorm", "post_feedforward_layernorm")
    return traits._replace(norms=Norms("input_layernorm", *after, base=1.0))


class Gemma2(Gemma):
    """Scores and logits have caps, every other layer from the first a window."""

    sliding_window: Size
    layer_types: Kinds = None
    query_pre_attn_scalar: Number
    attn_logit_softcapping: Number | None = None
    final_logit_softcapping: Number | None = None
    hidden_activation: _Activation

    def traits(self) -> Traits:
        windowed = windowed_of(self, self.layer_types, 2)
        return _wrapped(super().traits())._replace(
            attention=self.query_pre_attn_scalar**-0.5,
            windows=tuple(self.sliding_window if its else None for its in windowed),
            score_cap=self.attn_logit_softcapping or 0.0,
            logits_cap=self.final_logit_softcapping or 0.0,
        )


class Gemma3(TwoRopes, Gemma):
    """Gemma 3's text: a norm for each head of queries and keys, norms before and after attention
    and the MLP. Five of six layers have the window, and a base of their own.
    """

    is_stretched: ClassVar[bool] = True
    sliding_window_pattern: Size = 6
    rope_local_base_freq: Number
    query_pre_attn_scalar: Number
    attn_logit_softcapping: Annotated[None, supported("null")] = None
    final_logit_softcapping: Annotated[None, supported("null")] = None
    hidden_activation: _Activation

    def _windowed(self) -> list[bool]:
        return windowed_of(self, self.layer_types, self.sliding_window_pattern)

    def traits(self) -> Traits:
        return _wrapped(Gemma.traits(self))._replace(
            qk_norm=QueryKeyNorms(),
            attention=self.query_pre_attn_scalar**-0.5,
            windows=tuple(self.sliding_window if w else None for w in self._windowed()),
        )

    def ropes(self, rope: RopeConfig) -> tuple[RopeConfig | None, ...]:
        return self.two_ropes(rope, self._windowed(), self.rope_local_base_freq)
