"""One request and its answer, as the outside sees them."""

from __future__ import annotations

import re
import uuid

from fastapi import Request
from starlette.datastructures import Headers
from starlette.types import Message, Scope, Send

from radixlm.server.error_shapes import for_anthropic, shape_of
from radixlm.server.usage import UsageMeter

_SCOPE_KEY = "radixlm.exchange"
# Source: https://www.w3.org/TR/trace-context/#traceparent-header
_TRACE = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")
_REQUEST_ID = re.compile(r"[ -~]{1,128}")


class Exchange:
    """Sends a request's answer, under its id, and remembers what was sent.

    request_id: the client's `x-request-id` when it is 1 to 128 printable ASCII characters, else a
        fresh one.
    traceparent: which trace it is part of, as the client says.
    status: None until the answer has begun.
    streams: the answer is a stream of events. complete: its last byte was sent.
    errors: how it is told of errors; a route whose streams end in another way sets its own.
    usage: where the route counts tokens; None on routes that have none.
    """

    def __init__(self, scope: Scope, send: Send) -> None:
        headers = Headers(scope=scope)
        wish = headers.get("x-request-id", "").strip(" ")
        trace = headers.get("traceparent", "").strip(" ")
        self.traceparent = trace if _TRACE.fullmatch(trace) else None
        self.request_id = wish if _REQUEST_ID.fullmatch(wish) else uuid.uuid4().hex
        self.method: str = scope["method"]
        self.path: str = scope["path"]
        self.status: int | None = None
        self.streams = False
        self.complete = False
        self.errors = shape_of(scope, self.request_id)
        self.usage: UsageMeter | None = None
        self._send = send
        self._scope = scope
        scope[_SCOPE_KEY] = self

    def forget(self) -> None:
        """The request is over: leave its scope, which would otherwise hold itself through `send`,
        and with it the body, until the next search for such cycles.
        """
        self._scope.pop(_SCOPE_KEY, None)

    async def send(self, message: Message) -> None:
        """The ASGI `send` that the application gets."""
        if message["type"] == "http.response.start":
            headers = list(message.get("headers", ()))
            self.status = message["status"]
            self.streams = any(
                name == b"content-type" and value.startswith(b"text/event-stream")
                for name, value in headers
            )
            headers.append((b"x-request-id", self.request_id.encode()))
            if for_anthropic(self._scope):
                headers.append((b"request-id", self.request_id.encode()))
            message = {**message, "headers": headers}
        await self._send(message)
        if message["type"] == "http.response.body" and not message.get("more_body", False):
            self.complete = True


def exchange_of(request: Request) -> Exchange:
    """The exchange that a route is part of."""
    exchange: Exchange = request.scope[_SCOPE_KEY]
    return exchange
