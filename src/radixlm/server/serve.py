"""Serving: from flags to a running HTTP server, and its orderly end."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import socket
from collections.abc import Awaitable, Callable

import uvicorn

from radixlm.build import AsyncEngine
from radixlm.core.config import EngineConfig
from radixlm.core.errors import ConfigError
from radixlm.server.app import create_app

_logger = logging.getLogger("radixlm.server")

DEFAULT_HOST = "127.0.0.1"
DEFAULT_PORT = 30000
_GRACE_SECONDS = 5
_ANSWER_SECONDS = 10
_LAST_PORT = 65535


class Server(uvicorn.Server):
    """Calls `ready` when requests are accepted.

    At its end the requests under way have `grace` seconds; then `end` must end them with an error,
    so that their clients are told. Uvicorn alone would cut them off.
    """

    def __init__(
        self,
        config: uvicorn.Config,
        ready: Callable[[], None],
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
            self._ready()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        if running := len(self.server_state.tasks):
            _logger.info(
                "%d requests have %g s to end; Ctrl-C again ends them now", running, self._grace
            )
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


def serve(
    config: EngineConfig,
    *,
    host: str = DEFAULT_HOST,
    port: int = DEFAULT_PORT,
    served_model_name: str | None = None,
) -> None:
    """Load the model and serve it until a signal comes.

    The port is taken before the model is loaded, so that a wrong one costs no wait.
    Raises ConfigError when it cannot be had, and what loading the model raises.
    """
    with contextlib.closing(bind(host, port)) as listener:
        engine = AsyncEngine.from_config(config)
        try:
            name = served_model_name or engine.model_name
            at = listener.getsockname()[1]
            http = uvicorn.Config(
                create_app(engine, served_model_name=name), log_level="warning", lifespan="off"
            )
            server = Server(
                http,
                ready=lambda: print(ready_line(name, host, at), flush=True),
                end=engine.close,
            )
            runner = asyncio.Runner(loop_factory=http.get_loop_factory())
            # On an interrupt uvicorn has ended in good order by then.
            with contextlib.suppress(KeyboardInterrupt), runner:
                runner.run(server.serve(sockets=[listener]))
        finally:
            asyncio.run(engine.close())


def bind(host: str, port: int) -> socket.socket:
    """A listening socket. Raises ConfigError that says what to do."""
    if not 0 <= port <= _LAST_PORT:
        raise ConfigError(f"--port is a number from 0 to {_LAST_PORT}, got {port}")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=2048)
    except OSError as error:
        raise ConfigError(
            f"cannot listen on {host} port {port}: {error}; choose another with --host, --port"
        ) from None


def ready_line(name: str, host: str, port: int) -> str:
    """What a newcomer needs to see: where it is, and a first request to try."""
    at = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, f"[{host}]" if ":" in host else host)  # noqa: S104
    url = f"http://{at}:{port}"
    return (
        f"RadixLM serves {name} on {url}; try:\n"
        f"  curl {url}/v1/chat/completions -d "
        """'{"messages": [{"role": "user", "content": "Hello"}]}'"""
    )
