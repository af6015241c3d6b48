"""Which architectures there are, by the config's `model_type`, and what sets each apart."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from radixlm.models.hf_config import (
    MOST,
    Flag,
    HFConfig,
    Size,
    Traits,
    read,
    supported,
    unsupported,
)


class Llama(HFConfig):
    """Llama 1 to 3.3, and what took over their shape (SmolLM, Yi, TinyLlama, ...). One flag gives
    all four attention projections a bias, another the three of the MLP.
    """

    attention_bias: Flag = False
    mlp_bias: Flag = False

    def traits(self) -> Traits:
        return Traits(self.attention_bias, self.attention_bias, self.mlp_bias)


class Mistral(HFConfig):
    """Mistral 7B and its dense successors: Llama without biases, the first version with a window
    of transformers' default: only an explicit null means none.
    """

    nullable: ClassVar[frozenset[str]] = frozenset({"sliding_window"})
    sliding_window: Size | None = 4096

    def traits(self) -> Traits:
        return Traits(sliding_window=self.sliding_window)


_LayerKind = Literal["full_attention", "sliding_attention"]


class Qwen2(HFConfig):
    """Qwen 1.5, 2 and 2.5: biases on q, k and v, never on the output, whatever the config says.

    `use_sliding_window` switches the window on for the layers from `max_window_layers` up, unless
    `layer_types` names the layers one by one.
    """

    use_sliding_window: Flag = False
    sliding_window: Size | None = None
    max_window_layers: Annotated[
        int, Field(strict=True, ge=0, le=MOST), supported(f"an integer from 0 to {MOST}")
    ] = 28
    layer_types: Annotated[
        list[_LayerKind] | None, supported("full_attention and sliding_attention")
    ] = None

    def traits(self) -> Traits:
        return Traits(qkv_bias=True, sliding_window=self.window())

    def window(self) -> int | None:
        """The window of the layers that have one; None when no layer has."""
        if self.layer_types is None:
            windowed = self.max_window_layers < self.num_hidden_layers
        else:
            windowed = "sliding_attention" in self.layer_types
        return self.sliding_window if windowed and self.use_sliding_window else None


class Qwen3(Qwen2):
    """Qwen3, dense: a norm on each query and key head took the place of Qwen2's biases."""

    attention_bias: Flag = False

    def traits(self) -> Traits:
        bias, window = self.attention_bias, self.window()
        return Traits(bias, bias, qk_norm=True, head_dim=128, sliding_window=window)


ARCHITECTURES: Mapping[str, type[HFConfig]] = MappingProxyType(
    {"llama": Llama, "mistral": Mistral, "qwen2": Qwen2, "qwen3": Qwen3}
)


def read_hf_config(values: Mapping[str, Any]) -> HFConfig:
    """The parsed config.json, by the class of its `model_type`.

    Raises UnsupportedModelError that names the field, its value and what is supported.
    """
    name = values.get("model_type")
    architecture = ARCHITECTURES.get(str(name))
    if architecture is None:
        raise unsupported("model_type", name, ", ".join(ARCHITECTURES))
    return read(architecture, values)
