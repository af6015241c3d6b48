"""The configs of a GGUF file's model, as Hugging Face's JSON files would have them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from gguf import MODEL_TENSOR, TENSOR_NAMES

from radixlm.core.errors import CheckpointError, UnsupportedModelError
from radixlm.formats import gguf_fields as fields
from radixlm.formats.gguf_fields import ATTENTION, FAMILIES, LLM, ROPE, Family
from radixlm.formats.gguf_file import GGUFFile

_FACTORS = f"{TENSOR_NAMES[MODEL_TENSOR.ROPE_FREQS]}.weight"
_LONG_FACTORS = {
    "short_factor": f"{TENSOR_NAMES[MODEL_TENSOR.ROPE_FACTORS_SHORT]}.weight",
    "long_factor": f"{TENSOR_NAMES[MODEL_TENSOR.ROPE_FACTORS_LONG]}.weight",
}
# DeepSeek V3's files of 2025 do not say in which groups its 256 experts are.
_GROUPED = {256: (8, 4)}
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
# Where `<|end|>` ends one of an answer's messages.
_ENDS_OF_HARMONY = frozenset(["<|return|>", "<|call|>"])
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
    "attention_factor": ROPE.SCALING_YARN_ATTN_FACTOR,
    "beta_fast": ROPE.SCALING_YARN_BETA_FAST,
    "beta_slow": ROPE.SCALING_YARN_BETA_SLOW,
}


def family_of(file: GGUFFile) -> Family:
    """Raises UnsupportedModelError for an architecture that is not served."""
    architecture = file.get("general.architecture", str)
    if architecture not in FAMILIES:
        raise UnsupportedModelError(
            f"{file.path}: general.architecture is {architecture!r:.80}, which is not supported; "
            f"supported: {', '.join(FAMILIES)}"
        )
    return FAMILIES[architecture]


def config_of(file: GGUFFile) -> dict[str, Any]:
    """The config as config.json has it. Raises CheckpointError that names the key,
    UnsupportedModelError.
    """
    family, entries = family_of(file), _Entries(file)
    layers, spare = entries.needed(LLM.BLOCK_COUNT), entries.count(LLM.NEXTN_PREDICT_LAYERS) or 0
    plain = all(tensor.type.name == "F32" for tensor in file.tensors.values())
    config = {
        "vocab_size": entries.size(LLM.VOCAB_SIZE) or len(tokens_of(file)),
        "num_hidden_layers": layers - spare,
        "num_nextn_predict_layers": spare,
        "tie_word_embeddings": "output.weight" not in file.tensors,
        "dtype": "float32" if plain else "bfloat16",
        "bos_token_id": _special_id(file, "bos_token"),
        "max_window_layers": 0,
        **family.fields,
        **entries.fields(),
        **_tensors(file, layers - spare),
    }
    if "rms_norm_eps" not in config:
        raise file.wrong(entries.key(ATTENTION.LAYERNORM_RMS_EPS), "missing")
    config["use_sliding_window"] = "sliding_window" in config
    config["model_type"] = next(
        (name for field, name in family.instead.items() if config.get(field)), family.model_type
    )
    config |= _latents(config, entries) if "kv_lora_rank" in config else _heads(config, entries)
    if layers == family.deep:
        config["query_pre_attn_scalar"] = config["hidden_size"] / config["num_attention_heads"]
    return config | {"rope_scaling": _rope(entries, family, config)}


class _Entries:
    """An architecture's entries, by the keys of the `gguf` package."""

    def __init__(self, file: GGUFFile) -> None:
        self.file = file
        self._architecture = file.get("general.architecture", str)

    def key(self, template: str) -> str:
        return template.format(arch=self._architecture)

    def get(self, template: str, kind: type) -> Any:
        return self.file.get(self.key(template), kind)

    def count(self, template: str) -> int | None:
        """An integer from 0; one for each layer may be a list, if all are the same."""
        key = self.key(template)
        value = self.file.metadata.get(key)
        if isinstance(value, np.ndarray) and value.size and value.dtype.kind in "iu":
            if (value != value[0]).any():
                raise UnsupportedModelError(
                    f"{self.file.path}: {key} is {value.tolist()!r:.200}, which is not supported; "
                    "supported: the same for all layers"
                )
            value = int(value[0])
        elif value is not None:
            value = self.file.get(key, int)
        if value is not None and not 0 <= value <= _MOST:
            raise self.file.wrong(key, f"{value}, no size from 1 to {_MOST}")
        return value

    def size(self, template: str) -> int | None:
        return self.count(template) or None

    def needed(self, template: str) -> int:
        value = self.count(template)
        if not value:
            said = "missing" if value is None else f"{value}, no size from 1 to {_MOST}"
            raise self.file.wrong(self.key(template), said)
        return value

    def number(self, template: str) -> float | None:
        """The shortest decimal of a float32: 1e-5 was stored, not 9.999999747378752e-06."""
        return _shortest(self.get(template, float))

    def fields(self) -> dict[str, Any]:
        """The fields that entries are, without those that are not there."""
        read = (
            (self.needed, fields.NEEDED),
            (self.size, fields.SIZES),
            (self.count, fields.COUNTS),
            (self.number, fields.NUMBERS),
            (lambda key: self.get(key, bool), fields.FLAGS),
        )
        found = {
            name: value
            for get, table in read
            for key, names in table.items()
            if (value := get(key)) is not None
            for name in names
        }
        scores = self.count(LLM.EXPERT_GATING_FUNC)
        if scores:
            found["scoring_func"] = fields.SCORES.get(scores, str(scores))
        windowed = self.file.metadata.get(self.key(ATTENTION.SLIDING_WINDOW_PATTERN))
        if isinstance(windowed, np.ndarray):
            kinds = ("full_attention", "sliding_attention")
            found["layer_types"] = [kinds[int(its != 0)] for its in windowed]
        elif windowed is not None:
            found["sliding_window_pattern"] = windowed
        return found


def _tensors(file: GGUFFile, layers: int) -> dict[str, Any]:
    """The fields that tensors say by being there."""
    found: dict[str, Any] = {}
    for tensor, names in fields.TENSORS.items():
        has = any(f"blk.{layer}.{tensor}" in file.tensors for layer in (0, layers - 1))
        found |= {name: has or found.get(name, False) for name in names}
    return found


def _heads(config: Mapping[str, Any], entries: _Entries) -> dict[str, Any]:
    heads, hidden = config["num_attention_heads"], config["hidden_size"]
    head_dim = entries.size(ATTENTION.KEY_LENGTH) or hidden // heads
    if not head_dim:
        raise entries.file.wrong(entries.key(ATTENTION.HEAD_COUNT), f"{heads}, of {hidden} numbers")
    if entries.size(ATTENTION.VALUE_LENGTH) not in (None, head_dim):
        raise entries.file.wrong(entries.key(ATTENTION.VALUE_LENGTH), f"not the keys', {head_dim}")
    turned = entries.size(ROPE.DIMENSION_COUNT) or head_dim
    return {
        "head_dim": head_dim,
        "query_pre_attn_scalar": float(head_dim),
        "partial_rotary_factor": turned / head_dim,
    }


def _latents(config: Mapping[str, Any], entries: _Entries) -> dict[str, Any]:
    """The fields of models whose keys and values are latents. Newer files have the sizes of heads
    under keys of their own: the others are those of what all heads read.
    """
    turned = entries.needed(ROPE.DIMENSION_COUNT)
    is_new = entries.count(ATTENTION.KEY_LENGTH_MLA) is not None
    key, value = (
        entries.needed(template)
        for template in (
            (ATTENTION.KEY_LENGTH_MLA, ATTENTION.VALUE_LENGTH_MLA)
            if is_new
            else (ATTENTION.KEY_LENGTH, ATTENTION.VALUE_LENGTH)
        )
    )
    if key <= turned:
        raise entries.file.wrong(entries.key(ROPE.DIMENSION_COUNT), f"{turned}, of {key}")
    groups, chosen = _GROUPED.get(config.get("n_routed_experts", 0), (1, 1))
    groups = config.get("n_group", groups)
    grouped = groups > 1 and not config["corrected"]
    ways = {"topk_method": "group_limited_greedy"} if grouped else {}
    return ways | {
        "num_key_value_heads": None,
        "qk_rope_head_dim": turned,
        "qk_nope_head_dim": key - turned,
        "v_head_dim": value,
        "n_group": groups,
        "topk_group": config.get("topk_group", chosen),
    }


def _rope(entries: _Entries, family: Family, config: Mapping[str, Any]) -> dict[str, Any] | None:
    """`factors`, which files of Llama 3.1 and later have, are what frequencies are divided by."""
    file = entries.file
    turned = config.get("qk_rope_head_dim") or round(
        config["head_dim"] * config["partial_rotary_factor"]
    )
    kind = entries.get(ROPE.SCALING_TYPE, str) or "none"
    factor = entries.number(ROPE.SCALING_FACTOR)
    if kind == "none" or factor is None:
        factor = entries.number("{arch}.rope.scale_linear")
        kind = kind if factor is None else "linear"
    if all(name in file.tensors for name in _LONG_FACTORS.values()):
        lists = {name: _factors(file, its, turned) for name, its in _LONG_FACTORS.items()}
        by = {"attention_factor": entries.number(ROPE.SCALING_ATTN_FACTOR)}
        return {"rope_type": "longrope", **lists, **by}
    if _FACTORS in file.tensors:
        if kind != "none":
            raise UnsupportedModelError(
                f"{file.path} has both {_FACTORS} and {entries.key(ROPE.SCALING_TYPE)} "
                f"{kind!r:.80}, which is not supported; supported: one of them"
            )
        return {"rope_type": "factors", "factors": _factors(file, _FACTORS, turned)}
    if kind == "none":
        return None
    scale = entries.number(ROPE.SCALING_YARN_LOG_MUL)
    scale = None if scale is None else round(scale * family.log_scale, 6)
    return {
        "rope_type": kind,
        "factor": factor,
        "original_max_position_embeddings": entries.size(ROPE.SCALING_ORIG_CTX_LEN),
        **{name: entries.number(template) for name, template in _YARN.items()},
        **({"mscale": scale, "mscale_all_dim": scale} if scale else {}),
        **({"llama_4_scaling_beta": config["growing"]} if "growing" in config else {}),
        **family.rope,
    }


def _factors(file: GGUFFile, name: str, turned: int) -> list[float]:
    tensor = file.tensors[name]
    if tensor.type.name != "F32" or tensor.shape != (turned // 2,):
        raise CheckpointError(
            f"tensor {name!r} has type {tensor.type.name} and shape {tensor.shape}; "
            f"supported: F32, {(turned // 2,)}"
        )
    factors: list[float] = file.data(name).view("<f4").tolist()
    return factors


def _shortest(value: float | None) -> float | None:
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
        control = {text: at for at, (text, kind) in enumerate(pairs) if kind == _CONTROL}
        ends = _ENDS_OF_HARMONY if control.keys() >= _ENDS_OF_HARMONY else _ENDS
        ids |= {at for text, at in control.items() if text in ends}
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
