"""MiMo V2 Flash: heads of values smaller than those of keys; layers with a window have sinks and
more heads of keys; DeepSeek V3's experts, none of them for all tokens.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AliasChoices, Field

from radixlm.layers.rotary import RopeConfig
from radixlm.memory.pools import LayerShape
from radixlm.models.config_fields import Count, Flag, Number, Size, supported, unsupported
from radixlm.models.families.grouped_experts import SIGMOIDS, GroupedExperts
from radixlm.models.families.windowed import TwoRopes, windowed_of
from radixlm.models.traits import Traits

_Kinds = Annotated[list[Literal["dense", "sparse"]] | None, supported("dense and sparse")]
_LOCAL = AliasChoices("rope_local_base_freq", "swa_rope_theta")
_Pattern = Annotated[list[Literal[0, 1]] | None, supported("a list of 0 and 1")]


class MiMoV2Flash(GroupedExperts, TwoRopes):
    """`hybrid_layer_pattern`, `moe_layer_freq`: published configs' names of `layer_types` and
    `mlp_layer_types`; their `sliding_window_size` leaves the token itself out.
    """

    turns_part = True
    attention_bias: Flag
    head_dim: Size
    v_head_dim: Size
    attention_value_scale: Number | None = None
    n_shared_experts: Count = 0
    mlp_layer_types: _Kinds = None
    hybrid_layer_pattern: _Pattern = None
    moe_layer_freq: _Pattern = None
    sliding_window_size: Size | None = None
    swa_num_key_value_heads: Size | None = None
    rope_local_base_freq: Number = Field(validation_alias=_LOCAL)

    def _windowed(self) -> list[bool]:
        if self.layer_types is not None:
            return windowed_of(self, self.layer_types, 6)
        if self.hybrid_layer_pattern is not None:
            return self._of_layers("hybrid_layer_pattern", self.hybrid_layer_pattern, 1)
        return [layer > 0 and its for layer, its in enumerate(windowed_of(self, None, 6))]

    def sparse(self) -> tuple[bool, ...]:
        if self.mlp_layer_types is not None:
            return tuple(self._of_layers("mlp_layer_types", self.mlp_layer_types, "sparse"))
        if self.moe_layer_freq is not None:
            return tuple(self._of_layers("moe_layer_freq", self.moe_layer_freq, 1))
        return tuple(layer > 0 for layer in range(self.num_hidden_layers))

    def _of_layers(
        self, field: str, given: list[Literal[0, 1]] | list[Literal["dense", "sparse"]], one: object
    ) -> list[bool]:
        if len(given) != self.num_hidden_layers:
            raise unsupported(field, given, f"one for each of {self.num_hidden_layers} layers")
        return [each == one for each in given]

    def traits(self) -> Traits:
        windowed, size = self._windowed(), self.v_head_dim
        if size > self.head_dim:
            raise unsupported("v_head_dim", size, f"up to head_dim, {self.head_dim}")
        heads = self.num_key_value_heads or self.num_attention_heads
        window, more = self.sliding_window, self.swa_num_key_value_heads or 2 * heads
        if self.sliding_window_size is not None:
            window = self.sliding_window_size + 1
        return Traits(
            qkv_bias=self.attention_bias,
            windows=tuple(window if its else None for its in windowed),
            shapes=tuple(LayerShape(more if its else heads, self.head_dim) for its in windowed),
            value_dim=0 if size == self.head_dim else size,
            values=self.attention_value_scale or 1.0,
            sinks=frozenset(layer for layer, its in enumerate(windowed) if its),
            sinks_name="attention_sink_bias",
            experts=self.experts(self.grouped(SIGMOIDS)),
            spare=("model.mtp.",),
        )

    def ropes(self, rope: RopeConfig) -> tuple[RopeConfig | None, ...]:
        return self.two_ropes(rope, self._windowed(), self.rope_local_base_freq)
