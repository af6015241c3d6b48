"""Where two texts part: shown around the place, and what kind of difference it is."""

from __future__ import annotations

import re
import unicodedata
from enum import StrEnum
from typing import NamedTuple

from radixlm.core.keys import Key
from radixlm.core.misses import SHOWN_TOKENS
from radixlm.text.tokenizer import Tokenizer

_WORDS = re.compile(r"\s+|\S+")
_TORN_WORD = re.compile(r"\S{1,40}\Z")
_TORN_LINE = re.compile(r"[^\n]*\Z")
_UNSEEN = frozenset({"Cc", "Cf", "Cn", "Co", "Cs", "Zl", "Zp"})
_MONTHS = "jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec"
_DATE = re.compile(
    r"\d{4}[-/.]\d{1,2}[-/.]\d{1,2}|\d{1,2}[-/.]\d{1,2}[-/.]\d{2,4}|\d{1,2}:\d{2}|"
    r"\b\d{10}(?:\d{3})?\b|\b(?:mon|tues|wednes|thurs|fri|satur|sun)day\b|"
    rf"\b(?:{_MONTHS})[a-z]*\.?,?\s+\d{{1,4}}|\b\d{{1,2}}\.?\s+(?:{_MONTHS})|"
    rf"\b(?:{_MONTHS})[a-z]*\b",
    re.IGNORECASE,
)
_UUID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE)
_ID = re.compile(r"(?=[\w-]*\d)(?=[\w-]*[A-Za-z])[\w-]{8,}|[0-9a-fA-F]{16,}")
_NUMBER = re.compile(r"[^\w\s]*\d[\d.,]*[^\w\s]*")
_ITEMS = re.compile(r",\s*(?=[\"{\[])|\n")
_CONTEXT = 16
_LONG_ITEM = 3


class Kind(StrEnum):
    """What differs where two texts part."""

    RETOKENIZED = "retokenized"  # nothing: the same text is cut into other tokens
    WHITE_SPACE = "white_space"  # nothing else
    DATE_TIME = "date_time"
    ID = "id"
    NUMBER = "number"
    REORDERED = "reordered"  # the same entries, in another order
    TEXT = "text"


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
) -> Difference:
    """The difference of two continuations of the same tokens, of which the last are `shared`."""
    before = _text(tokenizer, shared)
    whole = _text(tokenizer, cached), _text(tokenizer, requested)
    shown = [_spelled(tokenizer, ids[:SHOWN_TOKENS]) for ids in (cached, requested)]
    lead = _text(tokenizer, shared[-SHOWN_TOKENS:])
    texts = (data.decode(errors="replace") for data in shown)
    parted = _parted(lead, *texts)
    kind = Kind.RETOKENIZED if _agree(*shown) else _kind(before, whole, parted)
    begins = begins and shared.size <= SHOWN_TOKENS
    before, ours, theirs, after = map(visible, parted)
    return Difference(kind, before, ours, theirs, after, begins)


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


def _spelled(tokenizer: Tokenizer, ids: Key) -> bytes:
    return tokenizer.spelled(ids.tolist())


def _text(tokenizer: Tokenizer, ids: Key) -> str:
    return _spelled(tokenizer, ids).decode(errors="replace")


def _agree(left: str | bytes, right: str | bytes) -> bool:
    """Whether one goes on where the other ends."""
    short, long = sorted((left, right), key=len)
    return bool(short) and long[: len(short)] == short


def _parted(before: str, cached: str, requested: str) -> tuple[str, str, str, str]:
    """(before, cached, requested, after) with whole words in the middle."""
    torn = _TORN_WORD.search(before)
    if torn is not None:
        before = before[: torn.start()]
        cached, requested = torn[0] + cached, torn[0] + requested
    left, right = _WORDS.findall(cached), _WORDS.findall(requested)
    same = 0
    while same < min(len(left), len(right)) - 1 and left[same] == right[same]:
        same += 1
    before += "".join(left[:same])
    left, right = left[same:], right[same:]
    for skipped in range(2, len(left) + len(right)):
        for ours in range(max(skipped - len(right) + 1, 1), min(skipped, len(left))):
            rests = "".join(left[ours:]), "".join(right[skipped - ours :])
            if _agree(*rests) and not min(rests, key=len).isspace():
                parts = "".join(left[:ours]), "".join(right[: skipped - ours])
                return before, *parts, min(rests, key=len)
    return before, "".join(left), "".join(right), ""


def _kind(before: str, whole: tuple[str, str], parted: tuple[str, str, str, str]) -> Kind:
    """What differs. whole: both continuations, as far as they are known."""
    lead, cached, requested, _ = parted
    left, right = "".join(cached.split()), "".join(requested.split())
    if left == right or _agree(left, right):
        return Kind.WHITE_SPACE
    if _changed_places(before, *whole):
        return Kind.REORDERED
    context = lead[-_CONTEXT:]
    for kind, pattern in ((Kind.ID, _UUID), (Kind.DATE_TIME, _DATE), (Kind.ID, _ID)):
        if all(_reaches_into(pattern, context, text) for text in (cached, requested)):
            return kind
    if all(_NUMBER.fullmatch(text.strip()) for text in (cached, requested)):
        return Kind.NUMBER
    return Kind.TEXT


def _reaches_into(pattern: re.Pattern[str], context: str, text: str) -> bool:
    """Whether it matches so that a part of `text` is in it."""
    found = pattern.finditer(context + text)
    return any(match.end() > len(context) for match in found)


def _changed_places(before: str, cached: str, requested: str) -> bool:
    """Whether the first entry of each is a later one of the other: a line, or a member of JSON."""
    line = _TORN_LINE.search(before)
    torn = "" if line is None else line[0]
    entries = [
        [entry.strip(" ,[]{}") for entry in (torn + text).split("\n")]
        for text in (cached, requested)
    ]
    if _crossed(*entries):
        return True
    torn = _ITEMS.split(torn)[-1]
    entries = [
        [entry.strip(" ,[]{}") for entry in _ITEMS.split(torn + text)]
        for text in (cached, requested)
    ]
    return _crossed(*entries)


def _crossed(left: list[str], right: list[str]) -> bool:
    first, other = left[0], right[0]
    long = min(len(first), len(other)) > _LONG_ITEM
    return long and first != other and first in right[1:] and other in left[1:]
