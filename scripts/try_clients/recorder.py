"""A proxy between a client and a server, which keeps every request and what came of it."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import httpx
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from scripts.try_clients.recordings import Exchange, events_of, ids_in, tokens_in

# Never a key, and nothing that tells the machine: those headers that an answer may depend on.
_KEPT = ("accept", "anthropic-beta", "anthropic-version", "content-type", "upgrade")
_HOP = ("connection", "content-length", "content-encoding", "host", "transfer-encoding", "upgrade")
_METHODS = ["GET", "POST", "PUT", "DELETE", "HEAD", "OPTIONS"]
_START_SECONDS = 30
# Makes of a path and a body the body that the server is given.
Change = Callable[[str, Any], Any]
_PATIENCE = 600


@dataclass(slots=True)
class Recorder:
    """url: where clients are to send. exchanges: in the order in which their answers ended.

    change: what is done to bodies on their way to the server.
    """

    server: str
    change: Change | None = None
    url: str = ""
    exchanges: list[Exchange] = field(default_factory=list)
    _client: httpx.AsyncClient = field(default_factory=lambda: httpx.AsyncClient(timeout=_PATIENCE))

    async def pass_on(self, request: Request) -> Response:
        body = await request.body()
        if self.change and body:
            body = json.dumps(self.change(request.url.path, json.loads(body))).encode()
        path = request.url.path + (f"?{request.url.query}" if request.url.query else "")
        headers = {name: text for name, text in request.headers.items() if name not in _HOP}
        answer = await self._client.send(
            self._client.build_request(
                request.method, self.server + path, headers=headers, content=body
            ),
            stream=True,
        )
        pieces: list[bytes] = []

        async def passing() -> AsyncIterator[bytes]:
            try:
                async for piece in answer.aiter_bytes():
                    pieces.append(piece)
                    yield piece
            finally:
                await answer.aclose()
                self._keep(request, path, body, answer.status_code, b"".join(pieces))

        given = {name: text for name, text in answer.headers.items() if name not in _HOP}
        return StreamingResponse(passing(), answer.status_code, given)

    def _keep(self, request: Request, path: str, body: bytes, status: int, told: bytes) -> None:
        events = _read(told)
        sent = Exchange(
            method=request.method,
            path=path,
            headers={name: request.headers[name] for name in _KEPT if name in request.headers},
            body=json.loads(body) if body else None,
            status=status,
            ids=ids_in(events),
        )
        prompt, cached = tokens_in(events) if sent.asks else (None, None)
        self.exchanges.append(replace(sent, prompt=prompt, cached=cached))


@contextmanager
def recording(server: str, change: Change | None = None) -> Iterator[Recorder]:
    """Listen on a free port until the block ends, and pass on to `server`, a URL.

    change: as Recorder's.
    """
    recorder = Recorder(server, change)
    route = Route("/{path:path}", recorder.pass_on, methods=_METHODS)
    config = uvicorn.Config(Starlette(routes=[route]), port=0, log_level="warning", ws="none")
    proxy = uvicorn.Server(config)
    thread = threading.Thread(target=lambda: asyncio.run(proxy.serve()), daemon=True)
    thread.start()
    for _ in range(_START_SECONDS * 100):
        if proxy.started:
            break
        thread.join(0.01)
    (listener,) = proxy.servers
    recorder.url = f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}"
    try:
        yield recorder
    finally:
        proxy.should_exit = True
        thread.join()


def _read(told: bytes) -> list[Any]:
    """The values of an answer; none where it is no JSON, or a stream that was cut short."""
    try:
        return list(events_of(told.decode()))
    except ValueError:
        return []
