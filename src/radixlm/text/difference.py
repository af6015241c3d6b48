"""Where two texts part: shown around the place, and what kind of difference it is."""

from __future__ import annotations

import codecs
import re
import unicodedata
from collections.abc import Sequence
from typing import NamedTuple

from radixlm.core.keys import Key
from radixlm.core.misses import SHOWN_TOKENS
from radixlm.text.kinds import Kind, kind_of, torn_word
from radixlm.text.tokenizer import Tokenizer

_WORDS = re.compile(r"<[^<>\s]{1,40}>|\s+|[^\s<]+|<")
_REST_OF_WORD = re.compile(r"[^\s<>]{0,40}")
_UNSEEN = frozenset({"Cc", "Cf", "Cn", "Co", "Cs", "Zl", "Zp", "Zs"})
_DECODER = codecs.getincrementaldecoder("utf-8")


class Texts(NamedTuple):
    """before: the last of what both share; cached and requested go on from there."""

    before: str
    cached: str
    requested: str


class Difference(NamedTuple):
    """before, after: what both say around it, as far as it is shown; control characters are
    escaped, in `cached` and `requested` too. begins: nothing stands in front of `before`.
    """

    kind: Kind
    before: str
    cached: str
    requested: str
    after: str
    begins: bool

    @property
    def marked(self) -> str:
        """All of it in one line, the differing part as [cached|requested]."""
        head = "" if self.begins else "…"
        return f"{head}{self.before}[{self.cached}|{self.requested}]{self.after}…"


def difference(
    tokenizer: Tokenizer, shared: Key, cached: Key, requested: Key, *, begins: bool = False
) -> tuple[Difference, Texts]:
    """The difference of two continuations of the same tokens, of which the last are `shared`; and
    all that is known of them.
    """
    head, *both = (tokenizer.spelled(ids.tolist()) for ids in (shared, cached, requested))
    before, torn = _decoded(head)  # a character that the tokens cut belongs to the continuations
    texts = Texts(before, *(_whole(torn + data) for data in both))
    shown = [tokenizer.spelled(ids[:SHOWN_TOKENS].tolist()) for ids in (cached, requested)]
    ends = [len(_decoded(torn + data)[0]) for data in shown]
    kind = Kind.RETOKENIZED if _agree(*shown) else kind_of(*texts)
    lead = _decoded(tokenizer.spelled(shared[-SHOWN_TOKENS:].tolist()))[0]
    parted = _parted(texts, len(lead), ends)
    begins = begins and shared.size <= SHOWN_TOKENS
    before, ours, theirs, after = map(visible, parted)
    if kind is Kind.UNICODE:
        ours, theirs = (ascii(part)[1:-1] for part in parted[1:3])
    return Difference(kind, before, ours, theirs, after, begins), texts


def visible(text: str) -> str:
    """`text` with what can not be seen, or would turn its direction, written as escapes."""
    return "".join(map(_visible, text))


def _visible(letter: str) -> str:
    if letter == "\\":
        return "\\\\"
    if letter.isascii() and letter.isprintable():
        return letter
    if unicodedata.category(letter) in _UNSEEN:
        return letter.encode("unicode_escape").decode()
    return letter


def _decoded(data: bytes) -> tuple[str, bytes]:
    """The text, and the bytes of a character that ends behind it."""
    decoder = _DECODER("replace")
    return decoder.decode(data), decoder.getstate()[0]


def _whole(data: bytes) -> str:
    """All of its text, but for a character that ends behind it."""
    return _decoded(data)[0] or data.decode(errors="replace")


def _agree(left: str | bytes, right: str | bytes) -> bool:
    """Whether one goes on where the other ends."""
    short, long = sorted((left, right), key=len)
    return bool(short) and long[: len(short)] == short


def _parted(texts: Texts, lead: int, ends: Sequence[int]) -> tuple[str, str, str, str]:
    """(before, cached, requested, after) with whole words in the middle; lead, ends: how many
    characters are shown in front and behind.
    """
    torn = torn_word(texts.before)
    end = len(texts.before) - len(torn)
    before = texts.before[max(len(texts.before) - lead, 0) : end]
    whole = texts.cached, texts.requested
    parted = _in_words(*(torn + text[:end] for text, end in zip(whole, ends, strict=True)))
    if not parted[-1]:
        ends = [_word_end(text, end) for text, end in zip(whole, ends, strict=True)]
        parted = _in_words(*(torn + text[:end] for text, end in zip(whole, ends, strict=True)))
    same, ours, theirs, after = parted
    return before + same, ours, theirs, after


def _word_end(text: str, at: int) -> int:
    rest = _REST_OF_WORD.match(text, at)
    return at if rest is None else rest.end()


def _in_words(cached: str, requested: str) -> tuple[str, str, str, str]:
    """(same, cached, requested, same again) in whole words."""
    left, right = _WORDS.findall(cached), _WORDS.findall(requested)
    same = 0
    while same < min(len(left), len(right)) - 1 and left[same] == right[same]:
        same += 1
    before = "".join(left[:same])
    left, right = left[same:], right[same:]
    for skipped in range(1, len(left) + len(right)):
        firsts = range(max(skipped - len(right) + 1, 0), min(skipped + 1, len(left)))
        rests = {
            ours: min("".join(left[ours:]), "".join(right[skipped - ours :]), key=len)
            for ours in firsts
            if _agree("".join(left[ours:]), "".join(right[skipped - ours :]))
        }
        ours = max(rests, key=lambda each: len(rests[each]), default=0)
        if rests and not rests[ours].isspace():
            return before, "".join(left[:ours]), "".join(right[: skipped - ours]), rests[ours]
    return before, "".join(left), "".join(right), ""
