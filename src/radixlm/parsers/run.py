"""Parsers written as one run through the text, which waits wherever the text is not there yet."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterable
from typing import TypeVar

from radixlm.parsers import AnswerEvent, TextDelta

T = TypeVar("T")

# A stretch of the run; it yields to wait for more text.
Steps = Generator[None, None, T]


class Cursor:
    """An answer's text as far as it has come, and a place in it.

        held back, may be a marker | read by the run | not read yet
        ^ mark                                       ^ at

    Readers look at single characters and never at the pieces, so these make no difference.
    before_wait: called before each wait for more text, if it is set.
    """

    def __init__(self) -> None:
        self.text = ""
        self.mark = self.at = 0
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
        """Read `words` if they come next, with any white space before and between them."""
        start = self.at
        for word in words.split():
            yield from self.spaces()
            if not (yield from self.skip(word)):
                self.at = start
                return False
        return True

    def comes(self, words: Iterable[str], at: int | None = None) -> Steps[str]:
        """Which of `words` stands at a place, by default the present one; "" for none."""
        start = self.at if at is None else at
        left = [word for word in words if word]
        while left:
            for word in left:
                if self.text.startswith(word, start):
                    return word
            rest = self.text[start:]
            left = [word for word in left if word.startswith(rest)]
            if not left or self.ended:
                break
            yield from self.wait()
        return ""

    def after_spaces(self, at: int) -> Steps[int]:
        """The place of the first character from `at` on that is no white space."""
        while True:
            rest = self.text[at:]
            at += len(rest) - len(rest.lstrip())
            if at < len(self.text) or self.ended:
                return at
            yield from self.wait()


class Run(ABC):
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
        cursor.text, cursor.mark, cursor.at = cursor.text[cursor.mark :], 0, 0

    def _rest(self) -> Steps[None]:
        """Give all the rest away."""
        while True:
            self._give(len(self._cursor.text))
            if self._cursor.ended:
                return
            self._forget()
            yield


def begun(marker: str, text: str) -> int:
    """How many of the last characters of `text` may be the begin of `marker`."""
    for length in range(min(len(marker) - 1, len(text)), 0, -1):
        if text.endswith(marker[:length]):
            return length
    return 0
