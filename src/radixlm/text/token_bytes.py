"""The bytes that a token stands for, read once from the tokenizer's decoder.

Every tokenizer of a language model decodes by a table from token to bytes, plus at most one leading
space to be dropped. So text is the joined bytes read as UTF-8, and decoding step by step needs no
second look at earlier tokens: the standard library's incremental decoder holds half a character
back. Other decoders are refused.

    byte-level BPE      every character of a token names a byte          "Ġhi"   -> b" hi"
    sentencepiece-like  a mark stands for the space, <0xE4> for a byte   "▁hi"   -> b" hi"
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from radixlm.core.errors import ModelError

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>\Z")


@dataclass(frozen=True, slots=True)
class TokenBytes:
    """How a token's spelling in the vocabulary becomes bytes.

    byte_level: each character of the spelling names one byte, as in GPT-2.
    byte_fallback: a spelling such as <0xE4> is that byte.
    replace: (old, new) texts, applied in order.
    prefix: text put before each token (vocabularies of whole words).
    drops_first_space: one space at the very beginning of the whole text is not part of it.
    """

    byte_level: Mapping[str, int] | None = None
    byte_fallback: bool = False
    replace: tuple[tuple[str, str], ...] = ()
    prefix: str = ""
    drops_first_space: bool = False

    def of(self, spelling: str, *, added: bool) -> bytes:
        """Bytes of one token; `added` tokens are spelled as plain text in byte-level vocabularies.

        >>> TokenBytes(replace=(("▁", " "),)).of("▁hi", added=False)
        b' hi'
        """
        if self.byte_level is not None:
            if added or not self.byte_level.keys() >= set(spelling):
                return spelling.encode()  # it stands for itself
            return bytes(map(self.byte_level.__getitem__, spelling))
        match = _BYTE_TOKEN.match(spelling) if self.byte_fallback else None
        if match:
            return bytes([int(match[1], 16)])
        for old, new in self.replace:
            spelling = spelling.replace(old, new)
        return (self.prefix + spelling).encode()


def read_decoder(decoder: Mapping[str, Any] | None) -> TokenBytes:
    """Read the `decoder` of a tokenizer.json. Raises ModelError for kinds that are not supported.

    Kinds: https://github.com/huggingface/tokenizers/tree/main/tokenizers/src/decoders
    """
    if decoder is None:  # the library then puts tokens one space apart
        return TokenBytes(prefix=" ", drops_first_space=True)
    steps = decoder["decoders"] if decoder["type"] == "Sequence" else [decoder]
    kinds = [step["type"] for step in steps]
    if "ByteLevel" in kinds:
        if set(kinds) - {"ByteLevel", "Fuse"}:
            raise _unsupported(kinds)
        return TokenBytes(byte_level=byte_alphabet())
    replace: list[tuple[str, str]] = []
    drops_first_space = False
    for place, step in enumerate(steps):
        match step["type"]:
            case "Replace" if "String" in step["pattern"]:
                replace.append((step["pattern"]["String"], step["content"]))
            case "Metaspace":
                replace.append((step["replacement"], " "))
                scheme = step.get("prepend_scheme", "always")
                drops_first_space = scheme != "never" and step.get("add_prefix_space", True)
            case "Strip" if _strips_one_space(step) and "Fuse" in kinds[:place]:
                drops_first_space = True
            case "ByteFallback" | "Fuse":
                pass
            case _:
                raise _unsupported(kinds)
    return TokenBytes(
        byte_fallback="ByteFallback" in kinds,
        replace=tuple(replace),
        drops_first_space=drops_first_space,
    )


def _strips_one_space(step: Mapping[str, Any]) -> bool:
    return bool(step["content"] == " " and step["start"] == 1 and step["stop"] == 0)


def _unsupported(kinds: list[str]) -> ModelError:
    return ModelError(
        f"tokenizer.json: decoder {' + '.join(kinds)} is not supported; "
        "byte-level BPE and sentencepiece-like decoders are"
    )


def byte_alphabet() -> dict[str, int]:
    """The character that byte-level vocabularies write for each byte, by GPT-2's map.

    Printable Latin-1 bytes stand for themselves; the others got the code points from 256 upwards.
    """
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    spare = itertools.count(256)
    return {chr(byte if byte in printable else next(spare)): byte for byte in range(256)}
