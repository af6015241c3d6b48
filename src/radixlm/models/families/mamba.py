"""Mamba or Mamba-2 in all layers, and nothing else: no attention, no MLP, no positions."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from radixlm.layers.mamba1 import Mamba1Sizes
from radixlm.layers.mamba2 import MambaSizes
from radixlm.layers.rotary import RopeConfig
from radixlm.models.config_fields import Flag, Number, Size, supported, unsupported
from radixlm.models.families.mamba_hybrids import ConvWidth, mamba_sizes
from radixlm.models.hf_config import HFConfig
from radixlm.models.traits import Mixer, Norms, Traits

# What a request may have: nothing in the model bounds it.
_LONGEST = 1 << 20


def _unlimited(value: Any) -> Any:
    """Check for what Python's JSON and transformers 5 write for infinity."""
    if value not in ([0.0, float("inf")], [0.0, {"__float__": "Infinity"}]):
        raise ValueError(value)
    return value


# In transformers' own code they hold for prompts alone: a token's state would depend on steps.
NoLimits = Annotated[Any, BeforeValidator(_unlimited), supported("0 and Infinity")]


StepRank = Annotated[Size | Literal["auto"], supported('a positive integer, or "auto"')]


def rank_of(said: int | Literal["auto"], hidden_size: int) -> int:
    """The rank of steps."""
    return -(-hidden_size // 16) if said == "auto" else said


class StatesAlone(HFConfig):
    """The fields of models whose layers have states alone."""

    intermediate_size: Size = 1
    num_attention_heads: Size = 1
    max_position_embeddings: Size = _LONGEST
    rms_norm_eps: Number = Field(validation_alias="layer_norm_epsilon")
    rope_theta: Number = 10_000.0
    conv_kernel: ConvWidth
    state_size: Size
    use_bias: Flag
    use_conv_bias: Flag

    def alone(self, state: Mamba1Sizes | MambaSizes) -> Traits:
        """The traits of a model of such layers."""
        layers, mixers = self.num_hidden_layers, tuple[Mixer, ...](("state",))
        return Traits(
            norms=Norms("norm", last="norm_f"),
            state=state,
            mixers=mixers * layers,
            mlps=(False,) * layers,
        )

    def ropes(self, rope: RopeConfig) -> tuple[RopeConfig | None, ...]:  # noqa: ARG002
        return (None,) * self.num_hidden_layers


class Mamba2Alone(StatesAlone):
    """Mamba-2, Codestral Mamba. `head_dim` is that of states."""

    head_dim: Size
    num_heads: Size
    n_groups: Size
    expand: Size
    time_step_limit: NoLimits = None

    def traits(self) -> Traits:
        heads, head, inner = self.num_heads, self.head_dim, self.expand * self.hidden_size
        if heads * head != inner:
            raise unsupported("num_heads", heads, f"{inner} / head_dim, which is {head}")
        biases = self.use_bias, self.use_conv_bias
        sizes = heads, head, self.n_groups, self.state_size, self.conv_kernel
        return self.alone(mamba_sizes(MambaSizes(*sizes, *biases, "mixer"), "n_groups"))


class MambaAlone(StatesAlone):
    """Mamba."""

    channels: Size | None = Field(None, validation_alias="intermediate_size")
    expand: Size
    time_step_rank: StepRank

    def traits(self) -> Traits:
        return self.alone(self.sizes())

    def sizes(self) -> Mamba1Sizes:
        """The sizes of a layer."""
        inner = self.channels or self.expand * self.hidden_size
        sizes = inner, self.state_size, rank_of(self.time_step_rank, self.hidden_size)
        return Mamba1Sizes(*sizes, self.conv_kernel, self.use_bias, self.use_conv_bias, "mixer")


class FalconMamba(MambaAlone):
    """Falcon Mamba norms steps, keys and queries."""

    mixer_rms_eps: Number

    def sizes(self) -> Mamba1Sizes:
        return super().sizes()._replace(norms="plain", eps=self.mixer_rms_eps)
