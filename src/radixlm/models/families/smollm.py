"""SmolLM3: Llama with layers that do not turn queries and keys, by default every fourth."""

from __future__ import annotations

from typing import Annotated, Literal

from radixlm.layers.rotary import RopeConfig
from radixlm.models.config_fields import Flag, Size, supported, unsupported
from radixlm.models.families.llama import Llama
from radixlm.models.traits import Traits


class SmolLM3(Llama):
    """SmolLM3. A 1 in `no_rope_layers` is a layer that turns. A window is for those of
    `layer_types`, by default for the ones that do not turn.
    """

    no_rope_layers: Annotated[list[Literal[0, 1]] | None, supported("a list of 0 and 1")] = None
    no_rope_layer_interval: Size
    use_sliding_window: Flag
    sliding_window: Size | None = None
    layer_types: Annotated[
        list[Literal["full_attention", "sliding_attention"]] | None,
        supported("full_attention and sliding_attention"),
    ] = None

    def traits(self) -> Traits:
        return super().traits()._replace(windows=self._windows())

    def ropes(self, rope: RopeConfig) -> tuple[RopeConfig | None, ...]:
        return tuple(rope if turns else None for turns in self._turning())

    def _turning(self) -> list[bool]:
        layers, every = self.num_hidden_layers, self.no_rope_layer_interval
        if self.no_rope_layers is None:
            return [(layer + 1) % every != 0 for layer in range(layers)]
        if len(self.no_rope_layers) < layers:
            each = f"one for each of {layers} layers"
            raise unsupported("no_rope_layers", self.no_rope_layers, each)
        return [turns == 1 for turns in self.no_rope_layers[:layers]]

    def _windows(self) -> tuple[int | None, ...]:
        if not self.use_sliding_window or self.sliding_window is None:
            return ()
        if self.layer_types is None:
            full = self._turning()
        else:
            full = [kind == "full_attention" for kind in self.layer_types]
        if len(full) != self.num_hidden_layers:
            each = f"one for each of {self.num_hidden_layers} layers"
            raise unsupported("layer_types", self.layer_types, each)
        return tuple(None if its else self.sliding_window for its in full)
