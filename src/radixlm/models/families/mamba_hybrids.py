"""Mamba-2 in most layers, attention in others, or both in each: Bamba, Granite 4, Falcon-H1."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Literal

from pydantic import Field

from radixlm.layers.mamba2 import MambaSizes
from radixlm.layers.rotary import RopeConfig
from radixlm.models.config_fields import Count, Flag, Number, Share, Size, supported, unsupported
from radixlm.models.families.granite import Granite
from radixlm.models.families.llama import Llama
from radixlm.models.hf_config import HFConfig
from radixlm.models.traits import Experts, Mixer, Norms, Traits

ConvWidth = Annotated[int, Field(strict=True, ge=2, le=64), supported("2 to 64")]
Never = Annotated[Literal[False], supported("false")]
_KINDS: dict[str, Mixer] = {
    **dict.fromkeys(("conv", "mamba", "linear_attention"), "state"),
    **dict.fromkeys(("attention", "full_attention", "sliding_attention"), "attention"),
}


def mixers_of(config: HFConfig, field: str, kinds: Sequence[str]) -> tuple[Mixer, ...]:
    """Mixers of layers by their kinds, as configs have them."""
    if len(kinds) != config.num_hidden_layers:
        raise unsupported(field, kinds, f"one for each of {config.num_hidden_layers} layers")
    return tuple(_KINDS[kind] for kind in kinds)


def mamba_sizes(sizes: MambaSizes, field: str) -> MambaSizes:
    """The sizes, if groups divide heads. Raises UnsupportedModelError that names the field."""
    if sizes.heads % sizes.groups:
        raise unsupported(field, sizes.groups, f"a divisor of {sizes.heads} heads")
    return sizes


class MambaFields(HFConfig):
    """The fields of layers of Mamba-2."""

    mamba_n_heads: Size
    mamba_d_head: Size | Literal["auto"]
    mamba_n_groups: Size
    mamba_d_state: Size
    mamba_d_conv: ConvWidth
    mamba_expand: Size
    mamba_conv_bias: Flag
    mamba_proj_bias: Flag

    def sizes(self) -> MambaSizes:
        """The sizes of a layer. Raises UnsupportedModelError for some that do not fit."""
        inner, heads, groups = self.inner(), self.mamba_n_heads, self.mamba_n_groups
        head = inner // heads if self.mamba_d_head == "auto" else self.mamba_d_head
        if head * heads != inner:
            what = f"{inner} / mamba_n_heads, which is {heads}"
            raise unsupported("mamba_d_head", self.mamba_d_head, what)
        biases = self.mamba_proj_bias, self.mamba_conv_bias
        made = MambaSizes(heads, head, groups, self.mamba_d_state, self.mamba_d_conv, *biases)
        return mamba_sizes(made, "mamba_n_groups")

    def inner(self) -> int:
        """Values of all heads."""
        return self.mamba_expand * self.hidden_size


class Bamba(MambaFields, Llama):
    """Half of each head turns."""

    turns_part = True
    partial_rotary_factor: Share = 0.5
    attn_layer_indices: Annotated[list[Count] | None, supported("numbers of layers, from 0")] = None

    def traits(self) -> Traits:
        attentive = set(self.attn_layer_indices or ())
        kinds = ["attention" if n in attentive else "mamba" for n in range(self.num_hidden_layers)]
        return Llama.traits(self)._replace(
            norms=Norms(mlp="pre_ff_layernorm", last="final_layernorm"),
            mlp="feed_forward",
            state=self.sizes(),
            mixers=mixers_of(self, "attn_layer_indices", kinds),
        )


_GraniteKinds = Annotated[
    list[Literal["mamba", "linear_attention", "attention", "full_attention"]] | None,
    supported("mamba and attention"),
]


class GraniteHybrid(MambaFields, Granite):
    """Granite 4: one MLP for all tokens, with experts beside it in some sizes; most sizes have no
    positions.
    """

    num_experts_per_tok: Count
    shared_intermediate_size: Size
    position_embedding_type: Any = None
    layer_types: _GraniteKinds = None

    def traits(self) -> Traits:
        kinds = self.layer_types or ["mamba"] * self.num_hidden_layers
        made = Granite.traits(self)._replace(
            state=self.sizes(), mixers=mixers_of(self, "layer_types", kinds)
        )
        if not self.num_experts:
            return made._replace(
                mlp="shared_mlp",
                gate_up=("input_linear",),
                down="output_linear",
                mlp_sizes=(self.shared_intermediate_size,) * self.num_hidden_layers,
            )
        experts = Experts(
            self.num_experts,
            self.num_experts_per_tok,
            self.intermediate_size,
            renormalised=True,
            shared=self.shared_intermediate_size,
            shared_place="shared_mlp",
            shared_gate="",
            shared_names=("input_linear", "output_linear"),
            router="block_sparse_moe.router.layer",
            gate_up=("block_sparse_moe.input_linear.{}",),
            down="block_sparse_moe.output_linear.{}",
            stacked="rows",
        )
        return made._replace(mlp="", experts=experts)

    def ropes(self, rope: RopeConfig) -> tuple[RopeConfig | None, ...]:  # noqa: ARG002
        return () if self.position_embedding_type == "rope" else (None,) * self.num_hidden_layers


_Five = Annotated[tuple[Number, Number, Number, Number, Number], supported("five numbers, or null")]


class FalconH1(MambaFields, Llama):
    """Falcon-H1: each layer has attention and Mamba-2 side by side, and factors everywhere."""

    mamba_d_ssm: Size | None = None
    mamba_rms_norm: Flag
    mamba_norm_before_gate: Flag
    mamba_proj_bias: Never = False
    attention_bias: Never = False
    projectors_bias: Never = False
    lm_head_multiplier: Number
    embedding_multiplier: Number
    key_multiplier: Number
    attention_in_multiplier: Number
    attention_out_multiplier: Number
    ssm_in_multiplier: Number
    ssm_out_multiplier: Number
    ssm_multipliers: _Five | None = None
    mlp_multipliers: Annotated[tuple[Number, Number], supported("two numbers, or null")] | None = (
        None
    )

    def traits(self) -> Traits:
        sizes = self.sizes()
        mixers: tuple[Mixer, ...] = ("both",)
        norm: Literal["after", "before", ""] = "before" if self.mamba_norm_before_gate else "after"
        return Llama.traits(self)._replace(
            norms=Norms(mlp="pre_ff_layernorm", last="final_layernorm"),
            mlp="feed_forward",
            embedding=self.embedding_multiplier,
            logits=self.lm_head_multiplier,
            state=sizes._replace(norm=norm if self.mamba_rms_norm else ""),
            mixers=mixers * self.num_hidden_layers,
            factors=(("mamba.in_proj.weight", self._rows(sizes)), *self._factors()),
        )

    def inner(self) -> int:
        return self.mamba_d_ssm or super().inner()

    def _rows(self, sizes: MambaSizes) -> tuple[tuple[int, float], ...]:
        """Factors of gates, values, keys, queries and steps."""
        inner, keys = sizes.heads * sizes.head, sizes.groups * sizes.key
        counts = inner, inner, keys, keys, sizes.heads
        each = self.ssm_multipliers or (1.0,) * len(counts)
        of_input = self.ssm_in_multiplier
        return tuple((n, of_input * factor) for n, factor in zip(counts, each, strict=True))

    def _factors(self) -> Iterator[tuple[str, tuple[tuple[int, float], ...]]]:
        of_input, (gate, down) = self.attention_in_multiplier, self.mlp_multipliers or (1.0, 1.0)
        kinds = ("weight", "bias") if self.mlp_bias else ("weight",)
        yield "mamba.out_proj.weight", ((0, self.ssm_out_multiplier),)
        yield "self_attn.q_proj.weight", ((0, of_input),)
        yield "self_attn.k_proj.weight", ((0, of_input * self.key_multiplier),)
        yield "self_attn.v_proj.weight", ((0, of_input),)
        yield "self_attn.o_proj.weight", ((0, self.attention_out_multiplier),)
        for kind in kinds:
            yield f"feed_forward.gate_proj.{kind}", ((0, gate),)
            yield f"feed_forward.down_proj.{kind}", ((0, down),)
