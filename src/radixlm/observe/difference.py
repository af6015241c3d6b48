"""The kind of difference where two texts part, and where they go on the same."""

from __future__ import annotations

import codecs
import re
import unicodedata
from collections import Counter
from collections.abc import Iterator, Sequence
from enum import StrEnum
from itertools import islice, zip_longest
from typing import NamedTuple

from radixlm.core.keys import Key
from radixlm.core.misses import SHOWN_TOKENS
from radixlm.text.tokenizer import Tokenizer

# Texts go on the same where this many characters agree; without white space, fewer are enough.
SAME = 40
_SAME_SQUEEZED = 24
_LOOKED_AT = 256
_MOST_PIECES = 64
_CONTEXT = 16
_AFTER = 8
_LONGEST_WORD = 64
_LONG_ITEM = 3
_PIECES = re.compile(r"<[^<>\s]{1,40}>|\s+|\w+|[^\w\s]")
_WORD = re.compile(r"[^\s<>]*")
_LONGEST_TORN = 40
_TORN_WORD = re.compile(rf"[^\s<>]{{1,{_LONGEST_TORN}}}\Z")
_ENTRY_ENDS = re.compile(r"[\[\]{}<>\n]|[,.:;!?](?:\s|\Z)")
_LINES = re.compile(r"\n")
_ITEMS = re.compile(r",\s*(?=[\"{\[])|\n")
_THOUGHTS = "<think>"
_MONTHS = (
    "jan(?:uary)?|feb(?:ruary)?|mar(?:ch)?|apr(?:il)?|may|june?|july?|aug(?:ust)?|"
    "sept?(?:ember)?|oct(?:ober)?|nov(?:ember)?|dec(?:ember)?"
)
_DAYS = "mon|tues?|wed(?:nes)?|thu(?:rs?)?|fri|sat(?:ur)?|sun"
_DATE = re.compile(
    r"(?<![\d.])\d{4}[-/.]\d{1,2}[-/.]\d{1,2}|(?<!\d)(?:19|20)\d{2}-(?:0?[1-9]|1[0-2])(?!\d)|"
    r"(?<![\d.])\d{1,2}([-/.])\d{1,2}\1(?:\d{4}|\d{2})(?!\.?\d)|\b\d{8}T\d{4}|\d{1,4}[年月日]|"
    r"\d{1,2}:\d{2}(?::\d{2})?(?:\s?[ap]\.?m\b)?|\b\d{1,2}\s?[ap]\.?m\b|"
    r"\b1[5-9]\d{8}(?:\d{3})?\b|"
    rf"\b(?:{_DAYS})(?:day)?\b|\b(?:{_MONTHS})\b(?:\.?,?\s+\d{{1,4}})?|"
    rf"\b\d{{1,2}}\.?\s+(?:{_MONTHS})\b",
    re.IGNORECASE,
)
_UUID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE)
_ID = re.compile(
    r"(?=[\w-]*\d)(?=[\w-]*[a-z])[\w-]{8,}|[0-9a-f]{16,}|\b(?=\d*[a-f])(?=[a-f]*\d)[0-9a-f]{7}\b",
    re.IGNORECASE,
)
_NUMBER = re.compile(r"[^\w\s]*\d[\d.,]*[^\w\s]*")


_WORDS = re.compile(r"<[^<>\s]{1,40}>|\s+|[^\s<]+|<")
_REST_OF_WORD = re.compile(r"[^\s<>]{0,40}")
_UNSEEN = frozenset({"Cc", "Cf", "Cn", "Co", "Cs", "Zl", "Zp", "Zs"})
_DECODER = codecs.getincrementaldecoder("utf-8")


class DifferenceKind(StrEnum):
    """The difference where two texts part."""

    RETOKENIZED = "retokenized"  # nothing: the same text is cut into other tokens
    WHITE_SPACE = "white_space"  # nothing else
    UNICODE = "unicode"  # the same letters in other code points, or some that are not seen
    DATE_TIME = "date_time"
    ID = "id"
    NUMBER = "number"
    REORDERED = "reordered"  # the same entries, in another order
    REASONING = "reasoning"  # the cached text begins with reasoning, and the other does not
    TEXT = "text"


def kind_of(before: str, cached: str, requested: str) -> DifferenceKind:
    """The kind of two continuations of `before`, whose text is not the same."""
    torn = _torn(before, cached, requested)
    left, right = torn + cached[:_LOOKED_AT], torn + requested[:_LOOKED_AT]
    if _fields_agree("".join(left.split()), "".join(right.split())):
        return DifferenceKind.WHITE_SPACE
    if _fields_agree(_folded(left), _folded(right)):
        return DifferenceKind.UNICODE
    if cached.lstrip().startswith(_THOUGHTS) and _THOUGHTS not in before[-_CONTEXT:]:
        return DifferenceKind.REASONING
    if _permuted(before, cached, requested) or _changed_places(before, cached, requested):
        return DifferenceKind.REORDERED
    lead = before[: len(before) - len(torn)][-_CONTEXT:]
    for kind, pattern in (
        (DifferenceKind.ID, _UUID),
        (DifferenceKind.DATE_TIME, _DATE),
        (DifferenceKind.ID, _ID),
    ):
        if all(_reaches_into(pattern, lead, text) for text in (left, right)):
            return kind
    return (
        DifferenceKind.NUMBER
        if _other_number(left.lstrip(), right.lstrip())
        else DifferenceKind.TEXT
    )


def meeting(cached: str, requested: str) -> tuple[int, int] | None:
    """The places in both from where they continue with the same text; None where none is found."""
    for ours, theirs in zip_longest(_begins(cached), _begins(requested)):
        if theirs is not None and (at := cached.find(requested[theirs : theirs + SAME])) >= 0:
            return at, theirs
        if ours is not None and (at := requested.find(cached[ours : ours + SAME])) >= 0:
            return ours, at
    return None


def torn_word(before: str) -> str:
    """The end of `before` that may be the begin of a word."""
    torn = _TORN_WORD.search(before, max(len(before) - _LONGEST_TORN, 0))
    return "" if torn is None else torn[0]


def _torn(before: str, cached: str, requested: str) -> str:
    """The begin, in `before`, of the first words of both."""
    return "" if cached[:1].isspace() and requested[:1].isspace() else torn_word(before)


def _begins(text: str) -> Iterator[int]:
    """The places of the first pieces that are followed by enough text to compare."""
    found = islice(_PIECES.finditer(text), _MOST_PIECES)
    return (piece.start() for piece in found if piece.start() + SAME <= len(text))


def _other_number(left: str, right: str) -> bool:
    """Whether both go on with a number, and then the same; else they number other texts."""
    words = _first_word(left), _first_word(right)
    rests = (text[len(word) :][:_AFTER] for text, word in zip((left, right), words, strict=True))
    return all(map(_NUMBER.fullmatch, words)) and _fields_agree(*rests)


def _first_word(text: str) -> str:
    return _WORD.match(text.lstrip())[0]  # type: ignore[index]


def _fields_agree(left: str, right: str) -> bool:
    """Whether both begin the same, as far as both are known."""
    enough = min(len(left), len(right), _SAME_SQUEEZED)
    return enough > 0 and left[:enough] == right[:enough]


def _folded(text: str) -> str:
    """The text without invisible characters, each letter in its simplest form."""
    simple = unicodedata.normalize("NFKC", text)
    return "".join(c for c in simple if not c.isspace() and unicodedata.category(c) != "Cf")


def _reaches_into(pattern: re.Pattern[str], lead: str, text: str) -> bool:
    """Whether a match contains a part of the first word of `text`."""
    end = len(lead) + len(text) - len(text.lstrip()) + len(_first_word(text)[:_LONGEST_WORD])
    found = pattern.finditer(lead + text[: end - len(lead) + _CONTEXT])
    return any(match.end() > len(lead) and match.start() < end for match in found)


def _permuted(before: str, cached: str, requested: str) -> bool:
    """Whether both begin with the same entries (documents, members, messages) in another order."""
    starts = [_ENTRY_ENDS.split(text, 1)[0] for text in (cached, requested)]
    for lead in dict.fromkeys((_ENTRY_ENDS.split(before)[-1], _torn(before, cached, requested))):
        ours, theirs = (_bare(lead + start) for start in starts)
        if not (ours and theirs and ours != theirs and ours in requested and theirs in cached):
            continue
        entries = (_ENTRY_ENDS.split(lead + text) for text in (cached, requested))
        if _balanced(*([bare for each in some if (bare := _bare(each))] for some in entries)):
            return True
    return False


def _bare(entry: str) -> str:
    return entry.strip(" \"'*-")


def _balanced(left: Sequence[str], right: Sequence[str]) -> bool:
    """Whether the first few of both are the same entries."""
    owed: Counter[str] = Counter()
    for ours, theirs in zip(left, right, strict=False):
        for entry, change in ((ours, 1), (theirs, -1)):
            owed[entry] += change
            if not owed[entry]:
                del owed[entry]
        if not owed:
            return True
    return False


def _changed_places(before: str, cached: str, requested: str) -> bool:
    """Whether the first entry of each, a line or a member of JSON, is a later one of the other."""
    for separator in (_LINES, _ITEMS):
        torn = separator.split(before)[-1]
        texts = [separator.split(torn + text) for text in (cached, requested)]
        if _crossed(*([entry.strip(" ,[]{}") for entry in text] for text in texts)):
            return True
    return False


def _crossed(left: Sequence[str], right: Sequence[str]) -> bool:
    first, other = left[0], right[0]
    long = min(len(first), len(other)) > _LONG_ITEM
    return long and all(
        mine.count(entry) == 1 and entry in others[1:]
        for entry, mine, others in ((first, left, right), (other, right, left))
    )


class Texts(NamedTuple):
    """before: the end of the text that both share; cached and requested go on from there."""

    before: str
    cached: str
    requested: str


class Difference(NamedTuple):
    """before, after: the text around it that is shown; control characters are escaped, in `cached`
    and `requested` too. begins: nothing stands in front of `before`.
    """

    kind: DifferenceKind
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
    """The difference of two continuations of `shared`, and all of their text that is known."""
    head, *both = (tokenizer.spelled(ids.tolist()) for ids in (shared, cached, requested))
    before, torn = _decoded(head)  # a character that the tokens cut belongs to the continuations
    texts = Texts(before, *(_whole(torn + data) for data in both))
    shown = [tokenizer.spelled(ids[:SHOWN_TOKENS].tolist()) for ids in (cached, requested)]
    ends = [len(_decoded(torn + data)[0]) for data in shown]
    kind = DifferenceKind.RETOKENIZED if _agree(*shown) else kind_of(*texts)
    lead = _decoded(tokenizer.spelled(shared[-SHOWN_TOKENS:].tolist()))[0]
    parted = _parted(texts, len(lead), ends)
    begins = begins and shared.size <= SHOWN_TOKENS
    before, ours, theirs, after = map(visible, parted)
    if kind is DifferenceKind.UNICODE:
        ours, theirs = (ascii(part)[1:-1] for part in parted[1:3])
    return Difference(kind, before, ours, theirs, after, begins), texts


def visible(text: str) -> str:
    """`text` with characters that are invisible, or turn its direction, written as escapes."""
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
    """The text, and the bytes of an unfinished character at its end."""
    decoder = _DECODER("replace")
    return decoder.decode(data), decoder.getstate()[0]


def _whole(data: bytes) -> str:
    """All of its text without an unfinished character at its end."""
    return _decoded(data)[0] or data.decode(errors="replace")


def _agree(left: str | bytes, right: str | bytes) -> bool:
    """Whether the longer one begins with the other."""
    short, long = sorted((left, right), key=len)
    return bool(short) and long[: len(short)] == short


def _parted(texts: Texts, lead: int, ends: Sequence[int]) -> tuple[str, str, str, str]:
    """(before, cached, requested, after) in whole words; lead, ends: characters to be shown."""
    torn = torn_word(texts.before)
    end = len(texts.before) - len(torn)
    before = texts.before[max(len(texts.before) - lead, 0) : end]
    shown = [text[:end] for text, end in zip(texts[1:], ends, strict=True)]
    same, ours, theirs, after = _in_words(*(torn + text for text in shown))
    if not after:
        shown = [_to_word_end(text, end) for text, end in zip(texts[1:], ends, strict=True)]
        same, ours, theirs, after = _in_words(*(torn + text for text in shown))
    return before + same, ours, theirs, after


def _to_word_end(text: str, at: int) -> str:
    rest = _REST_OF_WORD.match(text, at)
    return text[: at if rest is None else rest.end()]


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
