"""A request that no client sent, so that what answers requests is warm when the server is ready."""

from __future__ import annotations

import json

from starlette.types import ASGIApp, Message

from radixlm.server.access_log import UNLOGGED
from radixlm.server.config import ServerConfig

_PATH = "/tokenize"


async def touch(app: ASGIApp, config: ServerConfig, *, chats: bool) -> None:
    """Have a short text tokenized, a chat where there is a template for it: routes, readers and
    writers are used once; nothing counts it.
    """
    asked = {"messages": [{"role": "user", "content": "Hello"}]} if chats else {"prompt": "Hello"}
    body = json.dumps(asked).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    if config.api_key:
        headers.append((b"authorization", f"Bearer {config.api_key[0]}".encode()))
    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": "POST",
        "scheme": "http",
        "path": config.root_path + _PATH,
        "raw_path": (config.root_path + _PATH).encode(),
        "root_path": config.root_path,
        "query_string": b"",
        "headers": headers,
        "client": None,
        "server": None,
        UNLOGGED: True,
    }

    async def receive() -> Message:
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(_message: Message) -> None:
        return None

    await app(scope, receive, send)
