"""How an API writes its answers: one protocol for all of them, and how a chat's are read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol

from radixlm.core.request import NOTHING, FinishReason, Piece, RequestOutput
from radixlm.parsers import AnswerEvent, AnswerParser, ReasoningDelta, ToolCallEnded
from radixlm.server.pipeline.usage import UsageMeter


class Writer(Protocol):
    """Writes one answer, whole or as a stream of events. It is made for one generation.

    `push` takes each output of each choice, then `finish` is called once; then, unless the answer
    is streamed, `whole`. One call runs at a time, in whichever thread.

    meter: counts what was pushed, before `push` sees it; the pipeline does that.
    """

    meter: UsageMeter

    def push(self, choice: int, output: RequestOutput) -> Iterable[bytes]:
        """Take new output of a choice. The events that it makes, framed, each read when those
        before it were sent; none where the answer is sent whole.
        """

    async def finish(self) -> Iterable[bytes]:
        """All outputs have come: do what waits for that, as storing. The stream's last events."""

    def whole(self) -> bytes:
        """The whole answer as JSON."""

    def failed(self, error: Exception) -> bytes:
        """What the stream ends with where an error cuts it short."""


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
        steps = self.steps(output.as_it_came(), output)
        return [event for _, events in steps for event in events]

    def steps(
        self, pieces: Iterable[Piece], output: RequestOutput
    ) -> Iterator[tuple[Piece, list[AnswerEvent]]]:
        """The same, each with the piece that made it certain.

        pieces: the output's text and tokens, or such as it completes.
        """
        for piece in pieces:
            events = self._parser.push(piece.text)
            self.thinks = _thinks_after(events, self.thinks)
            if self.thinks:
                self.reasoning_tokens += len(piece.token_ids)
            yield piece, self._noted(events)
        if output.finished:
            # A stop string cuts it off where the model would have gone on.
            own = output.finish_reason is FinishReason.STOP
            cut = not own or isinstance(output.matched_stop, str)
            yield NOTHING, self._noted(self._parser.flush(cut=cut))

    def _noted(self, events: list[AnswerEvent]) -> list[AnswerEvent]:
        self.called |= any(isinstance(event, ToolCallEnded) for event in events)
        return events


def _thinks_after(events: Sequence[AnswerEvent], thought: bool) -> bool:
    """Whether the tokens that gave `events` were thoughts. thought: whether those before were;
    tokens that give nothing yet are taken for the same.
    """
    if not events:
        return thought
    return all(isinstance(event, ReasoningDelta) for event in events)
