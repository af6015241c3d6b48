"""Server-sent events as bytes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import aclosing, suppress
from typing import Any, TypeVar, cast

from fastapi.responses import StreamingResponse
from starlette.requests import ClientDisconnect
from starlette.types import Receive, Scope, Send

DONE = b"data: [DONE]\n\n"
# Readers of text take these for the ends of lines, too (httpx does); in JSON they stand in strings.
_LINE_ENDS = tuple((end.encode(), b"\\u%04x" % ord(end)) for end in "\x85\u2028\u2029")


T = TypeVar("T")


def event(data: Mapping[str, Any], name: str = "") -> bytes:
    """One event: a single `data:` line, under its name where the API gives events names."""
    return framed(compact(data), name)


def framed(line: bytes, name: str = "") -> bytes:
    """One event of a line that is JSON already."""
    for end, escaped in _LINE_ENDS:
        line = line.replace(end, escaped)
    head = b"event: " + name.encode() + b"\n" if name else b""
    return head + b"data: " + line + b"\n\n"


def compact(data: object) -> bytes:
    """JSON without a space or a line break."""
    return json.dumps(data, ensure_ascii=False, separators=(",", ":")).encode()


def spliced(fields: Mapping[str, Any], written: Mapping[str, bytes]) -> bytes:
    """The same of an object, some of whose fields are JSON already.

    >>> spliced({"id": 1}, {"list": b"[2,3]"})
    b'{"id":1,"list":[2,3]}'
    """
    members = [compact(fields)[1:-1]] if fields else []
    members += [compact(name) + b":" + value for name, value in written.items()]
    return b"{" + b",".join(members) + b"}"


async def until_disconnect(receive: Receive, work: Awaitable[T]) -> T:
    """Run `work` for as long as the client is there. The request's body must have been read.

    Raises ClientDisconnect, after `work` was cancelled and has cleaned up, when the client leaves.
    """
    watcher = asyncio.create_task(_disconnected(receive))
    worker = asyncio.ensure_future(work)
    try:
        await asyncio.wait((watcher, worker), return_when=asyncio.FIRST_COMPLETED)
        if not worker.done():
            raise ClientDisconnect
        return worker.result()
    finally:
        for task in (watcher, worker):
            task.cancel()
        await asyncio.gather(watcher, worker, return_exceptions=True)


class EventStream(StreamingResponse):
    """Sends events until they end or the client leaves; closes their generator in either case."""

    _events: AsyncGenerator[bytes, None]

    @classmethod
    async def begun(
        cls,
        receive: Receive,
        events: AsyncGenerator[bytes, None],
        end_with: Callable[[Exception], bytes],
    ) -> EventStream:
        """A stream whose first event has come, so that what is refused still gets its own status
        code. Raises what the events raise before, ClientDisconnect.

        end_with: what it ends with where an error cuts it short later, since the status line has
        been sent already.
        """
        first = await until_disconnect(receive, anext(events))
        whole, headers = _whole(first, events, end_with), {"Cache-Control": "no-cache"}
        stream = cls(whole, media_type="text/event-stream", headers=headers)
        stream._events = events
        return stream

    async def __call__(self, _scope: Scope, receive: Receive, send: Send) -> None:
        # Here, since a client may leave before the first event is taken.
        async with aclosing(self._events):
            with suppress(ClientDisconnect):
                await until_disconnect(receive, self.stream_response(send))

    async def stream_response(self, send: Send) -> None:
        await send(
            {"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers}
        )
        async with aclosing(cast("AsyncGenerator[bytes, None]", self.body_iterator)) as events:
            async for chunk in events:
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _whole(
    first: bytes, events: AsyncGenerator[bytes, None], end_with: Callable[[Exception], bytes]
) -> AsyncGenerator[bytes, None]:
    try:
        yield first
        del first  # it may be megabytes
        async for chunk in events:
            yield chunk
    except Exception as error:  # whatever it is, the client must learn of it
        yield end_with(error)


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
