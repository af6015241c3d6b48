"""Zamba2: Mamba-2 in all layers, before some of them one of few blocks of attention and an MLP."""

from __future__ import annotations

from collections.abc import Iterator

from pydantic import AliasChoices, Field

from radixlm.layers.mamba2 import MambaSizes
from radixlm.layers.rotary import RopeConfig
from radixlm.models.config_fields import Flag, Number, Size, unsupported
from radixlm.models.families.mamba_hybrids import ConvWidth, Never, mamba_sizes
from radixlm.models.families.zamba import BLOCK_SCORES, SHARED, BlockKinds, block_mixers, head_dim
from radixlm.models.hf_config import HFConfig
from radixlm.models.traits import Mixer, Norms, SharedBlocks, Traits

# Layers of the 2.7B with a block.
_USUAL = (*range(6, 43, 6), 47, 51)


class Zamba2(HFConfig):
    """Each layer has adapters of its block's products. `time_step_min` is how steps were
    initialised; transformers holds those of prompts to it, and not those of later tokens.
    """

    activations = ("gelu",)
    intermediate_size: Size = Field(default_factory=lambda values: 4 * values["hidden_size"])
    head_dim: Size = Field(default_factory=head_dim, validation_alias="attention_head_dim")
    layers_block_type: BlockKinds = Field(
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
        bias, mixers = self.add_bias_linear, self._mixers()
        inner, heads = self.mamba_expand * self.hidden_size, self.n_mamba_heads
        if inner % heads:
            raise unsupported("n_mamba_heads", heads, f"a divisor of {inner}")
        sizes = heads, inner // heads, self.mamba_ngroups, self.mamba_d_state, self.mamba_d_conv
        return Traits(
            mlp_bias=bias,
            norms=Norms(last="final_layernorm"),
            gate_up=("gate_up_proj",),
            activation="gelu",
            state=mamba_sizes(MambaSizes(*sizes, bias, conv_bias=True, eps=1e-5), "mamba_ngroups"),
            mixers=mixers,
            mlps=(False,) * len(mixers),
            shared=SharedBlocks(
                self.num_mem_blocks, self.adapter_rank, self.use_shared_attention_adapter
            ),
            factors=BLOCK_SCORES,
            renamed=((r"\.mamba_decoder\.", "."), *self._adapters(), SHARED),
        )

    def _mixers(self) -> tuple[Mixer, ...]:
        return block_mixers(self.layers_block_type, self.num_hidden_layers, _USUAL)

    def _adapters(self) -> Iterator[tuple[str, str]]:
        """Name adapters by layers; in the files they are in a block, by the number of its use."""
        users = [layer for layer, mixer in enumerate(self._mixers()) if mixer == "both"]
        for number, layer in enumerate(users):
            block = rf"\.{users[number % self.num_mem_blocks]}\.shared_transformer\.\w+\."
            for place, end in enumerate(("down", "up")):
                ends = rf"_adapter_list\.{number}\.{place}\."
                for name in ("linear_q", "linear_k", "linear_v", "gate_up_proj"):
                    own = name.removeprefix("linear_").removesuffix("_proj")
                    yield f"{block}{name}{ends}", f".{layer}.adapters.{own}_{end}."

    def ropes(self, rope: RopeConfig) -> tuple[RopeConfig | None, ...]:
        return (rope if self.use_mem_rope else None,) * self.num_hidden_layers
