"""config.json, read once at the boundary into a frozen ModelConfig; nothing else reads it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch

from radixlm.core.errors import CheckpointError
from radixlm.core.files import read_json_object
from radixlm.layers.rotary import RopeConfig
from radixlm.models.config_fields import MOST, Fields
from radixlm.models.registry import read_traits
from radixlm.models.rope import read_rope

_DTYPES = MappingProxyType(
    {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
)

_MOST_EOS = 1_000

# `do_sample` is not among them: requests say what they want by `temperature`.
_SAMPLING_FIELDS = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """A decoder's shape. Sizes are in elements, `context_length` is in tokens.

    sliding_window: tokens that a token sees at most, itself included; None: all before it.
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
    sliding_window: int | None
    rms_norm_eps: float
    rope: RopeConfig
    qkv_bias: bool
    output_bias: bool
    mlp_bias: bool
    qk_norm: bool
    tie_word_embeddings: bool
    dtype: torch.dtype
    eos_token_ids: frozenset[int]
    bos_token_id: int | None

    @classmethod
    def from_hf(
        cls, config: Mapping[str, Any], generation_config: Mapping[str, Any] | None = None
    ) -> ModelConfig:
        """Translate the parsed config.json (transformers 4 or 5) and generation_config.json.

        Raises UnsupportedModelError that names the field, its value and what is supported.
        """
        fields = Fields(config)
        traits = read_traits(fields)
        _refuse_unsupported(fields)
        rope = read_rope(fields)
        n_heads = fields.integer("num_attention_heads")
        n_kv_heads = fields.integer("num_key_value_heads", n_heads)
        if n_heads % n_kv_heads:
            raise fields.wrong("num_key_value_heads", f"a divisor of {n_heads} attention heads")
        hidden_size = fields.integer("hidden_size")
        head_dim = fields.integer("head_dim", traits.head_dim or hidden_size // n_heads)
        if head_dim % 2:
            raise fields.wrong("head_dim", f"an even number, but it is {head_dim}")
        return cls(
            model_type=config["model_type"],
            vocab_size=fields.integer("vocab_size"),
            hidden_size=hidden_size,
            intermediate_size=fields.integer("intermediate_size"),
            n_layers=fields.integer("num_hidden_layers"),
            n_heads=n_heads,
            n_kv_heads=n_kv_heads,
            head_dim=head_dim,
            context_length=rope.context_length,
            sliding_window=traits.sliding_window,
            rms_norm_eps=fields.number("rms_norm_eps", 1e-6),
            rope=rope.config,
            qkv_bias=traits.qkv_bias,
            output_bias=traits.output_bias,
            mlp_bias=traits.mlp_bias,
            qk_norm=traits.qk_norm,
            tie_word_embeddings=fields.flag("tie_word_embeddings"),
            dtype=_dtype(fields),
            eos_token_ids=_eos(fields) | _eos(Fields(generation_config or {})),
            bos_token_id=_token_id(fields, "bos_token_id", config.get("bos_token_id")),
        )


def load_config(folder: Path) -> ModelConfig:
    """Read config.json, and generation_config.json where there is one, from a model's folder.

    Raises CheckpointError when they cannot be read, UnsupportedModelError as `from_hf`.
    """
    if not folder.is_dir():
        raise CheckpointError(f"{folder} is not a folder; a model is a folder with a config.json")
    path = folder / "config.json"
    if not path.is_file():
        raise CheckpointError(f"{folder} has no config.json; is it a Hugging Face model folder?")
    generation = folder / "generation_config.json"
    return ModelConfig.from_hf(
        read_json_object(path), read_json_object(generation) if generation.is_file() else None
    )


def recommended_sampling(folder: Path) -> dict[str, Any]:
    """What generation_config.json says of sampling, as it stands there; null is left out.

    Raises CheckpointError when the file cannot be read.
    """
    path = folder / "generation_config.json"
    given = read_json_object(path) if path.is_file() else {}
    return {name: given[name] for name in _SAMPLING_FIELDS if given.get(name) is not None}


def _refuse_unsupported(fields: Fields) -> None:
    if fields.get("hidden_act") not in (None, "silu"):
        raise fields.wrong("hidden_act", "silu")
    if fields.get("quantization_config") is not None:
        raise fields.wrong("quantization_config", "weights in float32, bfloat16 or float16")
    for name in ("num_experts", "num_local_experts", "n_routed_experts"):
        if fields.get(name) is not None:
            raise fields.wrong(name, "dense models only")
    names = fields.names("architectures")
    if names and not any(name.endswith("ForCausalLM") for name in names):
        raise fields.wrong("architectures", "...ForCausalLM")


def _dtype(fields: Fields) -> torch.dtype:
    name = "torch_dtype" if fields.get("dtype") is None else "dtype"
    value = fields.get(name)
    if value is None:
        return torch.float32
    dtype = _DTYPES.get(str(value).removeprefix("torch."))
    if dtype is None:
        raise fields.wrong(name, ", ".join(_DTYPES))
    return dtype


def _eos(fields: Fields) -> frozenset[int]:
    value = fields.get("eos_token_id")
    ids = value if isinstance(value, list) else [value]
    if len(ids) > _MOST_EOS:
        raise fields.wrong("eos_token_id", f"{_MOST_EOS} token ids at most")
    found = (_token_id(fields, "eos_token_id", token) for token in ids)
    return frozenset(token for token in found if token is not None)


def _token_id(fields: Fields, name: str, value: object) -> int | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or abs(value) > MOST:
        raise fields.wrong(name, "token ids")
    return value
