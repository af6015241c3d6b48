"""One answer as it comes, taken apart, and how much of it was thoughts."""

from __future__ import annotations

from collections.abc import Sequence

from radixlm.core.request import FinishReason, RequestOutput
from radixlm.text.answers import AnswerEvent, AnswerParser, ReasoningDelta, ToolCallEnded


class AnswerStream:
    """Reads the outputs of one answer.

    called: whether a whole call has come. thinks: whether the last tokens were thoughts.
    reasoning_tokens: how many of the answer's tokens were.
    """

    def __init__(self, parser: AnswerParser) -> None:
        self._parser = parser
        self.called = False
        self.thinks = False
        self.reasoning_tokens = 0

    def events(self, output: RequestOutput) -> list[AnswerEvent]:
        """What is new; with the last output, all that was held back."""
        events: list[AnswerEvent] = []
        for tokens, text in output.as_it_came():
            new = self._parser.push(text)
            self.thinks = _thinks_after(new, self.thinks)
            if self.thinks:
                self.reasoning_tokens += tokens
            events += new
        if output.finished:
            events += self._parser.flush(cut=output.finish_reason is not FinishReason.STOP)
        self.called |= any(isinstance(event, ToolCallEnded) for event in events)
        return events


def _thinks_after(events: Sequence[AnswerEvent], thought: bool) -> bool:
    """Whether the tokens that gave `events` were thoughts. thought: whether those before were;
    tokens that give nothing yet are taken for the same.
    """
    if not events:
        return thought
    return all(isinstance(event, ReasoningDelta) for event in events)
