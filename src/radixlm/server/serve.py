"""Serving: from flags to a running HTTP server, and its orderly end."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import signal
import socket
import threading
from collections.abc import Awaitable, Callable, Iterator

import uvicorn
from starlette.types import ASGIApp

from radixlm.build import AsyncEngine
from radixlm.core.config import EngineConfig
from radixlm.core.errors import ConfigError, counted
from radixlm.server.announce import pool_warning, touch, welcome
from radixlm.server.app import create_app
from radixlm.server.config.server_config import ServerConfig
from radixlm.server.http.connection import connection_with
from radixlm.server.http.garbage import full_searches_on_demand, search_when_quiet
from radixlm.server.kv_events.publisher import Outlet, Publisher, published
from radixlm.server.responses.response_store import ResponseStore
from radixlm.server.responses.responses_writer import lost

_logger = logging.getLogger("radixlm.server")

_GRACE_SECONDS = 5
_ANSWER_SECONDS = 3  # with the grace less than the ten that `docker stop` waits


class Server(uvicorn.Server):
    """Calls `ready` when requests are accepted.

    At its end the requests under way have `grace` seconds; then `end` must end them with an error,
    which their clients see. Uvicorn alone would cut them off.
    """

    def __init__(
        self,
        config: uvicorn.Config,
        ready: Callable[[], Awaitable[None]],
        end: Callable[[], Awaitable[None]],
        grace: float = _GRACE_SECONDS,
    ) -> None:
        config.timeout_graceful_shutdown = math.ceil(grace) + _ANSWER_SECONDS
        super().__init__(config)
        self._ready = ready
        self._end = end
        self._grace = grace

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            await self._ready()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        if running := len(self.server_state.tasks):
            _logger.info(
                "ending: %s under way, with %g s to finish; Ctrl-C again ends them now",
                counted(running, "request"),
                self._grace,
            )
        else:
            _logger.info("ending: no request runs")
        ending = asyncio.create_task(self._end_in_time())
        try:
            await super().shutdown(sockets)
        finally:
            ending.cancel()
            await asyncio.gather(ending, return_exceptions=True)
        if self.force_exit:
            await self._end()
            if tasks := set(self.server_state.tasks):
                await asyncio.wait(tasks, timeout=_ANSWER_SECONDS)

    async def _end_in_time(self) -> None:
        await asyncio.sleep(self._grace)
        await self._end()


def serve(config: EngineConfig, settings: ServerConfig, listener: socket.socket) -> None:
    """Load the model and serve it at `listener`, the caller's to close, until a signal comes.

    The ports of KV events are taken before the model is loaded, so that a wrong one costs no wait.
    Raises ConfigError for these, and what loading the model raises.
    """
    if settings.kv_events is not None and config.disable_radix_cache:
        raise ConfigError("--kv-events-config has no use with --disable-radix-cache")
    with contextlib.ExitStack() as ending:
        responses = ending.enter_context(stored_responses(settings))
        outlet = None
        if settings.kv_events is not None:
            outlet = ending.enter_context(contextlib.closing(Outlet(settings.kv_events)))
        engine = AsyncEngine.from_config(config)
        ending.callback(lambda: asyncio.run(engine.close()))
        publisher = ending.enter_context(published(engine, outlet))
        _serve(engine, listener, settings, responses, publisher)


def _serve(
    engine: AsyncEngine,
    listener: socket.socket,
    settings: ServerConfig,
    responses: ResponseStore,
    publisher: Publisher | None,
) -> None:
    name = settings.served_model_name or engine.model_name
    app = create_app(
        engine,
        served_model_name=name,
        config=settings,
        responses=responses,
        kv_events=None if publisher is None else publisher.counts,
    )
    http = http_config(app, settings)

    async def announce() -> None:
        chats = engine.chat_template is not None
        await touch(app, settings, chats=chats)
        if (warning := pool_warning(engine.info)) is not None:
            _logger.warning(warning)
        print(welcome(name, engine.info, listener, settings, chats=chats), flush=True)

    server = Server(http, ready=announce, end=engine.close)
    runner = asyncio.Runner(loop_factory=http.get_loop_factory())
    _end_on_terminate()
    # On an interrupt uvicorn has ended in good order by then.
    with contextlib.suppress(KeyboardInterrupt), full_searches_on_demand(), runner:
        runner.run(_run(server, listener, engine))


@contextlib.contextmanager
def stored_responses(settings: ServerConfig) -> Iterator[ResponseStore]:
    """Those of earlier servers too, where there is a file. Raises ConfigError."""
    store = ResponseStore.from_config(settings)
    try:
        store.fail_open(lost)
        yield store
    finally:
        store.close()


async def _run(server: Server, listener: socket.socket, engine: AsyncEngine) -> None:
    def under_way() -> int:
        stats = engine.stats()
        return stats.running + stats.waiting

    searching = asyncio.create_task(search_when_quiet(under_way))
    try:
        await server.serve(sockets=[listener])
    finally:
        searching.cancel()


def _end_on_terminate() -> None:
    """Let SIGTERM end like Ctrl-C. Uvicorn raises it again at its end; by default that kills the
    process before the engine is closed and the Unix socket taken away.
    """
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, signal.default_int_handler)


def http_config(app: ASGIApp, settings: ServerConfig) -> uvicorn.Config:
    """Uvicorn's own log lines go where ours go; its access log gives way to ours."""
    return uvicorn.Config(
        app,
        http=connection_with(settings.header_timeout),
        timeout_keep_alive=math.ceil(settings.keep_alive_timeout),
        lifespan="off",
        ws="none",
        log_config=None,
        log_level="warning",
        access_log=False,
        root_path=settings.root_path,
        ssl_keyfile=settings.ssl_keyfile,
        ssl_certfile=settings.ssl_certfile,
    )
