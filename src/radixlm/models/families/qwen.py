"""Qwen 2 and 3, dense."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from radixlm.models.config_fields import Count, Fields, Flag, Size, read, supported, unsupported
from radixlm.models.hf_config import HFConfig
from radixlm.models.traits import QueryKeyNorms, Traits


class QwenWindow(Fields):
    sliding_window: Size


class _Unwindowed(Fields):
    max_window_layers: Count


_LayerKind = Literal["full_attention", "sliding_attention"]


class Qwen2(HFConfig):
    """Qwen 1.5, 2 and 2.5: biases on q, k and v, never on the output, whatever the config says.

    `use_sliding_window` switches the window on for the layers from `max_window_layers` up, unless
    `layer_types` names the layers one by one. Without it the other two are not read.
    """

    use_sliding_window: Flag = False
    sliding_window: Any = None
    max_window_layers: Any = None
    layer_types: Annotated[
        list[_LayerKind] | None, supported("full_attention and sliding_attention")
    ] = None

    def traits(self) -> Traits:
        return Traits(qkv_bias=True, windows=self.windows())

    def windows(self) -> tuple[int | None, ...]:
        """See `Traits`."""
        layers = self.num_hidden_layers
        if not self.use_sliding_window or self.sliding_window is None:
            return ()
        if self.layer_types is None:
            full = min(read(_Unwindowed, self.model_dump()).max_window_layers, layers)
            windowed = [False] * full + [True] * (layers - full)
        else:
            windowed = [kind == "sliding_attention" for kind in self.layer_types]
            if len(windowed) != layers:
                raise unsupported(
                    "layer_types", self.layer_types, f"one for each of {layers} layers"
                )
        window = read(QwenWindow, self.model_dump()).sliding_window if any(windowed) else None
        return tuple(window if its else None for its in windowed)


class Qwen3(Qwen2):
    """Qwen3, dense: a norm on each query and key head took the place of Qwen2's biases."""

    attention_bias: Flag

    def traits(self) -> Traits:
        bias = self.attention_bias
        return Traits(bias, bias, qk_norm=QueryKeyNorms(), windows=self.windows())
