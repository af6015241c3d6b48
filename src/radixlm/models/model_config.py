"""config.json, or what a GGUF file says in its place, read once into a frozen ModelConfig. Which
architectures there are, by the config's `model_type`, and what sets each apart.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, ClassVar, Literal

import torch
from pydantic import Field

from radixlm.core.model_files import ModelFiles, files_of
from radixlm.layers.rotary import FactorScaling, RopeConfig
from radixlm.models.hf_config import (
    MOST,
    EndTokens,
    Fields,
    Flag,
    HFConfig,
    Size,
    Traits,
    read,
    read_rope,
    supported,
    unsupported,
)

# `do_sample` is not among them: requests say what they want by `temperature`.
_SAMPLING_FIELDS = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")


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
        return Traits(windows=(self.sliding_window,) * self.num_hidden_layers)


class _Window(Fields):
    sliding_window: Size


class _Unwindowed(Fields):
    max_window_layers: Annotated[
        int, Field(strict=True, ge=0, le=MOST), supported(f"an integer from 0 to {MOST}")
    ] = 28


_LayerKind = Literal["full_attention", "sliding_attention"]


class Qwen2(HFConfig):
    """Qwen 1.5, 2 and 2.5: biases on q, k and v, never on the output, whatever the config says.

    `use_sliding_window` switches the window on for the layers from `max_window_layers` up, unless
    `layer_types` names the layers one by one. Without it the other two are not read.
    """

    use_sliding_window: Flag = False
    layer_types: Annotated[
        list[_LayerKind] | None, supported("full_attention and sliding_attention")
    ] = None

    def traits(self) -> Traits:
        return Traits(qkv_bias=True, windows=self.windows())

    def windows(self) -> tuple[int | None, ...]:
        """See `Traits`."""
        others, layers = self.model_extra or {}, self.num_hidden_layers
        if not self.use_sliding_window or "sliding_window" not in others:
            return ()
        if self.layer_types is None:
            full = min(read(_Unwindowed, others).max_window_layers, layers)
            windowed = [False] * full + [True] * (layers - full)
        else:
            windowed = [kind == "sliding_attention" for kind in self.layer_types]
            if len(windowed) != layers:
                raise unsupported(
                    "layer_types", self.layer_types, f"one for each of {layers} layers"
                )
        window = read(_Window, others).sliding_window if any(windowed) else None
        return tuple(window if its else None for its in windowed)


class Qwen3(Qwen2):
    """Qwen3, dense: a norm on each query and key head took the place of Qwen2's biases."""

    attention_bias: Flag = False
    head_dim: Size = 128

    def traits(self) -> Traits:
        bias = self.attention_bias
        return Traits(bias, bias, qk_norm=True, windows=self.windows())


ARCHITECTURES: Mapping[str, type[HFConfig]] = MappingProxyType(
    {"llama": Llama, "mistral": Mistral, "qwen2": Qwen2, "qwen3": Qwen3}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """A decoder's shape. Sizes are in elements, `context_length` is in tokens.

    dtype: the checkpoint's own type; what the weights are loaded as is the caller's choice.
    eos_token_ids: any of them ends an answer; from generation_config.json and config.json alike.
    """

    model_type: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    n_layers: int
    n_heads: int
    n_kv_heads: int
    head_dim: int
    context_length: int
    rms_norm_eps: float
    rope: RopeConfig
    traits: Traits
    tie_word_embeddings: bool
    dtype: torch.dtype
    eos_token_ids: frozenset[int]
    bos_token_id: int | None

    @property
    def windows(self) -> tuple[int | None, ...]:
        """Those of `traits` that hide something of this context; empty where none does."""
        length = self.context_length
        windows = tuple(w if w is not None and w < length else None for w in self.traits.windows)
        return windows if any(windows) else ()

    @classmethod
    def from_hf(
        cls, config: Mapping[str, Any], generation_config: Mapping[str, Any] | None = None
    ) -> ModelConfig:
        """Translate the parsed config.json (transformers 4 or 5) and generation_config.json.

        Raises UnsupportedModelError that names the field, its value and what is supported.
        """
        name = config.get("model_type")
        architecture = ARCHITECTURES.get(str(name))
        if architecture is None:
            raise unsupported("model_type", name, ", ".join(ARCHITECTURES))
        hf = read(architecture, config)
        if hf.architectures and not any(n.endswith("ForCausalLM") for n in hf.architectures):
            raise unsupported("architectures", hf.architectures, "...ForCausalLM")
        traits, (rope, context_length) = hf.traits(), read_rope(hf)
        n_heads = hf.num_attention_heads
        n_kv_heads = hf.num_key_value_heads or n_heads
        if n_heads % n_kv_heads:
            divisor = f"a divisor of {n_heads} attention heads"
            raise unsupported("num_key_value_heads", n_kv_heads, divisor)
        head_dim = hf.head_dim or hf.hidden_size // n_heads
        if head_dim % 2:
            raise unsupported("head_dim", hf.head_dim, f"an even number, but it is {head_dim}")
        factors = rope.scaling.factors if isinstance(rope.scaling, FactorScaling) else None
        if factors is not None and len(factors) != head_dim // 2:
            raise unsupported("rope_scaling.factors", factors, f"{head_dim // 2} numbers")
        return cls(
            model_type=str(name),
            vocab_size=hf.vocab_size,
            hidden_size=hf.hidden_size,
            intermediate_size=hf.intermediate_size,
            n_layers=hf.num_hidden_layers,
            n_heads=n_heads,
            n_kv_heads=n_kv_heads,
            head_dim=head_dim,
            context_length=context_length,
            rms_norm_eps=hf.rms_norm_eps,
            rope=rope,
            traits=traits,
            tie_word_embeddings=hf.tie_word_embeddings,
            dtype=getattr(torch, hf.dtype),
            eos_token_ids=hf.ids | read(EndTokens, generation_config).ids,
            bos_token_id=hf.bos_token_id,
        )


def load_config(model: Path | ModelFiles) -> ModelConfig:
    """Read config.json, and generation_config.json where there is one, or what a GGUF file has.

    Raises CheckpointError when they cannot be read, UnsupportedModelError as `from_hf`.
    """
    files = files_of(model)
    return ModelConfig.from_hf(files.config(), files.generation_config())


def recommended_sampling(model: Path | ModelFiles) -> dict[str, Any]:
    """What generation_config.json says of sampling, as it stands there; null is left out.

    Raises CheckpointError when the file cannot be read.
    """
    given = files_of(model).generation_config()
    return {name: given[name] for name in _SAMPLING_FIELDS if given.get(name) is not None}
