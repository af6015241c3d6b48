"""SmolLM3: Llama with layers that do not turn queries and keys, by default every fourth."""

from __future__ import annotations

from typing import Annotated, Literal

from radixlm.layers.rotary import RopeConfig
from radixlm.models.config_fields import Flag, Size, supported, unsupported
from radixlm.models.families.llama import Llama
from radixlm.models.families.windowed import SomeTurn
from radixlm.models.traits import Traits


class SmolLM3(SomeTurn, Llama):
    """SmolLM3. A window is for those of `layer_types`, by default for the ones that do not turn."""

    use_sliding_window: Flag
    sliding_window: Size | None = None
    layer_types: Annotated[
        list[Literal["full_attention", "sliding_attention"]] | None,
        supported("full_attention and sliding_attention"),
    ] = None

    def traits(self) -> Traits:
        return super().traits()._replace(windows=self._windows())

    def ropes(self, rope: RopeConfig) -> tuple[RopeConfig | None, ...]:
        return tuple(rope if turns else None for turns in self.turning())

    def _windows(self) -> tuple[int | None, ...]:
        if not self.use_sliding_window or self.sliding_window is None:
            return ()
        if self.layer_types is None:
            full = self.turning()
        else:
            full = [kind == "full_attention" for kind in self.layer_types]
        if len(full) != self.num_hidden_layers:
            each = f"one for each of {self.num_hidden_layers} layers"
            raise unsupported("layer_types", self.layer_types, each)
        return tuple(None if its else self.sliding_window for its in full)
