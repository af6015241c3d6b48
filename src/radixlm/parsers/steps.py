"""Parsers written as one run through the text, which waits wherever the text is not there yet; and
the one that keeps what a model thinks apart from its answer.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator
from enum import Enum, auto
from typing import TypeVar

from radixlm.parsers import AnswerEvent, AnswerParser, ReasoningDelta, TextDelta

BEGIN = "<think>"
END = "</think>"

T = TypeVar("T")

# A stretch of the run; it yields to wait for more text.
Steps = Generator[None, None, T]


class StepParser(ABC):
    """An AnswerParser whose `_run` reads forward as if all text were there.

        given away | held back, may be a marker | read by the run | not read yet
                   ^ _mark                                        ^ _at

    It looks at single characters and never at the pieces, so these make no difference.
    """

    def __init__(self) -> None:
        self._text = ""
        self._mark = self._at = 0
        self._ended = self._cut = False
        self._events: list[AnswerEvent] = []
        self._steps = self._run()

    def push(self, text: str) -> list[AnswerEvent]:
        self._text += text
        return self._resume()

    def flush(self, *, cut: bool = False) -> list[AnswerEvent]:
        self._ended, self._cut = True, cut
        return self._resume()

    @abstractmethod
    def _run(self) -> Steps[None]:
        """Read the whole answer, and append its events."""

    def _paused(self) -> None:  # noqa: B027 - most parsers have nothing to do then
        """The run waits for more text, or has ended."""

    def _resume(self) -> list[AnswerEvent]:
        next(self._steps, None)
        self._paused()
        events, self._events = self._events, []
        return events

    def _peek(self) -> Steps[str]:
        """The next character, "" at the end; it is not read yet."""
        while self._at >= len(self._text) and not self._ended:
            yield
        return self._text[self._at : self._at + 1]

    def _while(self, test: Callable[[str], object]) -> Steps[str]:
        """Read characters as long as they pass `test`."""
        start = self._at
        while (character := (yield from self._peek())) and test(character):
            self._at += 1
        return self._text[start : self._at]

    def _skip_spaces(self) -> Steps[str]:
        return self._while(str.isspace)

    def _skip(self, word: str) -> Steps[bool]:
        """Read `word` if it comes next."""
        start = self._at
        for character in word:
            if (yield from self._peek()) != character:
                self._at = start
                return False
            self._at += 1
        return True

    def _until(self, marker: str, make: Callable[[str], AnswerEvent] = TextDelta) -> Steps[bool]:
        """Give text away up to `marker` and the spaces before it; False when none comes.

        These are held back, from `_mark` on: the caller gives them away with `_give` when the
        marker turns out to begin nothing.
        """
        while True:
            found = self._text.find(marker, self._mark)
            end = len(self._text) if found < 0 else found
            if found < 0 and not self._ended:
                end -= begun(marker, self._text)
            if found >= 0 or not self._ended:
                end = max(self._mark, len(self._text[:end].rstrip()))
            self._give(end, make)
            if found >= 0:
                self._at = found + len(marker)
                return True
            if self._ended:
                return False
            # No caller remembers a place here, so text that was given away can go.
            self._text, self._mark = self._text[self._mark :], 0
            yield

    def _rest(self) -> Steps[None]:
        """Give all the rest away."""
        while True:
            self._give(len(self._text))
            if self._ended:
                return
            self._text, self._mark = "", 0
            yield

    def _give(self, end: int, make: Callable[[str], AnswerEvent] = TextDelta) -> None:
        """Give away what was held back, up to `end`."""
        if end > self._mark:
            self._events.append(make(self._text[self._mark : end]))
        self._mark = self._at = end


def begun(marker: str, text: str) -> int:
    """How many of the last characters of `text` may be the begin of `marker`."""
    for length in range(min(len(marker) - 1, len(text)), 0, -1):
        if text.endswith(marker[:length]):
            return length
    return 0


class Thinking(Enum):
    """Whether answers begin with reasoning: never, where the model opens it, or always."""

    NEVER = auto()
    OPENED = auto()
    ALWAYS = auto()

    def opened_by(self, prompt: str) -> bool:
        """Whether the prompt's end leaves reasoning open."""
        prompt = prompt.rstrip()
        if self is Thinking.ALWAYS:
            return not prompt.endswith(END)
        return prompt.endswith(BEGIN)


# By the names that vLLM and SGLang have for them.
THINKING = {
    "none": Thinking.NEVER,
    "qwen3": Thinking.OPENED,
    "deepseek-r1": Thinking.ALWAYS,
    "deepseek_r1": Thinking.ALWAYS,
}


class ReasoningParser(StepParser):
    """`<think>…</think>` at the answer's begin is reasoning; `inner` reads the text after it.

    opened: the prompt ends with the begin already, or the model never writes it.
    Spaces next to the markers belong to neither side.
    """

    def __init__(self, inner: AnswerParser, *, opened: bool) -> None:
        super().__init__()
        self._inner = inner
        self._opened = opened

    def _run(self) -> Steps[None]:
        yield from self._skip_spaces()
        if (yield from self._skip(BEGIN)) or self._opened:
            yield from self._skip_spaces()
            self._mark = self._at
            if (yield from self._until(END, ReasoningDelta)):
                yield from self._skip_spaces()
                self._mark = self._at
        while True:
            self._events += self._inner.push(self._text[self._mark :])
            self._text, self._mark = "", 0
            if self._ended:
                break
            yield
        self._events += self._inner.flush(cut=self._cut)
