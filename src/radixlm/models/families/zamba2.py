"""Zamba2: Mamba-2 in all layers, before some of them one of few blocks of attention and an MLP."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Literal

from pydantic import AliasChoices, Field

from radixlm.layers.mamba2 import MambaSizes
from radixlm.layers.rotary import RopeConfig
from radixlm.models.config_fields import Flag, Number, Size, supported, unsupported
from radixlm.models.families.mamba_hybrids import ConvWidth, Never, mamba_sizes
from radixlm.models.hf_config import HFConfig
from radixlm.models.traits import Norms, SharedBlocks, Traits

_Kinds = Annotated[
    list[Literal["mamba", "linear_attention", "hybrid"]] | None, supported("mamba and hybrid")
]
# Layers of the 2.7B with a block.
_USUAL = (*range(6, 43, 6), 47, 51)


def _head_dim(values: dict[str, Any]) -> int:
    """A block's input is as wide as two tokens."""
    return int(2 * values["hidden_size"] // values["num_attention_heads"])


class Zamba2(HFConfig):
    """Each layer has adapters of its block's products. `time_step_min` is how steps were
    initialised; transformers holds those of prompts to it, and not those of later tokens.
    """

    activations = ("gelu",)
    intermediate_size: Size = Field(default_factory=lambda values: 4 * values["hidden_size"])
    head_dim: Size = Field(default_factory=_head_dim, validation_alias="attention_head_dim")
    layers_block_type: _Kinds = Field(
        None, validation_alias=AliasChoices("layers_block_type", "layer_types")
    )
    tie_word_embeddings: Flag
    mamba_d_state: Size
    mamba_d_conv: ConvWidth
    mamba_expand: Size
    mamba_ngroups: Size
    n_mamba_heads: Size
    add_bias_linear: Flag
    num_mem_blocks: Size
    use_shared_attention_adapter: Flag
    adapter_rank: Size
    use_mem_rope: Flag
    rope_theta: Number = 10_000.0
    use_long_context: Never = False

    def traits(self) -> Traits:
        kinds, bias = self._kinds(), self.add_bias_linear
        if len(kinds) != self.num_hidden_layers:
            each = f"one for each of {self.num_hidden_layers} layers"
            raise unsupported("layers_block_type", kinds, each)
        inner, heads = self.mamba_expand * self.hidden_size, self.n_mamba_heads
        if inner % heads:
            raise unsupported("n_mamba_heads", heads, f"a divisor of {inner}")
        sizes = heads, inner // heads, self.mamba_ngroups, self.mamba_d_state, self.mamba_d_conv
        scale = "adapters.q_up.weight", "shared.self_attn.q_proj.weight"
        return Traits(
            mlp_bias=bias,
            norms=Norms(last="final_layernorm"),
            gate_up=("gate_up_proj",),
            activation="gelu",
            state=mamba_sizes(MambaSizes(*sizes, bias, conv_bias=True, eps=1e-5), "mamba_ngroups"),
            mixers=tuple("both" if kind == "hybrid" else "state" for kind in kinds),
            mlps=(False,) * len(kinds),
            shared=SharedBlocks(
                self.num_mem_blocks, self.adapter_rank, self.use_shared_attention_adapter
            ),
            # Scores are divided by the root of half of a head's size.
            factors=tuple((name, ((0, math.sqrt(2)),)) for name in scale),
            renamed=((r"\.mamba_decoder\.", "."), *self._adapters(), SHARED),
        )

    def _kinds(self) -> Sequence[str]:
        usual = (n in _USUAL for n in range(self.num_hidden_layers))
        return self.layers_block_type or ["hybrid" if its else "mamba" for its in usual]

    def _adapters(self) -> Iterator[tuple[str, str]]:
        """Name adapters by layers; in the files they are in a block, by the number of its use."""
        users = [layer for layer, kind in enumerate(self._kinds()) if kind == "hybrid"]
        for number, layer in enumerate(users):
            block = rf"\.{users[number % self.num_mem_blocks]}\.shared_transformer\.\w+\."
            for place, end in enumerate(("down", "up")):
                ends = rf"_adapter_list\.{number}\.{place}\."
                for name in ("linear_q", "linear_k", "linear_v", "gate_up_proj"):
                    own = name.removeprefix("linear_").removesuffix("_proj")
                    yield f"{block}{name}{ends}", f".{layer}.adapters.{own}_{end}."

    def ropes(self, rope: RopeConfig) -> tuple[RopeConfig | None, ...]:
        return (rope if self.use_mem_rope else None,) * self.num_hidden_layers


SHARED = (r"\.shared_transf(ormer)?\.", ".shared.")
