"""Jamba: Mamba in most layers, attention without positions in others, experts in some."""

from __future__ import annotations

from radixlm.layers.mamba1 import Mamba1Sizes
from radixlm.layers.rotary import RopeConfig
from radixlm.models.config_fields import Count, Flag, Number, Size, unsupported
from radixlm.models.families.mamba import StepRank, rank_of
from radixlm.models.families.mamba_hybrids import ConvWidth
from radixlm.models.hf_config import HFConfig
from radixlm.models.traits import Experts, Norms, Traits


class Jamba(HFConfig):
    """Layers of a kind come once in a period, the first at an offset."""

    rope_theta: Number = 10_000.0  # nothing turns
    num_experts_per_tok: Size
    attn_layer_period: Size
    attn_layer_offset: Count
    expert_layer_period: Size
    expert_layer_offset: Count
    mamba_d_state: Size
    mamba_d_conv: ConvWidth
    mamba_expand: Size
    mamba_dt_rank: StepRank
    mamba_conv_bias: Flag
    mamba_proj_bias: Flag

    def traits(self) -> Traits:
        every, first = self.attn_layer_period, self.attn_layer_offset
        if first >= every:
            raise unsupported("attn_layer_offset", first, f"less than attn_layer_period, {every}")
        sizes = self.mamba_expand * self.hidden_size, self.mamba_d_state
        rank, width = rank_of(self.mamba_dt_rank, self.hidden_size), self.mamba_d_conv
        biases = self.mamba_proj_bias, self.mamba_conv_bias
        return Traits(
            norms=Norms(mlp="pre_ff_layernorm", last="final_layernorm"),
            mlp="feed_forward",
            experts=self._experts(),
            state=Mamba1Sizes(*sizes, rank, width, *biases, norms="weights"),
            mixers=tuple(
                "attention" if n % every == first else "state"
                for n in range(self.num_hidden_layers)
            ),
        )

    def _experts(self) -> Experts:
        """One expert is an MLP: then no layer has any."""
        every, first, number = self.expert_layer_period, self.expert_layer_offset, self.num_experts
        return Experts(
            number,
            min(self.num_experts_per_tok, number),
            self.intermediate_size,
            renormalised=False,
            layers=tuple(number > 1 and n % every == first for n in range(self.num_hidden_layers)),
            router="router",
        )

    def ropes(self, rope: RopeConfig) -> tuple[RopeConfig | None, ...]:  # noqa: ARG002
        return (None,) * self.num_hidden_layers
