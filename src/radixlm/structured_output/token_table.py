"""A tokenizer as llguidance wants it: each token's bytes, and a way to cut text into tokens."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

from llguidance import LLTokenizer, TokenizerWrapper

from radixlm.core.keys import Key

Cut = Callable[[str], list[int] | None]

# Stands before a text to which the tokenizer would add a space, as at a text's beginning.
_LEAD = "\x02"
_LONGEST_LEAD = 4  # tokens
# A forced text is cut in parts of this length, and of each the end is left out, since the text
# after it may change it: so each step takes less than a millisecond, however long the text. The n
# answers of one request ask for the same cuts, so the last ones are remembered.
LONGEST_CUT = 512
_UNSURE = 64  # bytes
_REMEMBERED = 64
# Sets of tokens that a mask takes or leaves as a whole, where all their texts may come next; other
# tokens are walked byte by byte. llguidance's own, and two that halve the slowest masks: 16 bytes,
# the longest words of most vocabularies, for strings of limited length; small letters for patterns.
_IN_STRING = r'[^"\\\x00-\x1F\x7F]'
_SLICES = [
    r"[\x20\x0A\x0D\x09]+",
    "[a-z]+",
    *(_IN_STRING + times for times in ("{1,10}", "{1,16}", "{1,30}", "+")),
]


class Vocabulary(Protocol):
    """The parts of a tokenizer that a table needs."""

    vocab_size: int
    special_ids: frozenset[int]

    def token_bytes(self, token: int, /) -> bytes: ...

    def encode_plain(self, text: str, /) -> Key: ...


@dataclass(frozen=True, slots=True)
class Table:
    """tokens: each id's bytes, none where the model has an id that the tokenizer lacks.

    There is one id more than the model has: llguidance needs an id that ends an answer, and takes
    this one where the model has none.
    """

    tokens: tuple[bytes, ...]
    special_ids: tuple[int, ...]
    eos_ids: tuple[int, ...]

    @classmethod
    def of(cls, vocabulary: Vocabulary, vocab_size: int, eos_ids: Iterable[int]) -> Table:
        """The table for a model with `vocab_size` ids. O(vocabulary)."""
        special = sorted(token for token in vocabulary.special_ids if token < vocab_size)
        return cls(
            tokens=(*map(vocabulary.token_bytes, range(vocab_size)), b""),
            special_ids=tuple(special),
            eos_ids=tuple(sorted(eos_ids)) or (vocab_size,),
        )

    def tokenizer(self, cut: Cut | None = None) -> LLTokenizer:
        """Make llguidance's tokenizer, which takes a tenth of a second.

        cut: gives a text's tokens as in training; without it the longest come first.
        """
        return LLTokenizer(
            TokenizerWrapper(_Wrapped(self, cut)),
            n_vocab=len(self.tokens),
            eos_token=list(self.eos_ids),
            slices=_SLICES,
        )


class _Wrapped:
    """The form in which llguidance takes a tokenizer."""

    def __init__(self, table: Table, cut: Cut | None) -> None:
        self.eos_token_id = table.eos_ids[0]
        self.bos_token_id = None
        self.tokens = table.tokens
        self.special_token_ids = table.special_ids
        self._cut = cut
        special = frozenset(table.special_ids)
        self._ids = {data: i for i, data in enumerate(table.tokens) if data and i not in special}
        self._longest = max(map(len, self._ids), default=0)
        self._cut_again = lru_cache(_REMEMBERED)(self._cut_all)

    def __call__(self, text: str) -> list[int]:
        if isinstance(text, bytes):
            raise TypeError("text is wanted")  # which is how it asks
        ids = list(self._cut_again(text[:LONGEST_CUT]))
        unsure = 0 if len(text) > LONGEST_CUT else _UNSURE
        while ids and unsure < _UNSURE:
            unsure += len(self.tokens[ids.pop()])
        return ids

    def _cut_all(self, text: str) -> tuple[int, ...]:
        found = None if self._cut is None else self._cut(text)
        if found is None or max(found, default=0) >= len(self.tokens):  # ids the model lacks
            return tuple(self._greedily(text.encode()))
        return tuple(found)

    def _greedily(self, data: bytes) -> list[int]:
        ids = []
        start = 0
        while start < len(data):
            stops = range(min(start + self._longest, len(data)), start, -1)
            longest = next((stop for stop in stops if data[start:stop] in self._ids), None)
            if longest is None:
                break  # no token begins with this byte: the model cannot write it
            ids.append(self._ids[data[start:longest]])
            start = longest
        return ids


def cutter(vocabulary: Vocabulary) -> Cut:
    """Cuts text from the middle of an answer into tokens, as the tokenizer does; None where the
    bytes of its tokens are not the text's.
    """

    def spelled(ids: list[int]) -> bytes:
        return b"".join(map(vocabulary.token_bytes, ids))

    def cut(text: str) -> list[int] | None:
        wanted = text.encode()
        plain: list[int] = vocabulary.encode_plain(text).tolist()
        if spelled(plain) == wanted:
            return plain
        led: list[int] = vocabulary.encode_plain(_LEAD + text).tolist()
        for place in range(1, _LONGEST_LEAD + 1):
            if spelled(led[place:]) == wanted:
                return led[place:]
        return None

    return cut
