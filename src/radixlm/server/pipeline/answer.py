"""The HTTP answer of a generation, whole or streamed, as the API's writer makes it; and the reading
of a chat's answers.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator
from contextlib import aclosing, suppress
from typing import Protocol

from fastapi import Request
from fastapi.responses import Response

from radixlm.core.request import NOTHING, FinishReason, Piece, RequestOutput
from radixlm.parsers import AnswerEvent, AnswerParser, ReasoningDelta, ToolCallEnded
from radixlm.server.http.envelope import exchange_of
from radixlm.server.http.sse import COMMENT, EVENTS, PATIENCE, EventStream, until_disconnect
from radixlm.server.insight.usage import UsageMeter
from radixlm.server.pipeline.generation import Generation, Part, run
from radixlm.server.pipeline.service import Service, service_of

# With more log-probabilities than this, an answer or an event is written in a thread.
MANY_LOGPROBS = 2_000
# Seconds for which a stream whose grammar may be refused has no head: what compiling it takes at
# most, and what the compiler takes to start.
_UNTIL_COMPILED = 4.0


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


async def respond(
    request: Request,
    generation: Generation,
    writer: Writer,
    *,
    stream: bool,
    end_with: Callable[[Exception], bytes] | None = None,
    ping: bytes = COMMENT,
    media_type: str = EVENTS,
) -> Response:
    """Answer with what the writer makes of a generation, which runs for as long as that is sent.

    end_with: what its streams end with that an error cuts short; else as the API's others do.
    ping: what they send in silence. media_type: what they are.

    The client's leaving aborts its requests, and raises ClientDisconnect. Errors raise for as long
    as the status line has not been sent, about the client's own fields; later ones end the stream.
    """
    service, exchange = service_of(request), exchange_of(request)
    if end_with is not None:
        exchange.errors = exchange.errors._replace(end=end_with)
    exchange.usage = writer.meter.counts
    if stream:
        return EventStream(
            _events(service, generation, writer),
            exchange.errors.end,
            interval=service.config.sse_keep_alive_interval,
            ping=ping,
            media_type=media_type,
            patience=PATIENCE if generation.params.grammar is None else _UNTIL_COMPILED,
        )
    body = await until_disconnect(request.receive, _whole(service, generation, writer))
    return Response(body, media_type="application/json")


async def _whole(service: Service, generation: Generation, writer: Writer) -> bytes:
    """Run a generation to its end: the whole answer. Raises what the engine raises."""
    large = len(generation.requests) > 1
    scores = 0
    async with aclosing(run(service, generation)) as parts:
        async for part in parts:
            scores += len(part.output.logprobs)
            large |= _is_large(part.output)
            await _push(writer, part)
    await writer.finish()
    if large or scores > MANY_LOGPROBS:
        return await asyncio.to_thread(writer.whole)
    return writer.whole()


async def _events(
    service: Service, generation: Generation, writer: Writer
) -> AsyncGenerator[bytes, None]:
    async with aclosing(run(service, generation)) as parts:
        async for part in parts:
            for event in await _push(writer, part):
                yield event
    for event in await writer.finish():
        yield event


async def _push(writer: Writer, part: Part) -> Iterable[bytes]:
    """Cancelled, it ends when the writer has: the next call, for the stream's end, may follow."""
    writer.meter.add(*part)
    if not _is_large(part.output):
        return writer.push(*part)
    pushed = asyncio.ensure_future(asyncio.to_thread(writer.push, *part))
    try:
        return await asyncio.shield(pushed)
    except asyncio.CancelledError:
        while not pushed.done():  # the client may leave, and then the time be over
            with suppress(asyncio.CancelledError):
                await asyncio.wait({pushed})
        raise


def _is_large(output: RequestOutput) -> bool:
    """Whether it is written in a thread: log-probabilities may be megabytes of JSON, and making it
    keeps the interpreter to itself.
    """
    return bool(output.prompt_logprobs) or len(output.logprobs) > MANY_LOGPROBS


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
        """The new events; with the last output, all that was held back."""
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
            if events:  # tokens that give nothing yet are taken for the same as those before
                self.thinks = all(isinstance(event, ReasoningDelta) for event in events)
            if self.thinks:
                self.reasoning_tokens += len(piece.token_ids)
            yield piece, self._noted(events)
        if output.finished:
            # A stop string cuts it off where the model would have gone on.
            own = output.finish_reason is FinishReason.STOP
            cut = not own or isinstance(output.matched_stop, str)
            yield NOTHING, self._noted(self._parser.flush(cut=cut))

    def _noted(self, events: list[AnswerEvent]) -> list[AnswerEvent]:
        self.called |= any(isinstance(each, ToolCallEnded) and each.whole for each in events)
        return events
