"""Tiny tokenizers of the two families, and texts that are hard for them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors

SAMPLES = (
    "hello world",
    "  two spaces, and a trailing one ",
    "é ü ß ñ",
    "你好，世界",
    "🙂👩‍👩‍👧🇩🇪",
    "नमस्ते שלום مرحبا",
    "a\n\tb\r\n",
    'fn main() { println!("{}", 1+1); }',
    "hello hello the the",
)
_MERGES = [("h", "e"), ("l", "l"), ("he", "ll"), ("hell", "o"), ("t", "h"), ("th", "e")]


def byte_level() -> tokenizers.Tokenizer:
    """Byte-level BPE as GPT-2's, with two special tokens and one that is added but not special."""
    spelled = [*sorted(pre_tokenizers.ByteLevel.alphabet())]
    merges = [*_MERGES, ("Ġ", "the"), ("Ã", "©")]
    vocab = {text: place for place, text in enumerate([*spelled, *map("".join, merges)])}
    tokenizer = tokenizers.Tokenizer(models.BPE(vocab, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<|start|>", "<|end|>"])
    tokenizer.add_tokens(["<think>"])
    return tokenizer


def sentencepiece_like() -> tokenizers.Tokenizer:
    """BPE with marks for spaces and bytes as tokens, as Llama 2's; adds <s> in front."""
    vocab = {"<unk>": 0, "<s>": 1, "</s>": 2}
    for text in (
        *(f"<0x{byte:02X}>" for byte in range(256)),
        "▁",
        *"abdefghilmnoprstuw",
        "é",
        "你",
    ):
        vocab[text] = len(vocab)
    merges = [*_MERGES, ("▁", "the"), ("▁", "hello")]
    for left, right in merges:
        vocab[left + right] = len(vocab)
    tokenizer = tokenizers.Tokenizer(
        models.BPE(vocab, merges, unk_token="<unk>", byte_fallback=True, fuse_unk=True)  # noqa: S106
    )
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    tokenizer.add_special_tokens(["<s>", "</s>"])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", 1)]
    )
    return tokenizer


def metaspace() -> tokenizers.Tokenizer:
    """As `sentencepiece_like`, with the marks put and taken by Metaspace."""
    tokenizer = sentencepiece_like()
    tokenizer.normalizer = None
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    tokenizer.decoder = decoders.Sequence(
        [decoders.ByteFallback(), decoders.Metaspace(prepend_scheme="first")]
    )
    return tokenizer


def write_folder(
    folder: Path, tokenizer: tokenizers.Tokenizer, config: Mapping[str, Any] | None = None
) -> None:
    """Write the tokenizer's files into `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    if config is not None:
        (folder / "tokenizer_config.json").write_text(json.dumps(config))
