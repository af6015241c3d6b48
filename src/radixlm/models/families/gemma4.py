"""Gemma 4's text: heads of another size, and number, in layers without a window; some of the last
layers read the keys and values of earlier ones; tokens have inputs for each layer.
"""

from __future__ import annotations

from typing import Annotated, Literal

from radixlm.layers.rotary import RopeConfig
from radixlm.memory.pools import LayerShape
from radixlm.models.config_fields import (
    Count,
    Fields,
    Flag,
    Number,
    Size,
    read,
    supported,
    unsupported,
)
from radixlm.models.families.windowed import TwoRopes, windowed_of
from radixlm.models.traits import Experts, Norms, QueryKeyNorms, Traits

_OF_OTHERS = ("k_proj", "v_proj", "k_norm")


class _LayerFields(Fields):
    """Fields that transformers writes of a layer that differs."""

    head_dim: Size | None = None
    num_key_value_heads: Size | None = None


class _ExpertFields(Fields):
    top_k_experts: Size
    moe_intermediate_size: Size


class Gemma4(TwoRopes):
    """Inputs of each layer, and experts beside the MLP, are in some sizes only."""

    activations = ("gelu_pytorch_tanh",)
    attention_bias: Flag
    head_dim: Size
    global_head_dim: Size = 512
    num_global_key_value_heads: Size | None = None
    per_layer_config: dict[int, _LayerFields] | None = None
    rope_local_base_freq: Number
    attention_k_eq_v: Flag
    num_kv_shared_layers: Count
    use_double_wide_mlp: Flag
    hidden_size_per_layer_input: Count
    vocab_size_per_layer_input: Size
    enable_moe_block: Flag
    final_logit_softcapping: Number | None = None
    hidden_activation: Annotated[Literal["gelu_pytorch_tanh"], supported("gelu_pytorch_tanh")]
    use_bidirectional_attention: Annotated[
        Literal["vision"] | None, supported("vision: a text has no tokens to come")
    ] = None

    def _windowed(self) -> list[bool]:
        return [*windowed_of(self, self.layer_types, 6)[:-1], False]

    def _shapes(self) -> tuple[LayerShape, ...]:
        """Heads of each layer; the last layers read the last one of their kind before them."""
        windowed, made = self._windowed(), list[LayerShape]()
        first = max(self.num_hidden_layers - self.num_kv_shared_layers, 0)
        last = {its: layer for layer, its in enumerate(windowed[:first])}
        if not last.keys() >= set(windowed):
            what = "fewer layers: some of each kind keep keys and values"
            raise unsupported("num_kv_shared_layers", self.num_kv_shared_layers, what)
        for layer, its in enumerate(windowed):
            heads, source = self._heads(layer, windowed=its), last[its] if layer >= first else None
            if source is not None and heads != made[source][:2]:
                what = f"for layer {layer} those of layer {source}, whose keys it reads"
                raise unsupported("per_layer_config", heads, what)
            made.append(LayerShape(*heads, source))
        return tuple(made)

    def _heads(self, layer: int, *, windowed: bool) -> tuple[int, int]:
        own = (self.num_key_value_heads or self.num_attention_heads, self.head_dim)
        if self.per_layer_config is not None:
            its = self.per_layer_config.get(layer, _LayerFields())
            return its.num_key_value_heads or own[0], its.head_dim or own[1]
        if windowed:
            return own
        number = self.num_global_key_value_heads if self.attention_k_eq_v else None
        return number or own[0], self.global_head_dim

    def traits(self) -> Traits:
        windowed, shapes = self._windowed(), self._shapes()
        if self.hidden_size_per_layer_input and self.vocab_size_per_layer_input != self.vocab_size:
            field = "vocab_size_per_layer_input"
            raise unsupported(field, self.vocab_size_per_layer_input, f"{self.vocab_size}")
        after = "post_attention_layernorm", "pre_feedforward_layernorm"
        reads = [shape.source is not None for shape in shapes]
        sizes = self.intermediate_size, self.intermediate_size * (1 + self.use_double_wide_mlp)
        alike = frozenset(n for n, its in enumerate(windowed) if not its)
        return Traits(
            self.attention_bias,
            self.attention_bias,
            activation="gelu_tanh",
            embedding=self.hidden_size**0.5,
            norms=Norms("input_layernorm", *after, "post_feedforward_layernorm"),
            qk_norm=QueryKeyNorms(),
            attention=1.0,
            windows=tuple(self.sliding_window if its else None for its in windowed),
            logits_cap=self.final_logit_softcapping or 0.0,
            shapes=shapes,
            mlp_sizes=tuple(sizes[its] for its in reads),
            values_are_keys=alike if self.attention_k_eq_v else frozenset(),
            value_norm=True,
            layer_inputs=self.hidden_size_per_layer_input,
            layer_scale=True,
            experts=self._experts() if self.enable_moe_block else None,
            spare=tuple(
                f"model.layers.{layer}.self_attn.{name}."
                for layer, its in enumerate(reads)
                for name in _OF_OTHERS
                if its
            ),
        )

    def _experts(self) -> Experts:
        its = read(_ExpertFields, self.model_extra)
        return Experts(
            self.num_experts,
            its.top_k_experts,
            its.moe_intermediate_size,
            renormalised=True,
            router="router.proj",
            gate_up=("experts.gate_up_proj.{}",),
            down="experts.down_proj.{}",
            stacked="rows",
            beside=True,
        )

    def ropes(self, rope: RopeConfig) -> tuple[RopeConfig | None, ...]:
        return self.two_ropes(rope, self._windowed(), self.rope_local_base_freq)


class Gemma4Unified(Gemma4):
    """Gemma 4 without inputs of each layer and without experts."""

    hidden_size_per_layer_input: Annotated[Literal[0], supported("0")] = 0
    vocab_size_per_layer_input: Size = 1
    enable_moe_block: Annotated[Literal[False], supported("false")] = False
