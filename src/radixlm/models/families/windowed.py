"""The fields of families some of whose layers see a window."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import model_validator

from radixlm.layers.rotary import RopeConfig
from radixlm.models.config_fields import Size, supported, unsupported
from radixlm.models.hf_config import HFConfig, RopeFields

_SLIDING, _FULL = "sliding_attention", "full_attention"
Kinds = Annotated[
    list[Literal["full_attention", "sliding_attention"]] | None,
    supported(f"{_FULL} and {_SLIDING}"),
]


def windowed_of(config: HFConfig, kinds: Kinds, every: int) -> list[bool]:
    """List for each layer whether it has a window: by its kind, else all but `every` so-many-th."""
    layers = config.num_hidden_layers
    if kinds is None:
        return [(layer + 1) % every != 0 for layer in range(layers)]
    if len(kinds) != layers:
        raise unsupported("layer_types", kinds, f"one for each of {layers} layers")
    return [kind == _SLIDING for kind in kinds]


class SomeTurn(HFConfig):
    """Layers that do not turn queries and keys, by default every fourth. A 1 in `no_rope_layers` is
    one that does.
    """

    no_rope_layers: Annotated[list[Literal[0, 1]] | None, supported("a list of 0 and 1")] = None
    no_rope_layer_interval: Size = 4

    def turning(self) -> list[bool]:
        """List for each layer whether it turns."""
        layers, every = self.num_hidden_layers, self.no_rope_layer_interval
        if not self.no_rope_layers:
            return [(layer + 1) % every != 0 for layer in range(layers)]
        if len(self.no_rope_layers) < layers:
            each = f"one for each of {layers} layers"
            raise unsupported("no_rope_layers", self.no_rope_layers, each)
        return [turns == 1 for turns in self.no_rope_layers[:layers]]


class TwoRopes(HFConfig):
    """`rope_parameters` has a part for each kind of layer; before transformers 5, what is said of
    rope is of layers without a window. Those with one are never stretched.
    """

    rope_of_windows: RopeFields | None = None
    sliding_window: Size
    layer_types: Kinds = None

    @model_validator(mode="before")
    @classmethod
    def _by_kind(cls, values: Any) -> Any:
        given = values.get("rope_parameters") if isinstance(values, Mapping) else None
        if not isinstance(given, Mapping) or not {_FULL, _SLIDING} & given.keys():
            return values
        more = {name: its for name, its in given.items() if name not in (_FULL, _SLIDING)}
        if more:
            raise unsupported("rope_parameters", more, f"{_FULL} and {_SLIDING}")
        both = {"rope_parameters": given.get(_FULL), "rope_of_windows": given.get(_SLIDING)}
        return {**values, **both}

    def two_ropes(
        self, rope: RopeConfig, windowed: list[bool], theta: float
    ) -> tuple[RopeConfig, ...]:
        """theta: of layers with a window, if the config does not say it."""
        its = self.rope_of_windows or RopeFields()
        kind = its.rope_type or its.type or "default"
        if kind != "default":
            raise unsupported(f"rope_parameters.{_SLIDING}.rope_type", kind, "default")
        share = its.partial_rotary_factor or (rope.share if self.turns_part else 1.0)
        if share != 1 and not self.turns_part:
            raise unsupported(f"rope_parameters.{_SLIDING}.partial_rotary_factor", share, "1.0")
        narrow = RopeConfig(its.rope_theta or theta, None, share)
        return tuple(narrow if window else rope for window in windowed)
