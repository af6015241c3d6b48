"""The envelope of every request: its key, id and time limit, its line in the access log."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import hmac
import json
import logging
import re
import uuid
from collections.abc import Callable, Sequence
from typing import Any

from fastapi import Request
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from radixlm.core.clock import Clock
from radixlm.core.errors import InvalidRequestError, counted
from radixlm.server.config.server_config import ServerConfig
from radixlm.server.http.http_errors import (
    AdminKeyNeededError,
    InvalidApiKeyError,
    error_response,
    for_anthropic,
    shape_of,
    timed_out,
)
from radixlm.server.http.sse import EVENTS, LINES
from radixlm.server.http.tracing import Tracing

_SCOPE_KEY = "radixlm.exchange"
# Source: https://www.w3.org/TR/trace-context/#traceparent-header
_TRACE = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")
_REQUEST_ID = re.compile(r"[ -~]{1,128}")
# In the scope of a request that the server made for itself.
UNLOGGED = "radixlm.unlogged"
_logger = logging.getLogger("radixlm.access")
_PLAIN = re.compile(r"[\w./:+-]+", re.ASCII)
_LONGEST_PATH = 200
_STREAMS = (EVENTS.encode(), LINES.encode())
# How long a client may take to read that its time is over.
_WRITE_SECONDS = 5
_OK = 200
# A probe of whether the server is up carries no key.
OPEN_PATH = "/health"
# Nor does a browser that fetches a page: this one asks for a key, and holds no data by itself.
PAGE_PATH = "/ui"
# It leads to the page.
TOP_PATH = "/"


class Exchange:
    """Sends a request's answer, under its id, and remembers what was sent.

    request_id: the client's `x-request-id` when it is 1 to 128 printable ASCII characters, else a
        fresh one.
    traceparent: which trace it is part of, as the client says.
    tenant: on whose behalf it comes: a digest of the API key that it carries, "" without one.
    status: None until the answer has begun.
    streams: the answer is a stream of events. complete: its last byte was sent.
    errors: how errors are answered; a route whose streams end in another way sets its own.
    usage: counts the prompt's tokens, those of them that were cached, and the answer's, and says of
        each prompt which replica it went to and why, for the access log; no prompt's, where it was
        refused. None on routes that have none.
    begun: when it came, by the server's clock.
    ending: what ends with it.
    """

    def __init__(self, scope: Scope, send: Send, begun: float) -> None:
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
        self.usage: Callable[[], tuple[int, int, int, Sequence[str]]] | None = None
        self.tenant = tenant_in(headers)
        self.begun = begun
        self.ending = contextlib.ExitStack()
        self._send = send
        self._scope = scope
        scope[_SCOPE_KEY] = self

    def forget(self) -> None:
        """The request is over: end what ends with it, and leave its scope, which would otherwise
        hold itself through `send`, and with it the body, until the next search for such cycles.
        """
        self._scope.pop(_SCOPE_KEY, None)
        self.ending.close()

    async def send(self, message: Message) -> None:
        """The ASGI `send` that the application gets."""
        if message["type"] == "http.response.start":
            headers = list(message.get("headers", ()))
            self.status = message["status"]
            self.streams = any(
                name == b"content-type" and value.startswith(_STREAMS) for name, value in headers
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


def log_access(exchange: Exchange, seconds: float) -> None:
    """Write the line of a request that is over.

    The record's `fields` holds the same as its message; `serve --log-format json` writes them.
    """
    if not _logger.isEnabledFor(logging.INFO):
        return
    seconds = round(seconds, 4)
    fields: dict[str, Any] = {
        "request_id": exchange.request_id,
        "method": exchange.method,
        "path": exchange.path[:_LONGEST_PATH],
        "status": exchange.status,
    }
    status = exchange.status or "left before an answer"
    parts = [f"{_plain(exchange.method)} {_plain(fields['path'])} {status}"]
    prompt, cached, answer, routed = exchange.usage() if exchange.usage else (0, 0, 0, ())
    if prompt:
        fields |= {"prompt_tokens": prompt, "cached_tokens": cached, "output_tokens": answer}
        parts += [f"prompt {counted(prompt, 'token')}, {cached} cached", f"answer {answer}"]
    if routed:
        fields["routed"] = list(routed)
        parts += [f"replica {each}" for each in routed]
    parts.append(f"{seconds:.3f} s, id {_plain(exchange.request_id)}")
    if exchange.traceparent is not None:
        fields["traceparent"] = exchange.traceparent
        parts.append(f"trace {exchange.traceparent}")
    fields["seconds"] = seconds
    _logger.info("%s", "; ".join(parts), extra={"fields": fields})


def _plain(value: object) -> str:
    """Quoted and escaped unless it is harmless: a client must not be able to forge a line."""
    text = str(value)
    return text if _PLAIN.fullmatch(text) else json.dumps(text)


class Envelope:
    """Wraps the whole application, so that no answer leaves without it, errors included.

    Plain ASGI: chunks pass one by one as they come, and the client's leaving is seen inside.
    """

    def __init__(
        self,
        app: ASGIApp,
        config: ServerConfig,
        keys: Keyring,
        clock: Clock,
        tracing: Tracing | None = None,
    ) -> None:
        self._app = app
        self._keys = keys
        self._limit = config.request_timeout or None
        self._logs = not config.disable_access_log
        self._unlogged = () if config.log_health else (OPEN_PATH, config.root_path + OPEN_PATH)
        self._clock = clock
        self._tracing = tracing

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        begun = self._clock.now()
        exchange = Exchange(scope, send, begun)
        try:
            with self._span(exchange, scope):
                await self._answer(exchange, scope, receive)
        finally:
            exchange.forget()
            # A probe every few seconds that finds all well would bury what is worth reading.
            routine = exchange.status == _OK and exchange.path in self._unlogged
            if self._logs and UNLOGGED not in scope and not routine:
                log_access(exchange, self._clock.now() - begun)

    def _span(self, exchange: Exchange, scope: Scope) -> contextlib.AbstractContextManager[None]:
        if self._tracing is None or UNLOGGED in scope:
            return contextlib.nullcontext()
        return self._tracing.of_http(scope, exchange.request_id, lambda: exchange.status)

    async def _answer(self, exchange: Exchange, scope: Scope, receive: Receive) -> None:
        refusal = self._keys.refusal(scope, exchange.tenant)
        if refusal is None:
            await self._in_time(exchange, scope, receive)
        else:
            await error_response(refusal, exchange.errors.body)(scope, receive, exchange.send)

    async def _in_time(self, exchange: Exchange, scope: Scope, receive: Receive) -> None:
        """Cancelling the application aborts its requests in the engine."""
        limit = asyncio.timeout(self._limit)
        try:
            async with limit:
                await self._app(scope, receive, exchange.send)
        except TimeoutError:
            if not limit.expired():
                raise
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_WRITE_SECONDS):
                    await self._write_error(exchange, scope, receive)

    async def _write_error(self, exchange: Exchange, scope: Scope, receive: Receive) -> None:
        error = timed_out(self._limit or 0)
        if exchange.status is None:
            await error_response(error, exchange.errors.body)(scope, receive, exchange.send)
        elif exchange.streams and not exchange.complete:
            last = exchange.errors.end(error)
            await exchange.send({"type": "http.response.body", "body": last, "more_body": False})


def tenant_in(headers: Headers) -> str:
    """The tenant of a request: the digest of the key that it carries, as `Authorization: Bearer
    KEY` or else as `x-api-key`; "" without one.
    """
    scheme, _, key = headers.get("authorization", "").partition(" ")
    bearer = key.strip() if scheme.lower() == "bearer" else ""
    carried = bearer or headers.get("x-api-key", "").strip()
    return digest_of(carried) if carried else ""


def digest_of(key: str) -> str:
    """32 characters that stand for a key where the key itself must not be seen."""
    return hashlib.blake2b(key.encode(), digest_size=16).hexdigest()


class Keyring:
    """The keys that open the server; without any it is open to everyone.

    open_paths: need no key, beside those that never do.
    admin_keys: open everything, and where there are any, nothing else opens what is for admins.
    """

    def __init__(
        self, keys: Sequence[str], admin_keys: Sequence[str] = (), *, open_paths: Sequence[str] = ()
    ) -> None:
        self._open_paths = (OPEN_PATH, TOP_PATH, PAGE_PATH, *open_paths)
        self._admins = tuple(digest_of(key) for key in admin_keys)
        self._digests = (*(digest_of(key) for key in keys), *self._admins) if keys else ()

    def refusal(self, scope: Scope, tenant: str) -> InvalidApiKeyError | None:
        """The reason why a tenant's request may not pass; None when it may.

        Takes the same time whichever key is right and however much of a wrong one is: digests are
        compared, all of them, and each in constant time.
        """
        path, root = scope["path"], scope.get("root_path", "")
        is_open = path in [root + each for each in self._open_paths]
        if scope["method"] == "OPTIONS" or is_open or path.startswith(f"{root}{PAGE_PATH}/"):
            return None
        return self.key_refusal(tenant)

    def key_refusal(self, tenant: str) -> InvalidApiKeyError | None:
        """The reason why a tenant's key opens nothing; None when it does."""
        return _refusal(tenant, self._digests) if self._digests else None

    def is_admin(self, digest: str) -> bool:
        """Whether a key, known by its digest, is an admin's. Without any, none is."""
        return sum(hmac.compare_digest(digest, admin) for admin in self._admins) > 0

    def admin_refusal(self, tenant: str) -> InvalidRequestError | None:
        """The reason why a tenant may not do what is for admins; None when it may."""
        if not self._admins:
            return None
        refusal = _refusal(tenant, self._admins)
        if refusal is None or not self._digests:
            return refusal
        return AdminKeyNeededError("this needs one of the keys of --admin-api-key")


def _refusal(tenant: str, digests: Sequence[str]) -> InvalidApiKeyError | None:
    if not tenant:
        return InvalidApiKeyError(
            "an API key is needed: send Authorization: Bearer KEY, or x-api-key: KEY"
        )
    if sum(hmac.compare_digest(tenant, digest) for digest in digests):
        return None
    return InvalidApiKeyError("Incorrect API key provided: it is not one of this server's")
