"""Serving: from flags to a running HTTP server, what is done and said when it is ready, and its
orderly end.

We choose when Python looks for garbage that its reference counts do not find. A full search takes
time in proportion to all objects there are: half a second with a few thousand requests waiting, in
which neither the engine nor the event loop can do anything. Python would start one whenever a
quarter more objects have grown old, as they do while a queue fills. Requests leave no such garbage
behind (a test sees to it), so what is left to find is little.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import math
import signal
import socket
import tempfile
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import httpx
import uvicorn
from starlette.types import ASGIApp, Receive, Scope, Send

from radixlm.assembly import AsyncEngine, ModelInfo
from radixlm.core.config import EngineConfig
from radixlm.core.errors import ConfigError, EngineDeadError, EngineStoppedError, counted
from radixlm.engine import Limits
from radixlm.engine.engine_stats import EngineStats
from radixlm.server.app import create_app
from radixlm.server.batches.file_store import FileLimits, FileStore, FileTable
from radixlm.server.batches.keeper import BatchKeeper
from radixlm.server.config.server_config import ServerConfig
from radixlm.server.http.connection import connection_with
from radixlm.server.http.envelope import UNLOGGED
from radixlm.server.http.listen import listening_beside
from radixlm.server.http.tracing import Tracing, traced
from radixlm.server.insight.recorder import Recorder, recording
from radixlm.server.kv_events.publisher import Outlet, Publisher, published
from radixlm.server.responses.response_store import ResponseStore
from radixlm.server.responses.responses_writer import lost

_logger = logging.getLogger("radixlm.server")

_GRACE_SECONDS = 5
_LOOK_SECONDS = 0.5
_ANSWER_SECONDS = 3  # with the grace less than the ten that `docker stop` waits
# No useful prompt fits into a smaller pool.
_USEFUL_TOKENS = 512
_CHAT = '/v1/chat/completions -d \'{"messages": [{"role": "user", "content": "Hello"}]}\''
_COMPLETION = '/v1/completions -d \'{"prompt": "Once upon a time", "max_tokens": 32}\''
# With no more requests than this a search takes no longer than a step.
_FEW = 64
EVERY_SECONDS = 10.0
# A search through a million nodes of the tree takes seconds, and finds nothing: the next one comes
# after this many times as long.
_TIMES_ITS_OWN = 200
# However busy the server is, so that what a library leaves behind cannot grow for ever; later only
# after a search that took so long.
AT_LEAST_EVERY_SECONDS = 900.0
_NEVER = 1_000_000


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
    Raises ConfigError for these, what loading the model raises, and EngineDeadError when the engine
    died meanwhile.
    """
    if settings.kv_events is not None and config.disable_radix_cache:
        raise ConfigError("--kv-events-config has no use with --disable-radix-cache")
    with contextlib.ExitStack() as ending:
        listeners = [listener, *ending.enter_context(listening_beside(settings))]
        responses = ending.enter_context(stored_responses(settings))
        batches = BatchKeeper(ending.enter_context(stored_files(settings)))
        recorder = ending.enter_context(recording(settings))
        tracing = ending.enter_context(traced(settings))
        outlet = None
        if settings.kv_events is not None:
            outlet = ending.enter_context(contextlib.closing(Outlet(settings.kv_events)))
        engine = AsyncEngine.from_config(config)
        ending.callback(lambda: asyncio.run(engine.close()))
        publisher = ending.enter_context(published(engine, outlet))
        _serve(engine, listeners, settings, responses, batches, publisher, recorder, tracing)


def _serve(
    engine: AsyncEngine,
    listeners: list[socket.socket],
    settings: ServerConfig,
    responses: ResponseStore,
    batches: BatchKeeper,
    publisher: Publisher | None,
    recorder: Recorder | None,
    tracing: Tracing | None,
) -> None:
    name = settings.first_name(engine.model_name)
    app = create_app(
        engine,
        served_model_name=name,
        config=settings,
        responses=responses,
        batches=batches,
        kv_events=None if publisher is None else publisher.counts,
        recorder=recorder,
        tracing=tracing,
    )
    http = http_config(app, settings)

    async def announce() -> None:
        chats = engine.chat_template is not None
        await touch(app, settings, chats=chats)
        if (warning := pool_warning(engine.limits)) is not None:
            _logger.warning(warning)
        said = welcome(name, engine.info, engine.limits, listeners[0], settings, chats=chats)
        print(said, flush=True)
        await batches.resume()
        beside.append(asyncio.create_task(search_when_quiet(engine.stats)))
        beside.append(asyncio.create_task(end_with(engine, server)))

    beside: list[asyncio.Task[None]] = []  # the runner cancels it at its end
    server = Server(http, ready=announce, end=engine.close)
    runner = asyncio.Runner(loop_factory=http.get_loop_factory())
    _end_on_terminate()
    # On an interrupt uvicorn has ended in good order by then.
    with contextlib.suppress(KeyboardInterrupt), full_searches_on_demand(), runner:
        runner.run(server.serve(sockets=listeners))
    with contextlib.suppress(EngineStoppedError):  # `end` has closed it
        engine.health()


async def end_with(engine: AsyncEngine, server: uvicorn.Server) -> None:
    """Let the server end when its engine has died: nothing brings that back but a new start."""
    while not server.should_exit:
        try:
            engine.health()
        except EngineDeadError as error:
            _logger.error("the engine is dead, so the server ends: %s", error)
            server.should_exit = True
        await asyncio.sleep(_LOOK_SECONDS)


@contextlib.contextmanager
def stored_responses(settings: ServerConfig) -> Iterator[ResponseStore]:
    """The stored responses, those of earlier servers too, where there is a file. Raises
    ConfigError.
    """
    store = ResponseStore.from_config(settings)
    try:
        store.fail_open(lost)
        yield store
    finally:
        store.close()


@contextlib.contextmanager
def stored_files(settings: ServerConfig) -> Iterator[FileStore]:
    """The files of batches: those of earlier servers, too, where they have a folder. Raises
    ConfigError.
    """
    with contextlib.ExitStack() as ending:
        folder = settings.file_storage_path
        if folder is None:
            folder = ending.enter_context(tempfile.TemporaryDirectory(prefix="radixlm-files-"))
        limits = FileLimits(settings.max_file_bytes, settings.max_files_bytes)
        store = FileStore(FileTable(Path(folder)), limits)
        ending.callback(store.close)
        yield store


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


async def touch(app: ASGIApp, config: ServerConfig, *, chats: bool) -> None:
    """Have a short text tokenized, a chat where there is a template for it: routes, readers and
    writers are used once; nothing counts it.
    """

    async def unlogged(scope: Scope, receive: Receive, send: Send) -> None:
        await app({**scope, UNLOGGED: True}, receive, send)

    asked = {"messages": [{"role": "user", "content": "Hello"}]} if chats else {"prompt": "Hello"}
    key = config.api_key[0] if config.api_key else ""
    transport = httpx.ASGITransport(unlogged, root_path=config.root_path)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        headers = {"Authorization": f"Bearer {key}"}
        await client.post(f"{config.root_path}/tokenize", json=asked, headers=headers)


def welcome(
    name: str,
    info: ModelInfo,
    limits: Limits,
    listener: socket.socket,
    config: ServerConfig,
    *,
    chats: bool,
) -> str:
    """name: what clients ask for. chats: whether the model has a chat template."""
    place, url, tool = _address(listener, config)
    host, on_disk = (
        f"{tokens:,} tokens, {_size(tokens * info.kv_bytes / info.kv_tokens)}"
        for tokens in (info.host_tokens, info.disk_tokens)
    )
    disk = f"  on disk  {on_disk}, in {info.disk_cache}\n" if info.disk_cache else ""
    if info.mamba_slots:
        disk = f"  states   {info.mamba_slots:,}, {_size(info.mamba_bytes)}\n{disk}"
    disk = f"  on host  {host}\n{disk}" if info.host_tokens else disk
    limited = f"; prompt and answer are at most {limits.longest:,} together"
    limit = "" if limits.longest >= limits.context_length else limited
    threads = f", {counted(info.threads, 'thread')}" if info.device == "cpu" else ""
    kept = f" in {info.kv_cache_dtype}" if info.kv_cache_dtype != info.dtype else ""
    threads += f", {info.tp_size} ranks" if info.tp_size > 1 else ""
    threads += ", deterministic" if info.deterministic else ""
    weights = f", weights in {info.quantization}" if info.quantization else ""
    return (
        f"RadixLM serves {name} on {place}\n"
        f"  model    {info.model_type}, {info.dtype}{weights} on {info.device}{threads}\n"
        f"  context  {info.context_length:,} tokens\n"
        f"  KV pool  {info.kv_tokens:,} tokens{kept}, {_size(info.kv_bytes)}{limit}\n"
        f"{disk}"
        f"  page     {url}/ui\n"
        f"try:\n  {tool} {url}{_CHAT if chats else _COMPLETION}"
    )


def _size(nbytes: float) -> str:
    mib = nbytes / 2**20
    return f"{mib / 1024:.1f} GiB" if mib >= 1024 else f"{mib:.1f} MiB"


def pool_warning(limits: Limits) -> str | None:
    """The warning where no useful prompt fits into the pool; else None."""
    if limits.longest >= min(_USEFUL_TOKENS, limits.context_length):
        return None
    return (
        f"The KV pool has room for only {limits.longest} tokens, prompt and answer together: "
        "most requests will be refused. Give it more with --kv-tokens, pins less with "
        "--max-pinned-tokens"
    )


def _address(listener: socket.socket, config: ServerConfig) -> tuple[str, str, str]:
    """The address where the server listens, its URL, and a curl that reaches it."""
    scheme = "http" if config.ssl_certfile is None else "https"
    tool = "curl" if config.ssl_certfile is None else "curl -k"
    if config.uds is None:
        host = config.host
        at = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(  # noqa: S104
            host, f"[{host}]" if ":" in host else host
        )
        place = url = f"{scheme}://{at}:{listener.getsockname()[1]}"
    else:
        place, url, tool = config.uds, f"{scheme}://localhost", f"{tool} --unix-socket {config.uds}"
    if config.api_key:
        tool += " -H 'Authorization: Bearer KEY'"
    return place, url, tool


@contextlib.contextmanager
def full_searches_on_demand() -> Iterator[None]:
    """Leave what there is now out of every search, and do no full ones unasked, in the block.

    Young objects are searched as before, which takes next to no time. Acts on the whole process.
    """
    young, middle, old = gc.get_threshold()
    gc.collect()
    gc.freeze()
    gc.set_threshold(young, middle, _NEVER)
    try:
        yield
    finally:
        gc.set_threshold(young, middle, old)
        gc.unfreeze()


async def search_when_quiet(
    stats: Callable[[], EngineStats],
    every: float = EVERY_SECONDS,
    at_least_every: float = AT_LEAST_EVERY_SECONDS,
) -> None:
    """Search while few requests are under way, and now and then in any case; until cancelled.

    The longer a search takes, the longer until the next one.
    """
    waited, pause = 0.0, every
    while True:
        await asyncio.sleep(pause)
        waited, pause = waited + pause, every
        now = stats()
        if now.running + now.waiting <= _FEW or waited >= at_least_every:
            began = time.perf_counter()
            gc.collect()
            waited, pause = 0.0, max(pause, _TIMES_ITS_OWN * (time.perf_counter() - began))
