"""Zamba: Mamba in heads in all layers, before some of them one block of attention and an MLP."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import AliasChoices, Field

from radixlm.layers.mamba1 import Mamba1Sizes
from radixlm.layers.rotary import RopeConfig
from radixlm.models.config_fields import Count, Flag, Number, Size, supported, unsupported
from radixlm.models.families.mamba import StepRank, rank_of
from radixlm.models.families.mamba_hybrids import ConvWidth, Never
from radixlm.models.hf_config import HFConfig
from radixlm.models.traits import Mixer, Norms, SharedBlocks, Traits

BlockKinds = Annotated[
    list[Literal["mamba", "linear_attention", "hybrid"]] | None, supported("mamba and hybrid")
]
# Scores are divided by the root of half of a head's size.
BLOCK_SCORES = tuple(
    (name, ((0, math.sqrt(2)),))
    for name in ("adapters.q_up.weight", "shared.self_attn.q_proj.weight")
)
SHARED = (r"\.shared_transf(ormer)?\.", ".shared.")


def block_mixers(
    kinds: Sequence[str] | None, layers: int, usual: Sequence[int]
) -> tuple[Mixer, ...]:
    """Mixers of layers by their kinds; usual: those with a block where a config says nothing."""
    if kinds is not None and len(kinds) != layers:
        raise unsupported("layers_block_type", kinds, f"one for each of {layers} layers")
    users = usual if kinds is None else [n for n, kind in enumerate(kinds) if kind == "hybrid"]
    return tuple("both" if layer in users else "state" for layer in range(layers))


def head_dim(values: dict[str, Any]) -> int:
    """The size of a head where a config says nothing: all are as wide as two tokens."""
    return int(2 * values["hidden_size"] // values["num_attention_heads"])


class Zamba(HFConfig):
    """Each channel's value is projected beside its gate."""

    activations = ("gelu",)
    head_dim: Size = Field(default_factory=head_dim, validation_alias="attention_head_dim")
    layers_block_type: BlockKinds = Field(
        None, validation_alias=AliasChoices("layers_block_type", "layer_types")
    )
    tie_word_embeddings: Flag
    rope_theta: Number = 10_000.0  # nothing turns
    attn_layer_period: Size
    attn_layer_offset: Count
    hidden_mamba_act: Annotated[Literal["silu"], supported("silu")] = "silu"
    n_mamba_heads: Size
    mamba_d_state: Size
    mamba_d_conv: ConvWidth
    mamba_expand: Size
    mamba_dt_rank: StepRank
    mamba_conv_bias: Flag
    mamba_proj_bias: Never = False

    def traits(self) -> Traits:
        every, first = self.attn_layer_period, self.attn_layer_offset
        users = [2, *(n + 3 for n in range(self.num_hidden_layers - 3) if n % every == first)]
        inner, heads = self.mamba_expand * self.hidden_size, self.n_mamba_heads
        if inner % heads:
            raise unsupported("n_mamba_heads", heads, f"a divisor of {inner}")
        rank, width = rank_of(self.mamba_dt_rank, self.hidden_size), self.mamba_d_conv
        biases = self.mamba_proj_bias, self.mamba_conv_bias
        mixers = block_mixers(self.layers_block_type, self.num_hidden_layers, users)
        return Traits(
            norms=Norms(last="final_layernorm"),
            activation="gelu",
            state=Mamba1Sizes(inner, self.mamba_d_state, rank, width, *biases, heads=heads),
            mixers=mixers,
            mlps=(False,) * len(mixers),
            shared=SharedBlocks(1),
            factors=BLOCK_SCORES,
            renamed=((r"\.mamba_decoder\.", "."), SHARED),
        )

    def ropes(self, rope: RopeConfig) -> tuple[RopeConfig | None, ...]:  # noqa: ARG002
        return (None,) * self.num_hidden_layers
