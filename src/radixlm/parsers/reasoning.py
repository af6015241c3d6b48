"""Reasoning parsers: what a model thinks, kept apart from its answer."""

from __future__ import annotations

from enum import Enum, auto

from radixlm.parsers import AnswerParser, ReasoningDelta
from radixlm.parsers.steps import StepParser, Steps

BEGIN = "<think>"
END = "</think>"


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
