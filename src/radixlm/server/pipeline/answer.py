"""From a job to its HTTP answer, whole or streamed; the shapes of the two APIs are plugged in."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping, Sequence
from contextlib import aclosing
from typing import Any, Protocol

from fastapi import Request
from fastapi.responses import JSONResponse, Response

from radixlm.core.request import RequestOutput
from radixlm.server.http.envelope import Exchange, exchange_of
from radixlm.server.http.sse import (
    DONE,
    ClientGoneError,
    EventStream,
    compact,
    event,
    framed,
    spliced,
    until_disconnect,
)
from radixlm.server.openai.openai_wire import Head
from radixlm.server.pipeline.cache_report import reported
from radixlm.server.pipeline.cache_wire import CacheTold
from radixlm.server.pipeline.generation import Job, Part, run_to_end, stream_parts
from radixlm.server.pipeline.protocol import StreamOptions
from radixlm.server.pipeline.service import Service, service_of
from radixlm.server.pipeline.usage import UsageMeter

# Log-probabilities, so many of them in an answer or a chunk, are written in a thread.
_MANY_LOGPROBS = 2_000

Fields = Mapping[str, Any]
Parts = AsyncGenerator[Part, None]


class Shape(Protocol):
    """How one API writes answers. Made for one job; it may remember what it has written.

    whole_kind, chunk_kind: `object` of an answer and of a stream's chunk.
    """

    whole_kind: str
    chunk_kind: str

    @property
    def reasoning_tokens(self) -> int:
        """How many of the tokens it has seen so far were thoughts."""

    def read(self, choice: int, output: RequestOutput) -> None:
        """See new output of an answer that is sent whole, in the end, by `whole`."""

    def whole(self, outputs: Sequence[RequestOutput]) -> Fields:
        """Of all output, in order of the choices: `choices`, and what else the API gives.

        A choice is a mapping, or JSON already.
        """

    def chunks(self, choice: int, output: RequestOutput) -> Sequence[Fields]:
        """The same of new output, one for each chunk; none when there is nothing to tell."""


async def answer(
    request: Request, job: Job, shape: Shape, *, stream: bool, usage: StreamOptions
) -> Response:
    """Run the job. Errors raise for as long as the status line has not been sent."""
    service = service_of(request)

    def events(parts: Parts) -> AsyncGenerator[bytes, None]:
        return _events(service, job, shape, parts, usage)

    async def whole(parts: Parts) -> Response:
        outputs = await run_to_end(_read(shape, parts), job.choices)
        meter = UsageMeter.of(outputs, job.n, caches=service.caches)
        many = _scores(outputs) > _MANY_LOGPROBS
        written = await asyncio.to_thread(shape.whole, outputs) if many else shape.whole(outputs)
        fields = {
            **_head(service, job, shape.whole_kind),
            **written,
            "usage": meter.as_json(shape.reasoning_tokens),
            **await _reported(service, job, meter),
        }
        body = await asyncio.to_thread(_in_pieces, fields) if many else _in_pieces(fields)
        return Response(body, media_type="application/json")

    parts = stream_parts(service, job)
    return await respond(request, parts, n=job.n, stream=stream, events=events, whole=whole)


async def respond(
    request: Request,
    parts: Parts,
    *,
    n: int,
    stream: bool,
    events: Callable[[Parts], AsyncGenerator[bytes, None]],
    whole: Callable[[Parts], Coroutine[Any, Any, Any]],
) -> Response:
    """Send what `events` makes of the parts as they come, or all that `whole` makes of them.

    The client's leaving closes `parts`, which aborts their requests. n: choices for each prompt.
    """
    exchange = exchange_of(request)
    parts = _counted(exchange, parts, n)
    try:
        if stream:
            begun = await _begin(request, parts)
            return EventStream(events(begun), lambda error: exchange.errors.end(error))
        made = await until_disconnect(request.receive, whole(parts))
        return made if isinstance(made, Response) else JSONResponse(made)
    except ClientGoneError:
        return Response(status_code=499)  # nobody reads it


def _in_pieces(fields: Fields) -> bytes:
    """JSON, choice by choice: making it keeps the interpreter to itself."""
    written = (each if isinstance(each, bytes) else compact(each) for each in fields["choices"])
    rest = {name: value for name, value in fields.items() if name != "choices"}
    return spliced(rest, {"choices": b"[" + b",".join(written) + b"]"})


def _scores(outputs: Sequence[RequestOutput]) -> int:
    """How many log-probabilities they have to tell."""
    return sum(len(output.logprobs) + len(output.prompt_logprobs) for output in outputs)


async def _events(
    service: Service,
    job: Job,
    shape: Shape,
    parts: Parts,
    usage: StreamOptions,
) -> AsyncGenerator[bytes, None]:
    head = _head(service, job, shape.chunk_kind)
    so_far: dict[str, Any] = {"usage": None} if usage.include_usage else {}
    meter = UsageMeter(job.n, caches=service.caches)
    async with aclosing(parts):
        async for choice, output in parts:
            meter.add(choice, output)
            if _scores([output]) > _MANY_LOGPROBS:
                chunks = await asyncio.to_thread(shape.chunks, choice, output)
            else:
                chunks = shape.chunks(choice, output)
            for fields in chunks:
                if usage.include_usage and usage.continuous_usage_stats:
                    so_far["usage"] = meter.as_json(shape.reasoning_tokens)
                yield framed(_in_pieces({**head, **fields, **so_far}))
    report = await _reported(service, job, meter)
    if usage.include_usage:
        yield event(
            {**head, "choices": [], "usage": meter.as_json(shape.reasoning_tokens), **report}
        )
    elif report:
        yield event({**head, "choices": [], **report})
    yield DONE


async def _reported(service: Service, job: Job, meter: UsageMeter) -> CacheTold:
    """What stands beside the usage. In a thread for many prompts: each takes a part of a
    millisecond.
    """
    told: CacheTold = {}
    if job.cached_details:
        told["sglext"] = {"cached_tokens_details": {"device": meter.cached, "host": 0}}
    if len(job.prompts) == 1:
        report = reported(service, job, meter.misses)
    else:
        report = await asyncio.to_thread(reported, service, job, meter.misses)
    return {**told, **report}


async def _read(shape: Shape, parts: Parts) -> Parts:
    """The same parts; the shape sees them as they come."""
    async with aclosing(parts):
        async for part in parts:
            shape.read(*part)
            yield part


async def _counted(exchange: Exchange, parts: Parts, n: int) -> Parts:
    """The same parts; the access log learns of their tokens as they come."""
    async with aclosing(parts):
        async for part in parts:
            if exchange.usage is None:
                exchange.usage = UsageMeter(n)
            exchange.usage.add(*part)
            yield part


async def _begin(request: Request, parts: Parts) -> Parts:
    """Wait for the first part, so that a refused request still gets its own status code."""

    async def first() -> Part:
        return await anext(parts)

    return _with_head(await until_disconnect(request.receive, first()), parts)


async def _with_head(head: Part, parts: Parts) -> Parts:
    async with aclosing(parts):
        yield head
        async for part in parts:
            yield part


def _head(service: Service, job: Job, kind: str) -> Head:
    return {
        "id": job.request_id,
        "object": kind,
        "created": int(time.time()),
        "model": service.model_name,
        "system_fingerprint": service.fingerprint,
    }
