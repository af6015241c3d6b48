"""Cohere's Command R, R7B and A: LayerNorm without bias, attention and MLP parallel, neighbours
turn together, logits are multiplied.
"""

from __future__ import annotations

from pydantic import Field

from radixlm.layers.rotary import RopeConfig
from radixlm.models.config_fields import Flag, Number, Size
from radixlm.models.families.windowed import Kinds, windowed_of
from radixlm.models.hf_config import HFConfig
from radixlm.models.traits import Norms, QueryKeyNorms, Traits


class Cohere(HFConfig):
    """Command R+ norms queries and keys, with a weight for each head."""

    rms_norm_eps: Number = Field(validation_alias="layer_norm_eps")
    attention_bias: Flag
    use_qk_norm: Flag = False
    logit_scale: Number

    def traits(self) -> Traits:
        bias = self.attention_bias
        return Traits(
            bias,
            bias,
            qk_norm=QueryKeyNorms("heads") if self.use_qk_norm else None,
            norms=Norms(mlp="", kind="layer"),
            interleaved=True,
            parallel=True,
            logits=self.logit_scale,
        )


class Cohere2(Cohere):
    """Command R7B and A: a window in three of four layers; the others do not turn."""

    sliding_window: Size
    sliding_window_pattern: Size = 4
    layer_types: Kinds = None

    def _windowed(self) -> list[bool]:
        return windowed_of(self, self.layer_types, self.sliding_window_pattern)

    def traits(self) -> Traits:
        windows = tuple(self.sliding_window if w else None for w in self._windowed())
        return super().traits()._replace(windows=windows)

    def ropes(self, rope: RopeConfig) -> tuple[RopeConfig | None, ...]:
        return tuple(rope if window else None for window in self._windowed())
