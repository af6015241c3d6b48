"""Llama 4's text: layers that turn see chunks, the others all, with queries that grow with their
position; experts weigh what they are given.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AliasChoices, Field

from radixlm.attention.plan import ChunkSize
from radixlm.layers.grouped_router import GroupedRouting
from radixlm.layers.rotary import QueryFactors, RopeConfig
from radixlm.models.config_fields import Count, Flag, Number, Size, supported, unsupported
from radixlm.models.families.windowed import SomeTurn
from radixlm.models.traits import Experts, QueryKeyNorms, Traits

_CHUNKED = "chunked_attention"
# The first in GGUF files.
_EXPERT_SIZE = AliasChoices("moe_intermediate_size", "intermediate_size")


class Llama4(SomeTurn):
    """Scout and Maverick. `intermediate_size` is that of experts. A null as `attention_chunk_size`
    means none.
    """

    attention_bias: Flag
    intermediate_size: Size = Field(16_384, validation_alias="intermediate_size_mlp")
    expert_size: Size = Field(8_192, validation_alias=_EXPERT_SIZE)
    num_experts_per_tok: Size = 1
    moe_layers: Annotated[list[Count] | None, supported("numbers of layers, from 0")] = None
    interleave_moe_layer_step: Size = 1
    use_qk_norm: Flag = True
    attention_chunk_size: Size | None = None
    layer_types: Annotated[
        list[Literal["full_attention", "chunked_attention"]] | None,
        supported(f"full_attention and {_CHUNKED}"),
    ] = None
    attn_temperature_tuning: Annotated[bool | Count, supported("true or false")] = True
    floor_scale: Size = 8_192
    attn_scale: Number = 0.1

    def traits(self) -> Traits:
        layers, every = self.num_hidden_layers, self.interleave_moe_layer_step
        sparse = self.moe_layers
        if sparse is None:
            sparse = list(range(every - 1, layers, every))
        experts = Experts(
            self.num_experts,
            self.num_experts_per_tok,
            self.expert_size,
            renormalised=False,
            shared=self.expert_size,
            shared_gate="",
            routing=GroupedRouting("sigmoid"),
            layers=tuple(layer in sparse for layer in range(layers)),
            router="router",
            gate_up=("experts.gate_up_proj.{}",),
            down="experts.down_proj.{}",
            stacked="columns",
            weighs_inputs=True,
        )
        norms = QueryKeyNorms(names=(), after=True, layers=tuple(self.turning()))
        return Traits(
            self.attention_bias,
            self.attention_bias,
            qk_norm=norms if self.use_qk_norm else None,
            windows=self._windows(),
            mlp="feed_forward",
            experts=experts,
            interleaved=True,
        )

    def _windows(self) -> tuple[int | None, ...]:
        chunked, kinds = self.turning(), self.layer_types
        if kinds is not None:
            if len(kinds) != len(chunked):
                each = f"one for each of {len(chunked)} layers"
                raise unsupported("layer_types", kinds, each)
            chunked = [kind == _CHUNKED for kind in kinds]
        size = self.attention_chunk_size
        return tuple(ChunkSize(size) if size and its else None for its in chunked)

    def ropes(self, rope: RopeConfig) -> tuple[RopeConfig | None, ...]:
        still: RopeConfig | None = None
        if self.attn_temperature_tuning:
            factors = QueryFactors(self.attn_scale, self.floor_scale, ahead=1)
            still = RopeConfig(rope.theta, share=0.0, queries=factors)
        return tuple(rope if turns else still for turns in self.turning())
