"""The tokens of a GGUF file, as Hugging Face's JSON files would have them: those with a meaning
of their own, what ends an answer, how one is drawn, and chat templates.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from radixlm.formats.gguf_file import GGUFFile

_LONGEST_TEMPLATE = 4 * 2**20  # characters
_SPECIAL_KINDS = (3, 4)  # control, user-defined
# Ends of turns and texts, where they are special tokens: files name but one, models have several.
_ENDS = frozenset(
    [
        "<|eot_id|>",
        "<|eom_id|>",
        "<|im_end|>",
        "<|end|>",
        "<|endoftext|>",
        "<|end_of_text|>",
        "<end_of_turn>",
        "<turn|>",
        "<|tool_response>",
    ]
)
# Where `<|end|>` ends one of an answer's messages.
_ENDS_OF_HARMONY = frozenset(["<|return|>", "<|call|>"])
_SAMPLING = {
    "temperature": "temp",
    "top_p": "top_p",
    "min_p": "min_p",
    "repetition_penalty": "penalty_repeat",
}
# A special token's name, its key, and what it is in SentencePiece's vocabularies without one.
_SPECIAL = {
    "bos_token": ("tokenizer.ggml.bos_token_id", 1),
    "eos_token": ("tokenizer.ggml.eos_token_id", 2),
    "unk_token": ("tokenizer.ggml.unknown_token_id", 0),
    "pad_token": ("tokenizer.ggml.padding_token_id", None),
}


def generation_config_of(file: GGUFFile) -> dict[str, Any]:
    """The config as generation_config.json has it: what ends an answer, and how to draw it."""
    ids = {
        special_id(file, "eos_token"),
        _id(file, "tokenizer.ggml.eot_token_id"),
        _id(file, "tokenizer.ggml.eom_token_id"),
    }
    kinds = file.metadata.get("tokenizer.ggml.token_type")
    if isinstance(kinds, np.ndarray):
        pairs = zip(tokens_of(file), kinds.tolist(), strict=False)
        special = {text: at for at, (text, kind) in enumerate(pairs) if kind in _SPECIAL_KINDS}
        ends = _ENDS_OF_HARMONY if special.keys() >= _ENDS_OF_HARMONY else _ENDS
        ids |= {at for text, at in special.items() if text in ends}
    drawn = {name: file.number(f"general.sampling.{key}") for name, key in _SAMPLING.items()}
    drawn["top_k"] = file.get("general.sampling.top_k", int)
    given = {name: value for name, value in drawn.items() if value is not None}
    return given | {"eos_token_id": sorted(each for each in ids if each is not None)}


def tokenizer_config_of(file: GGUFFile) -> dict[str, Any]:
    """The config as tokenizer_config.json has it: special tokens and chat templates."""
    tokens = tokens_of(file)
    ids = {name: special_id(file, name) for name in _SPECIAL}
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


def special_id(file: GGUFFile, name: str) -> int | None:
    key, default = _SPECIAL[name]
    return _id(file, key, default if file.get("tokenizer.ggml.model", str) == "llama" else None)


def _id(file: GGUFFile, key: str, default: int | None = None) -> int | None:
    value: int | None = file.get(key, int, default)
    count = len(tokens_of(file))
    if value is not None and not 0 <= value < count:
        raise file.wrong(key, f"{value}, no id of a vocabulary of {count} tokens")
    return value
