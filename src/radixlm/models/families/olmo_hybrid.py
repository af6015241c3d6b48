"""OLMo Hybrid: the gated delta rule in three of four layers, OLMo 3's attention in the others."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import model_validator

from radixlm.layers.gated_delta import DeltaSizes
from radixlm.layers.rotary import RopeConfig
from radixlm.models.config_fields import Flag, Size, unsupported
from radixlm.models.families.mamba_hybrids import ConvWidth, mixers_of
from radixlm.models.families.olmo import Olmo2
from radixlm.models.families.qwen_next import Kinds
from radixlm.models.traits import Norms, Traits

_PARTS = ("q_proj", "k_proj", "v_proj", "g_proj", "b_proj", "a_proj")


class OlmoHybrid(Olmo2):
    """Layers with a state norm what they take, the others what they give. In published files
    `rope_theta` is null: nothing turns.
    """

    layer_types: Kinds = None
    linear_num_key_heads: Size | None = None
    linear_num_value_heads: Size | None = None
    linear_key_head_dim: Size | None = None
    linear_value_head_dim: Size | None = None
    linear_conv_kernel_dim: ConvWidth
    linear_allow_neg_eigval: Flag
    turns: Flag = True

    @model_validator(mode="before")
    @classmethod
    def _turns(cls, values: Any) -> Any:
        rope = values.get("rope_parameters") if isinstance(values, Mapping) else None
        if not isinstance(rope, Mapping) or rope.get("rope_theta", rope) is not None:
            return values
        return {**values, "turns": False}

    def traits(self) -> Traits:
        usual = ["linear_attention"] * self.num_hidden_layers
        usual[3::4] = ["full_attention"] * len(usual[3::4])
        usual[-1] = "full_attention" if len(usual) < 4 else usual[-1]
        return (
            super()
            .traits()
            ._replace(
                state=self._sizes(),
                state_norms=Norms(),
                mixers=mixers_of(self, "layer_types", self.layer_types or usual),
                renamed=(
                    (r"\.attention_layer_norm\.", ".input_layernorm."),
                    (r"\.feedforward_layer_norm\.", ".post_attention_layernorm."),
                ),
            )
        )

    def _sizes(self) -> DeltaSizes:
        keys = self.linear_num_key_heads or self.num_attention_heads
        values = self.linear_num_value_heads or self.num_attention_heads
        if values % keys:
            raise unsupported("linear_num_value_heads", values, f"a multiple of {keys}")
        key = self.linear_key_head_dim or int(0.75 * self.hidden_size / keys)
        if not key:
            fit = f"less than 3/4 of hidden_size, {self.hidden_size}, without linear_key_head_dim"
            raise unsupported("linear_num_key_heads", keys, fit)
        sizes = keys, values, key, self.linear_value_head_dim or 2 * key
        most = 2.0 if self.linear_allow_neg_eigval else 1.0
        names: dict[str, Any] = {"norm": "o_norm", "output": "o_proj"}
        return DeltaSizes(*sizes, self.linear_conv_kernel_dim, _PARTS, most=most, eps=1e-5, **names)

    def ropes(self, rope: RopeConfig) -> tuple[RopeConfig | None, ...]:  # noqa: ARG002
        return () if self.turns else (None,) * self.num_hidden_layers
