"""What a model thinks, kept apart from its answer."""

from __future__ import annotations

from radixlm.parsers.events import AnswerParser, ReasoningDelta
from radixlm.parsers.steps import StepParser, Steps

BEGIN = "<think>"
END = "</think>"


class ReasoningParser(StepParser):
    """`<think>…</think>` at the answer's begin is reasoning; `inner` reads what comes after it.

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
        yield from self._answer()

    def _answer(self) -> Steps[None]:
        while True:
            self._events += self._inner.push(self._text[self._mark :])
            self._text, self._mark = "", 0
            if self._ended:
                break
            yield
        self._events += self._inner.flush(cut=self._cut)
