"""Nemotron-H and Nemotron 3: a layer has Mamba-2, attention, an MLP or experts, and nothing else;
squares of relu without gates, no positions.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import AliasChoices, Field, model_validator

from radixlm.layers.mamba2 import MambaSizes
from radixlm.layers.rotary import RopeConfig
from radixlm.models.config_fields import Flag, Number, Size, supported
from radixlm.models.families.grouped_experts import SIGMOIDS, GroupedExperts
from radixlm.models.families.mamba_hybrids import ConvWidth, Never, mamba_sizes
from radixlm.models.traits import Experts, Mixer, Norms, Traits

_LETTERS = {"M": "mamba", "*": "attention", "-": "mlp", "E": "moe"}
_USUAL = ["mamba", "moe", "attention", "mlp"]
_MIXERS: dict[str, Mixer] = {
    **dict.fromkeys(("mamba", "linear_attention"), "state"),
    **dict.fromkeys(("attention", "full_attention"), "attention"),
    **dict.fromkeys(("mlp", "moe"), "none"),
}
_Kinds = Annotated[
    list[Literal["mamba", "linear_attention", "attention", "full_attention", "mlp", "moe"]],
    supported("mamba, attention, mlp and moe"),
]


class NemotronH(GroupedExperts):
    """Older files have kinds of layers as letters, `hybrid_override_pattern`."""

    activations = ("relu2",)
    hidden_act: Any = Field("relu2", validation_alias="mlp_hidden_act")
    layers_block_type: _Kinds
    rms_norm_eps: Number = Field(
        validation_alias=AliasChoices("layer_norm_epsilon", "rms_norm_eps")
    )
    rope_theta: Number = 10_000.0  # nothing turns
    attention_bias: Never = False
    mlp_bias: Never = False
    mamba_hidden_act: Annotated[Literal["silu"], supported("silu")] = "silu"
    mamba_num_heads: Size
    mamba_head_dim: Size
    n_groups: Size
    ssm_state_size: Size
    conv_kernel: ConvWidth
    use_bias: Flag
    use_conv_bias: Flag
    moe_shared_expert_intermediate_size: Size
    moe_latent_size: Size | None = None

    @model_validator(mode="before")
    @classmethod
    def _by_letters(cls, values: Any) -> Any:
        if not isinstance(values, Mapping):
            return values
        kinds, letters = values.get("layers_block_type"), values.get("hybrid_override_pattern")
        if kinds is None and isinstance(letters, str):
            kinds = [_LETTERS.get(letter, letter) for letter in letters]
        kinds = _USUAL if kinds is None else kinds
        if not isinstance(kinds, list):
            return values
        return {**values, "layers_block_type": kinds, "num_hidden_layers": len(kinds)}

    def traits(self) -> Traits:
        kinds = self.layers_block_type
        sizes = self.mamba_num_heads, self.mamba_head_dim, self.n_groups, self.ssm_state_size
        biases = self.use_bias, self.use_conv_bias
        state = mamba_sizes(MambaSizes(*sizes, self.conv_kernel, *biases, "mixer"), "n_groups")
        return Traits(
            norms=Norms("norm", mlp="norm", last="norm_f"),
            mlp="mixer",
            gate_up=("up_proj",),
            gated=False,
            activation="relu2",
            experts=self._experts(),
            state=state,
            mixers=tuple(_MIXERS[kind] for kind in kinds),
            mlps=tuple(_MIXERS[kind] == "none" for kind in kinds),
            renamed=((r"\.mixer\.([qkvo]_proj\.)", r".self_attn.\1"),),
        )

    def sparse(self) -> tuple[bool, ...]:
        return tuple(kind == "moe" for kind in self.layers_block_type)

    def _experts(self) -> Experts:
        """Raises UnsupportedModelError as `grouped`, where a layer has experts."""
        routing = self.grouped(SIGMOIDS) if any(self.sparse()) else SIGMOIDS
        return self.experts(routing)._replace(
            shared=self.moe_shared_expert_intermediate_size,
            shared_names=("up_proj", "down_proj"),
            gate_up=("experts.{}.up_proj",),
            latent=self.moe_latent_size or 0,
        )

    def ropes(self, rope: RopeConfig) -> tuple[RopeConfig | None, ...]:  # noqa: ARG002
        return (None,) * self.num_hidden_layers
