"""Parsers written as one run through the text, which waits wherever the text is not there yet."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Generator, Iterable
from typing import TypeVar

from radixlm.parsers import AnswerEvent, TextDelta

T = TypeVar("T")

_BETWEEN = re.compile(r"\s+|(?<=>)|(?=<)")
# Characters: white space that is held back is no longer, nor what shows that a call begins. Else
# a model that writes nothing but line breaks costs the square of their number.
LOOK_AHEAD = 400
_SPACES = re.compile(r"\s*")

# A stretch of the run; it yields to wait for more text.
Steps = Generator[None, None, T]


class Cursor:
    """An answer's text as far as it has come, and a place in it.

        held back, may be a marker | read by the run | not read yet
        ^ mark                                       ^ at

    Readers look at single characters and never at the pieces, so these make no difference.
    forgotten: how many characters came before the text.
    before_wait: called before each wait for more text, if it is set.
    """

    def __init__(self) -> None:
        self.text = ""
        self.mark = self.at = self.forgotten = 0
        self.ended = self.cut = False
        self.before_wait: Callable[[], None] | None = None

    def wait(self) -> Steps[None]:
        if self.before_wait is not None:
            self.before_wait()
        yield

    def peek(self) -> Steps[str]:
        """The next character, "" at the end; it is not read yet."""
        while self.at >= len(self.text) and not self.ended:
            yield from self.wait()
        return self.text[self.at : self.at + 1]

    def take(self, test: Callable[[str], object], most: int | None = None) -> Steps[str]:
        """Read characters as long as they pass `test`, `most` of them at most."""
        start = self.at
        while (most is None or self.at - start < most) and (character := (yield from self.peek())):
            if not test(character):
                break
            self.at += 1
        return self.text[start : self.at]

    def spaces(self) -> Steps[str]:
        """Read white space."""
        return self.take(str.isspace)

    def skip(self, word: str) -> Steps[bool]:
        """Read `word` if it comes next."""
        start = self.at
        for character in word:
            if (yield from self.peek()) != character:
                self.at = start
                return False
            self.at += 1
        return True

    def skip_loosely(self, words: str) -> Steps[bool]:
        """Read `words` if they come next, with any white space before and between them and tags."""
        start = self.at
        for word in pieces_of(words):
            yield from self.spaces()
            if not (yield from self.skip(word)):
                self.at = start
                return False
        return True

    def comes(self, words: Iterable[str], at: int | None = None) -> Steps[str]:
        """The one of `words` that stands at a place, by default the present one; "" for none."""
        start = self.at if at is None else at
        known = [word for word in words if word]
        longest = max(map(len, known), default=0)
        while True:
            rest = self.text[start : start + longest]
            if self.ended or not any(word != rest and word.startswith(rest) for word in known):
                return max(filter(rest.startswith, known), key=len, default="")
            yield from self.wait()

    def balanced(
        self, quotes: Collection[str], *, bracketed: bool = False, ends: Collection[str] = ()
    ) -> Steps[str]:
        """Read a value up to the comma or bracket that ends it, or its own last bracket where it is
        `bracketed`, or one of `ends`; "" where none comes. What stands between two of `quotes` is
        passed over; a short one may be escaped there.
        """
        start, depth = self.at, 0
        while (yield from self.peek()):
            if quote := (yield from self.comes(quotes)):
                yield from self._quoted(quote)
                continue
            character = self.text[self.at]
            over = character in ",)]}" or (yield from self.comes(ends))
            if over and not depth:
                return self.text[start : self.at]
            depth += (character in "([{") - (character in ")]}")
            self.at += 1
            if bracketed and not depth:
                return self.text[start : self.at]
        return ""

    def _quoted(self, quote: str) -> Steps[None]:
        """Read a text, its quotes included."""
        escaped = False
        self.at += len(quote)
        while character := (yield from self.peek()):
            if not escaped and (yield from self.skip(quote)):
                return
            escaped = character == "\\" and not escaped and len(quote) == 1
            self.at += 1

    def after_spaces(self, at: int) -> Steps[int]:
        """The place of the first character from `at` on that is no white space."""
        while True:
            if found := _SPACES.match(self.text, at):
                at = found.end()
            if at < len(self.text) or self.ended:
                return at
            yield from self.wait()


class ForwardParser(ABC):
    """An AnswerParser whose `_read` reads forward as if all text were there."""

    def __init__(self) -> None:
        self._cursor = Cursor()
        self._events: list[AnswerEvent] = []
        self._make: Callable[[str], AnswerEvent] = TextDelta
        self._steps = self._read()

    def push(self, text: str) -> list[AnswerEvent]:
        self._cursor.text += text
        return self._resume()

    def flush(self, *, cut: bool = False) -> list[AnswerEvent]:
        self._cursor.ended, self._cursor.cut = True, cut
        return self._resume()

    @abstractmethod
    def _read(self) -> Steps[None]:
        """Read the whole answer, and append its events."""

    def _resume(self) -> list[AnswerEvent]:
        next(self._steps, None)
        events, self._events = self._events, []
        return events

    def _tell(self, event: AnswerEvent) -> None:
        self._events.append(event)

    def _give(self, end: int) -> None:
        """Give away what was held back, up to `end`."""
        cursor = self._cursor
        if end > cursor.mark:
            self._events.append(self._make(cursor.text[cursor.mark : end]))
        cursor.mark = cursor.at = end

    def _forget(self) -> None:
        """Drop text that was given away. No caller may remember a place."""
        cursor = self._cursor
        cursor.forgotten += cursor.mark
        cursor.text, cursor.mark, cursor.at = cursor.text[cursor.mark :], 0, 0

    def _rest(self) -> Steps[None]:
        """Give all the rest away."""
        while True:
            self._give(len(self._cursor.text))
            if self._cursor.ended:
                return
            self._forget()
            yield


def pieces_of(words: str) -> list[str]:
    """Words and tags of a literal, between which white space may stand.

    >>> pieces_of("</a>\\n<b>go on")
    ['</a>', '<b>', 'go', 'on']
    """
    return [piece for piece in _BETWEEN.split(words) if piece]


def before_spaces(text: str, start: int, end: int) -> int:
    """`end`, or where the white space before it begins, but not before `start`."""
    start = max(start, end - LOOK_AHEAD)
    return start + len(text[start:end].rstrip())


class Words:
    """Finds some words in a text, in one pass for all of them.

    >>> words = Words(["</a>", "</ab>"])
    >>> words.first("x</a>", 0)[0], words.begun("x</a", 0)
    ('</a>', 3)
    """

    def __init__(self, words: Iterable[str]) -> None:
        known = sorted(filter(None, words), key=len, reverse=True)
        self._any = re.compile("|".join(map(re.escape, known)) or r"(?!)")
        self._longest = len(known[0]) if known else 0
        self._begins = {word[:end] for word in known for end in range(1, len(word))}

    def first(self, text: str, start: int, end: int | None = None) -> re.Match[str] | None:
        """The first of the words between two places; the longest one there."""
        return self._any.search(text, start, len(text) if end is None else end)

    def begun(self, text: str, start: int) -> int:
        """How many of the last characters, from `start` on, may be the begin of a word."""
        for length in range(min(self._longest - 1, len(text) - start), 0, -1):
            if text[-length:] in self._begins:
                return length
        return 0
