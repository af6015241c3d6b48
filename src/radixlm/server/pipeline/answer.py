"""From a generation to its HTTP answer, whole or streamed, as the API's writer makes it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterable
from contextlib import aclosing

from fastapi import Request
from fastapi.responses import Response

from radixlm.core.request import RequestOutput
from radixlm.server.http.envelope import exchange_of
from radixlm.server.http.sse import ClientGoneError, EventStream, until_disconnect
from radixlm.server.pipeline.generation import Generation, Part, run
from radixlm.server.pipeline.names import in_callers_words
from radixlm.server.pipeline.service import Service, service_of
from radixlm.server.pipeline.writer import Writer

# With more log-probabilities than this, an answer or an event is written in a thread.
MANY_LOGPROBS = 2_000


async def respond(
    request: Request, generation: Generation, writer: Writer, *, stream: bool
) -> Response:
    """Run a generation and answer with what the writer makes of it.

    The client's leaving aborts its requests. Errors raise for as long as the status line has not
    been sent, about the client's own fields; later ones end the stream.
    """
    service, exchange = service_of(request), exchange_of(request)
    exchange.errors = exchange.errors._replace(end=writer.failed)
    exchange.usage = writer.meter
    try:
        with in_callers_words(generation.names):
            if stream:
                events = _events(service, generation, writer)
                first = await until_disconnect(request.receive, _next(events))
                return EventStream(events, writer.failed, first)
            body = await until_disconnect(request.receive, whole(service, generation, writer))
            return Response(body, media_type="application/json")
    except ClientGoneError:
        return Response(status_code=499)  # nobody reads it


async def whole(service: Service, generation: Generation, writer: Writer) -> bytes:
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
    """Cancelled, it ends when the writer has: one call runs at a time, and `failed` comes next."""
    writer.meter.add(*part)
    if not _is_large(part.output):
        return writer.push(*part)
    pushed = asyncio.ensure_future(asyncio.to_thread(writer.push, *part))
    try:
        return await asyncio.shield(pushed)
    except asyncio.CancelledError:
        await asyncio.gather(pushed, return_exceptions=True)
        raise


async def _next(events: AsyncGenerator[bytes, None]) -> bytes:
    """The first event, so that a request that is refused still gets its own status code."""
    return await anext(events)


def _is_large(output: RequestOutput) -> bool:
    """Whether it is written in a thread: log-probabilities may be megabytes of JSON, and making it
    keeps the interpreter to itself.
    """
    return bool(output.prompt_logprobs) or len(output.logprobs) > MANY_LOGPROBS
