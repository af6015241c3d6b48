"""The configs of a GGUF file's model, as Hugging Face's JSON files would have them."""

from __future__ import annotations

from typing import Any

import numpy as np

from radixlm.core.errors import CheckpointError, UnsupportedModelError
from radixlm.formats.gguf_file import GGUFFile

ROPE_FACTORS = "rope_freqs.weight"
_ARCHITECTURES = ("llama", "qwen2", "qwen3")
_MOST = 2**31 - 1
_LONGEST_TEMPLATE = 4 * 2**20  # characters
_CONTROL = 3
# Ends of turns and texts, where they are control tokens: files name but one, models have several.
_ENDS = frozenset(
    [
        "<|eot_id|>",
        "<|eom_id|>",
        "<|im_end|>",
        "<|end|>",
        "<|endoftext|>",
        "<|end_of_text|>",
        "<end_of_turn>",
    ]
)
_SAMPLING = {
    "temperature": ("temp", float),
    "top_p": ("top_p", float),
    "top_k": ("top_k", int),
    "min_p": ("min_p", float),
    "repetition_penalty": ("penalty_repeat", float),
}
# A special token's name, its key, and what it is in SentencePiece's vocabularies without one.
_SPECIAL = {
    "bos_token": ("tokenizer.ggml.bos_token_id", 1),
    "eos_token": ("tokenizer.ggml.eos_token_id", 2),
    "unk_token": ("tokenizer.ggml.unknown_token_id", 0),
    "pad_token": ("tokenizer.ggml.padding_token_id", None),
}
_YARN = {
    "attention_factor": "yarn_attn_factor",
    "beta_fast": "yarn_beta_fast",
    "beta_slow": "yarn_beta_slow",
}


def config_of(file: GGUFFile) -> dict[str, Any]:
    """The config as config.json has it. Raises CheckpointError that names the key,
    UnsupportedModelError.
    """
    architecture = file.get("general.architecture", str)
    if architecture not in _ARCHITECTURES:
        raise UnsupportedModelError(
            f"{file.path}: general.architecture is {architecture!r:.80}, which is not supported; "
            f"supported: {', '.join(_ARCHITECTURES)}"
        )
    size = _Sizes(file, architecture)
    heads, hidden = size["attention.head_count"], size["embedding_length"]
    head_dim = size.get("attention.key_length") or hidden // heads
    if not head_dim:
        raise file.wrong(f"{architecture}.attention.head_count", f"{heads}, of {hidden} numbers")
    if size.get("attention.value_length") not in (None, head_dim):
        raise file.wrong(f"{architecture}.attention.value_length", f"not the keys', {head_dim}")
    key = f"{architecture}.attention.layer_norm_rms_epsilon"
    if (epsilon := file.get(key, float)) is None:
        raise file.wrong(key, "missing")
    plain = all(tensor.type.name == "F32" for tensor in file.tensors.values())
    config = {
        "model_type": architecture,
        "vocab_size": size.get("vocab_size") or len(tokens_of(file)),
        "hidden_size": hidden,
        "intermediate_size": size["feed_forward_length"],
        "num_hidden_layers": size["block_count"],
        "num_attention_heads": heads,
        "num_key_value_heads": size.get("attention.head_count_kv"),
        "head_dim": head_dim,
        "max_position_embeddings": size["context_length"],
        "rms_norm_eps": _shortest(epsilon),
        "rope_theta": _shortest(file.get(f"{architecture}.rope.freq_base", float, 10_000.0)),
        "rope_scaling": _rope(file, architecture, head_dim),
        "partial_rotary_factor": (size.get("rope.dimension_count") or head_dim) / head_dim,
        "tie_word_embeddings": "output.weight" not in file.tensors,
        "attention_bias": "blk.0.attn_q.bias" in file.tensors,
        "mlp_bias": "blk.0.ffn_down.bias" in file.tensors,
        "num_experts": file.get(f"{architecture}.expert_count", int) or None,
        "dtype": "float32" if plain else "bfloat16",
        "bos_token_id": _special_id(file, "bos_token"),
    }
    return config | _window(size, architecture)


class _Sizes:
    """An architecture's entries that are sizes."""

    def __init__(self, file: GGUFFile, architecture: str) -> None:
        self._file, self._architecture = file, architecture

    def get(self, name: str) -> int | None:
        key = f"{self._architecture}.{name}"
        value: int | None = self._file.get(key, int)
        if value is not None and not 0 < value <= _MOST:
            raise self._file.wrong(key, f"{value}, no size from 1 to {_MOST}")
        return value

    def __getitem__(self, name: str) -> int:
        value = self.get(name)
        if value is None:
            raise self._file.wrong(f"{self._architecture}.{name}", "missing")
        return value


def _window(size: _Sizes, architecture: str) -> dict[str, Any]:
    window = size.get("attention.sliding_window")
    if window is None:
        return {}
    if architecture == "llama":
        return {"model_type": "mistral", "sliding_window": window}
    return {"use_sliding_window": True, "sliding_window": window, "max_window_layers": 0}


def _rope(file: GGUFFile, architecture: str, head_dim: int) -> dict[str, Any] | None:
    """`factors`, which files of Llama 3.1 and later have, are what frequencies are divided by."""
    place = f"{architecture}.rope.scaling"
    kind = file.get(f"{place}.type", str, "none")
    factor = _shortest(file.get(f"{place}.factor", float))
    if kind == "none" or factor is None:
        factor = _shortest(file.get(f"{architecture}.rope.scale_linear", float))
        kind = kind if factor is None else "linear"
    if ROPE_FACTORS in file.tensors:
        if kind != "none":
            raise UnsupportedModelError(
                f"{file.path} has both {ROPE_FACTORS} and {place}.type {kind!r:.80}, which is not "
                "supported; supported: one of them"
            )
        return {"rope_type": "factors", "factors": _factors(file, head_dim)}
    if kind == "none":
        return None
    values = {name: file.get(f"{place}.{key}", float) for name, key in _YARN.items()}
    return {
        "rope_type": kind,
        "factor": factor,
        "original_max_position_embeddings": file.get(f"{place}.original_context_length", int),
        **{name: _shortest(value) for name, value in values.items()},
    }


def _factors(file: GGUFFile, head_dim: int) -> list[float]:
    tensor = file.tensors[ROPE_FACTORS]
    if tensor.type.name != "F32" or tensor.shape != (head_dim // 2,):
        raise CheckpointError(
            f"tensor {ROPE_FACTORS!r} has type {tensor.type.name} and shape {tensor.shape}; "
            f"supported: F32, {(head_dim // 2,)}"
        )
    factors: list[float] = file.data(ROPE_FACTORS).view("<f4").tolist()
    return factors


def _shortest(value: float | None) -> float | None:
    """The shortest decimal of a float32: 1e-5 was stored, not 9.999999747378752e-06."""
    return None if value is None else float(str(np.float32(value)))


def generation_config_of(file: GGUFFile) -> dict[str, Any]:
    """The config as generation_config.json has it: what ends an answer, and how to draw it."""
    ids = {
        _special_id(file, "eos_token"),
        _id(file, "tokenizer.ggml.eot_token_id"),
        _id(file, "tokenizer.ggml.eom_token_id"),
    }
    kinds = file.metadata.get("tokenizer.ggml.token_type")
    if isinstance(kinds, np.ndarray):
        pairs = zip(tokens_of(file), kinds.tolist(), strict=False)
        ids |= {at for at, (text, kind) in enumerate(pairs) if kind == _CONTROL and text in _ENDS}
    drawn = {
        name: file.get(f"general.sampling.{key}", kind) for name, (key, kind) in _SAMPLING.items()
    }
    given = {
        name: _shortest(value) if isinstance(value, float) else value
        for name, value in drawn.items()
        if value is not None
    }
    return given | {"eos_token_id": sorted(each for each in ids if each is not None)}


def tokenizer_config_of(file: GGUFFile) -> dict[str, Any]:
    """The config as tokenizer_config.json has it: special tokens and chat templates."""
    tokens = tokens_of(file)
    ids = {name: _special_id(file, name) for name in _SPECIAL}
    config: dict[str, Any] = {name: tokens[at] for name, at in ids.items() if at is not None}
    templates = _templates(file)
    if list(templates) == ["default"]:
        return config | {"chat_template": templates["default"]}
    if templates:
        entries = [{"name": name, "template": text} for name, text in templates.items()]
        config["chat_template"] = entries
    return config


def _templates(file: GGUFFile) -> dict[str, str]:
    """The chat templates, by their names."""
    key = "tokenizer.chat_template"
    found = {}
    for each in file.metadata:
        if each == key or each.startswith(f"{key}."):
            text = file.get(each, str)
            if len(text) > _LONGEST_TEMPLATE:
                raise file.wrong(each, f"longer than {_LONGEST_TEMPLATE} characters")
            found[each.removeprefix(key).removeprefix(".") or "default"] = text
    return found


def tokens_of(file: GGUFFile) -> list[str]:
    """The vocabulary, in the order of its ids."""
    found = file.metadata.get("tokenizer.ggml.tokens")
    if not isinstance(found, list) or not found:
        raise file.wrong("tokenizer.ggml.tokens", "not a list of texts")
    return found


def _special_id(file: GGUFFile, name: str) -> int | None:
    key, default = _SPECIAL[name]
    return _id(file, key, default if file.get("tokenizer.ggml.model", str) == "llama" else None)


def _id(file: GGUFFile, key: str, default: int | None = None) -> int | None:
    value: int | None = file.get(key, int, default)
    count = len(tokens_of(file))
    if value is not None and not 0 <= value < count:
        raise file.wrong(key, f"{value}, no id of a vocabulary of {count} tokens")
    return value
