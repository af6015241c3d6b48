"""What every request passes on its way in and out: its id, key, time limit, and line in the log."""

from __future__ import annotations

import asyncio
import contextlib

from starlette.types import ASGIApp, Receive, Scope, Send

from radixlm.core.clock import Clock
from radixlm.server.access_log import UNLOGGED, log_access
from radixlm.server.api_keys import Keyring
from radixlm.server.config import ServerConfig
from radixlm.server.errors import error_response, timed_out
from radixlm.server.exchange import Exchange

# A client that does not read is not waited for when it is told that its time is over.
_TELL_SECONDS = 5
_HEALTH = "/health"
_OK = 200


class Envelope:
    """Wraps the whole application, so that no answer leaves without it, errors included.

    Plain ASGI: chunks pass one by one as they come, and the client's leaving is seen inside.
    """

    def __init__(self, app: ASGIApp, config: ServerConfig, keys: Keyring, clock: Clock) -> None:
        self._app = app
        self._keys = keys
        self._limit = config.request_timeout or None
        self._logs = not config.disable_access_log
        self._unlogged = () if config.log_health else (_HEALTH, config.root_path + _HEALTH)
        self._clock = clock

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        begun = self._clock.now()
        exchange = Exchange(scope, send)
        try:
            refusal = self._keys.refusal(scope)
            if refusal is None:
                await self._in_time(exchange, scope, receive)
            else:
                await error_response(refusal, exchange.errors.body)(scope, receive, exchange.send)
        finally:
            exchange.forget()
            if self._logs and UNLOGGED not in scope and not self._is_routine(exchange):
                log_access(exchange, self._clock.now() - begun)

    def _is_routine(self, exchange: Exchange) -> bool:
        """A probe every few seconds that finds all well would bury what is worth reading."""
        return exchange.status == _OK and exchange.path in self._unlogged

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
                async with asyncio.timeout(_TELL_SECONDS):
                    await self._tell(exchange, scope, receive)

    async def _tell(self, exchange: Exchange, scope: Scope, receive: Receive) -> None:
        error = timed_out(self._limit or 0)
        if exchange.status is None:
            await error_response(error, exchange.errors.body)(scope, receive, exchange.send)
        elif exchange.streams and not exchange.complete:
            last = exchange.errors.end(error)
            await exchange.send({"type": "http.response.body", "body": last, "more_body": False})
