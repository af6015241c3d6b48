"""Requests that the server makes for itself, for lines of a batch: answered as by the route, with
nothing between but the envelope, whose key was checked when the batch came.
"""

from __future__ import annotations

import asyncio
from typing import NamedTuple

from starlette.types import ASGIApp, Message

from radixlm.server.http.envelope import UNLOGGED, Exchange


class InsideReply(NamedTuple):
    status: int
    request_id: str
    body: bytes


async def post_inside(
    app: ASGIApp, path: str, body: bytes, tenant: str, begun: float
) -> InsideReply:
    """Post to the application that the envelope wraps, on a tenant's behalf. Cancelled, it aborts
    its requests.

    begun: now, by the server's clock.
    """
    status = 500
    chunks: list[bytes] = []
    sent = False

    async def receive() -> Message:
        nonlocal sent
        if sent:  # the client never leaves
            await asyncio.Event().wait()
        sent = True
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: Message) -> None:
        nonlocal status
        if message["type"] == "http.response.start":
            status = message["status"]
        else:
            chunks.append(message.get("body", b""))

    length = str(len(body)).encode()
    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": "POST",
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "root_path": "",
        "query_string": b"",
        "headers": [(b"content-type", b"application/json"), (b"content-length", length)],
        "client": None,
        "server": None,
        UNLOGGED: True,
    }
    exchange = Exchange(scope, send, begun)
    exchange.tenant = tenant
    try:
        await app(scope, receive, exchange.send)
    finally:
        exchange.forget()
    return InsideReply(status, exchange.request_id, b"".join(chunks))
