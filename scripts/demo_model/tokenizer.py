"""Byte-level BPE tokenizer and the chat template; no token is added behind the caller's back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from .corpus import Messages, short_documents
from .questions import Rng

VOCAB = 2048
BOS, EOS, PAD = "<|bos|>", "<|eos|>", "<|pad|>"
ROLES = {"system": "<|system|>", "user": "<|user|>", "assistant": "<|assistant|>"}

# Each message is role, text, eos. So the prompt of turn n+1 begins with exactly the tokens of
# turn n and its answer, and a prefix cache serves all of them.
CHAT_TEMPLATE = (
    "{{- bos_token -}}"
    "{%- for message in messages -%}"
    "{%- if message['role'] in ['system', 'developer'] -%}{{- '<|system|>' -}}"
    "{%- elif message['role'] == 'assistant' -%}{{- '<|assistant|>' -}}"
    "{%- else -%}{{- '<|user|>' -}}{%- endif -%}"
    "{{- message['content'] or '' -}}{{- eos_token -}}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{- '<|assistant|>' -}}{%- endif -%}"
)


def text_of(document: Messages | str) -> str:
    """The same text the chat template renders, or plain text closed with eos."""
    if isinstance(document, str):
        return document + EOS
    return BOS + "".join(f"{ROLES[role]}{text}{EOS}" for role, text in document)


def make_tokenizer(seed: int) -> Tokenizer:
    """Each digit is its own token, so that sums and counting line up; any bytes can be encoded."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    documents = short_documents(Rng(seed), 12)
    texts = []
    for _ in range(12_000):
        document = next(documents)
        texts += [document] if isinstance(document, str) else [text for _, text in document]
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB,
        special_tokens=[PAD, BOS, EOS, *ROLES.values()],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def save_tokenizer(tokenizer: Tokenizer, folder: Path) -> None:
    make: Any = PreTrainedTokenizerFast
    fast = make(
        tokenizer_object=tokenizer,
        bos_token=BOS,
        eos_token=EOS,
        pad_token=PAD,
        add_bos_token=False,
        add_eos_token=False,
        clean_up_tokenization_spaces=False,
        model_max_length=4096,
        chat_template=CHAT_TEMPLATE,
    )
    fast.save_pretrained(folder, save_jinja_files=False)
    path = folder / "tokenizer_config.json"
    config = json.loads(path.read_text())
    # Transformers 4 knows only this name for a plain tokenizer.json, 5 knows it too.
    config.update(tokenizer_class="PreTrainedTokenizerFast", add_bos_token=False)
    config.pop("backend", None)
    path.write_text(json.dumps(config, indent=2) + "\n")


def special_ids(tokenizer: Tokenizer) -> tuple[int, int, int]:
    """bos, eos, pad."""
    vocabulary = tokenizer.get_vocab()
    return vocabulary[BOS], vocabulary[EOS], vocabulary[PAD]


class Packer:
    """Cuts the endless stream of documents into rows, each beginning at a document's start."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._answer = tokenizer.token_to_id(ROLES["assistant"])
        self._bos = tokenizer.token_to_id(BOS)
        self._eos = tokenizer.token_to_id(EOS)
        self._stops = {tokenizer.token_to_id(mark) for mark in ",."}

    def weights(self, ids: list[int], other: float) -> list[float]:
        """Answers (with their eos) and plain text count 1, the rest `other`.

        Commas and full stops count more: they decide whether a list goes on.
        """
        inside = ids[0] != self._bos
        weights = []
        for token in ids:
            weights.append((3.0 if token in self._stops else 1.0) if inside else other)
            if token == self._answer:
                inside = True
            elif token == self._eos:
                inside = False
        return weights

    def rows(
        self, documents: list[Messages | str], length: int, other: float
    ) -> list[tuple[np.ndarray, np.ndarray]]:
        """(`length` + 1 ids, their loss weights) per row."""
        encodings = self._tokenizer.encode_batch_fast([text_of(d) for d in documents])
        out = []
        ids: list[int] = []
        weights: list[float] = []
        for encoding in encodings:
            ids += encoding.ids
            weights += self.weights(encoding.ids, other)
            if len(ids) > length:
                row = np.array(ids[: length + 1], np.int64)
                out.append((row, np.array(weights[: length + 1], np.float32)))
                ids, weights = [], []
        return out
