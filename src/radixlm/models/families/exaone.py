"""EXAONE 4: norms after attention and the MLP, and of each head; layers without a window do not
turn, where others have one.
"""

from __future__ import annotations

from typing import Annotated

from radixlm.layers.rotary import RopeConfig
from radixlm.models.config_fields import Size, supported
from radixlm.models.families.windowed import Kinds, windowed_of
from radixlm.models.hf_config import HFConfig
from radixlm.models.traits import Norms, QueryKeyNorms, Traits


class Exaone4(HFConfig):
    """A null as `sliding_window` means none. The pattern is a number, or letters as LLLG."""

    sliding_window: Size | None = None
    sliding_window_pattern: Annotated[int | str, supported("a number, or as LLLG")] = 4
    layer_types: Kinds = None

    def _windowed(self) -> list[bool]:
        every = self.sliding_window_pattern
        if self.sliding_window is None:
            return [False] * self.num_hidden_layers
        return windowed_of(self, self.layer_types, len(every) if isinstance(every, str) else every)

    def traits(self) -> Traits:
        return Traits(
            qk_norm=QueryKeyNorms(),
            norms=Norms("", "post_attention_layernorm", "", "post_feedforward_layernorm"),
            windows=tuple(self.sliding_window if its else None for its in self._windowed()),
        )

    def ropes(self, rope: RopeConfig) -> tuple[RopeConfig | None, ...]:
        if self.sliding_window is None:
            return ()
        return tuple(rope if its else None for its in self._windowed())
