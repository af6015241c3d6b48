"""Server-sent events as bytes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import aclosing
from typing import Any, TypeVar

from fastapi.responses import StreamingResponse
from starlette.requests import ClientDisconnect
from starlette.types import Receive, Scope, Send

DONE = b"data: [DONE]\n\n"
COMMENT = b": ping\n\n"
EVENTS, LINES = "text/event-stream", "application/x-ndjson"
# Until a stream's head is sent, in seconds: errors that come sooner have their own status.
PATIENCE = 0.5
# nginx would keep events back until a buffer is full.
_HEADERS = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
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
    """Sends events until they end or the client leaves; closes their generator in either case.

    The head is sent with the first event, or after `patience` seconds without one: what is refused
    before gets its own status code. Raises what the events raise before, ClientDisconnect.

    end_with: what it ends with where an error cuts it short after the head.
    ping: what is sent whenever nothing was for `interval` seconds, 0 for never: proxies and clients
        end connections that are silent. Who has left gets none: that is seen beside it.
    media_type: what the events are.
    """

    def __init__(
        self,
        events: AsyncGenerator[bytes, None],
        end_with: Callable[[Exception], bytes],
        *,
        interval: float,
        ping: bytes = COMMENT,
        patience: float = PATIENCE,
        media_type: str = EVENTS,
    ) -> None:
        super().__init__(events, media_type=media_type, headers=_HEADERS)
        self._events = events
        self._end_with = end_with
        self._interval, self._ping, self._patience = interval, ping, patience
        self._begun = False
        self._sent = 0.0  # when something was, by the event loop's clock
        self._writing = asyncio.Lock()

    async def __call__(self, _scope: Scope, receive: Receive, send: Send) -> None:
        # Here, since a client may leave before the first event is taken.
        async with aclosing(self._events):
            try:
                await until_disconnect(receive, self.stream_response(send))
            except ClientDisconnect:
                if not self._begun:
                    raise

    async def stream_response(self, send: Send) -> None:
        silence = asyncio.create_task(self._break_silence(send))
        try:
            async for chunk in self._events:
                await self._write(send, chunk)
        except Exception as error:  # whatever it is, the client must learn of it
            if not self._begun:
                raise
            await self._write(send, self._end_with(error))
        finally:
            silence.cancel()
            await asyncio.gather(silence, return_exceptions=True)
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _break_silence(self, send: Send) -> None:
        await asyncio.sleep(self._patience)
        if not self._begun:
            await self._write(send, b"")
        now = asyncio.get_running_loop().time
        while self._interval:
            left = self._sent + self._interval - now()
            if left > 0:
                await asyncio.sleep(left)
            else:
                await self._write(send, self._ping)

    async def _write(self, send: Send, chunk: bytes) -> None:
        """Send a chunk, after the head."""
        async with self._writing:
            if not self._begun:
                head = {"status": self.status_code, "headers": self.raw_headers}
                await send({"type": "http.response.start", **head})
                self._begun = True
            if chunk:
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
            self._sent = asyncio.get_running_loop().time()


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
