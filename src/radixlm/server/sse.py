"""Server-sent events, and letting go of work whose client has left."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import aclosing
from typing import Any, TypeVar

from fastapi.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

T = TypeVar("T")


class ClientGoneError(Exception):
    """The client closed the connection; nobody waits for the answer."""


async def until_disconnect(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """Run `work` for as long as the client is there. The request's body must have been read.

    Raises ClientGoneError, after `work` was cancelled and has cleaned up, when the client leaves.
    """
    watcher = asyncio.create_task(_disconnected(receive))
    worker = asyncio.create_task(work)
    try:
        await asyncio.wait((watcher, worker), return_when=asyncio.FIRST_COMPLETED)
        if not worker.done():
            raise ClientGoneError
        return worker.result()
    finally:
        for task in (watcher, worker):
            task.cancel()
        await asyncio.gather(watcher, worker, return_exceptions=True)


class EventStream(StreamingResponse):
    """Sends events until they end or the client leaves; closes their generator in either case.

    An error in mid-stream becomes the stream's end, since the status line has been sent already.
    end_with: what a stream ends with that an error cuts short.
    """

    def __init__(
        self, events: AsyncGenerator[bytes, None], end_with: Callable[[Exception], bytes]
    ) -> None:
        super().__init__(
            events, media_type="text/event-stream", headers={"Cache-Control": "no-cache"}
        )
        self._events = events
        self._end_with = end_with

    async def __call__(self, _scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await until_disconnect(receive, self.stream_response(send))
        except ClientGoneError:
            return

    async def stream_response(self, send: Send) -> None:
        await send(
            {"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers}
        )
        async with aclosing(self._told()) as events:
            async for chunk in events:
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _told(self) -> AsyncGenerator[bytes, None]:
        async with aclosing(self._events):
            try:
                async for chunk in self._events:
                    yield chunk
            except Exception as error:  # whatever it is, the client must be told
                yield self._end_with(error)


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
