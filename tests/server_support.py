"""Engines without weights, and clients, for the server's tests."""

from __future__ import annotations

import asyncio
import functools
import gc
import json
import socket
import threading
import time
import zlib
from collections.abc import AsyncGenerator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import zip_longest
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
import uvicorn

from radixlm.assembly import AsyncEngine, Engine, Loaded, ModelInfo
from radixlm.cache import RadixCache
from radixlm.core.batch import ScheduledBatch, ScheduledRow, StepResult
from radixlm.core.config import EngineConfig
from radixlm.core.errors import CheckpointError
from radixlm.core.request import GenerateRequest, RequestOutput
from radixlm.engine import EngineClient, EngineCore, InputProcessor, Limits
from radixlm.engine.adapter_names import Adapters, Shelf
from radixlm.engine.engine_core import Runner
from radixlm.engine.mailbox import ThreadMailbox
from radixlm.engine.watching import Journal
from radixlm.scheduler import Drafting, Scheduler, WaitingRoom, make_order
from radixlm.server import serve as serving
from radixlm.server.app import create_app
from radixlm.server.batches.keeper import BatchKeeper
from radixlm.server.config.server_config import ServerConfig
from radixlm.server.http.listen import bind, listening
from radixlm.server.http.tracing import Tracing
from radixlm.server.insight.recorder import Recorder
from radixlm.server.kv_events.publisher import KVEventCounts
from radixlm.server.pipeline.answer import Writer
from radixlm.server.responses.response_store import ResponseStore
from radixlm.server.serve import Server, http_config
from radixlm.structured_output import Compiler, MaskFiller
from radixlm.testing.fake_runner import FakeRunner
from radixlm.text.chat_template import ChatTemplate
from radixlm.text.tokenizer import Tokenizer
from tests.engines import make_request
from tests.text_samples import byte_level

NAME = "test-model"
CHATML = (
    "{% for m in messages %}<|start|>{{ m.role }}\n{{ m.content }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant\n{% endif %}"
)


compiled = functools.cache(ChatTemplate)


class ScriptedRunner:
    """Answers every prompt with the same tokens, and then as `runner` does."""

    def __init__(self, runner: Runner, script: Sequence[int]) -> None:
        self._runner = runner
        self._script = script

    def execute(self, batch: ScheduledBatch) -> StepResult:
        fallback = self._runner.execute(batch)
        drawn = [
            row.taken(
                [self._token(*its) for its in zip_longest(row.draws(), fallback.drawn(place))]
            )
            for place, row in enumerate(batch.rows)
        ]
        return StepResult(
            tuple(next(iter(its), None) for its in drawn),
            more={place: its[1:] for place, its in enumerate(drawn)},
        )

    def _token(self, row: ScheduledRow, fallback: int | None) -> int | None:
        place = row.stop - row.prompt_length
        return self._script[place] if row.samples and place < len(self._script) else fallback


class SlowRunner:
    """A runner that takes its time, and breaks when told to."""

    def __init__(self, runner: Runner, seconds: float) -> None:
        self._runner = runner
        self._seconds = seconds
        self.broken = False

    def execute(self, batch: ScheduledBatch) -> StepResult:
        time.sleep(self._seconds)
        if self.broken:
            raise RuntimeError("the fuse blew")
        return self._runner.execute(batch)


class FolderShelf:
    """Adapters without weights: an id is by what a folder's adapter_config.json holds."""

    def __init__(self) -> None:
        self.ids: set[str] = set()

    def read(self, name: str, folder: Path) -> tuple[str, str]:
        path = folder / "adapter_config.json"
        if not path.is_file():
            raise CheckpointError(f"{folder} has no adapter_config.json")
        return f"{name}@{zlib.crc32(path.read_bytes()):08x}", ""

    def put(self, adapter_id: str, weights: str) -> None:
        self.ids.add(adapter_id)

    def drop(self, adapter_id: str) -> None:
        self.ids.remove(adapter_id)


def fake_engine(
    *,
    seconds: float = 0.0,
    template: str | None = CHATML,
    context_length: int = 2000,
    script: str | Sequence[str] | None = None,
    goes_on: bool = False,
    shelf: Shelf | None = None,
    special: Sequence[str] = (),
    cache: RadixCache | None = None,
    **flags: Any,
) -> tuple[AsyncEngine, SlowRunner]:
    """A real AsyncEngine over a runner without a model; a step takes `seconds`.

    script: every answer, or the pieces of it that are tokenized alone; then <|end|> ends it, unless
    `goes_on` by chance, as its grammar lets it.
    special: further special tokens.
    """
    cache = cache or RadixCache(4000, 1)
    kv_tokens = cache.capacity
    config = EngineConfig(kv_tokens=kv_tokens, **flags)
    backend = byte_level()
    backend.add_special_tokens(list(special))
    tokenizer = Tokenizer(backend, {})
    # ASCII bytes' ids only, so that every answer is plain text, unless one is scripted.
    vocab_size = tokenizer.vocab_size if special or script is not None else 97
    inner: Runner = FakeRunner(kv_tokens, config.max_running_requests, vocab_size)
    eos: list[int] = []
    if script is not None:
        eos = tokenizer.encode("<|end|>").tolist()
        pieces = [script] if isinstance(script, str) else script
        tokens = [token for piece in pieces for token in tokenizer.encode(piece).tolist()]
        inner = ScriptedRunner(inner, tokens if goes_on else tokens + eos)
    runner = SlowRunner(inner, seconds)
    journal = Journal()
    scheduler = Scheduler(
        WaitingRoom(cache, make_order("lpm")),
        chunked_prefill_size=config.chunked_prefill_size,
        max_running_requests=config.max_running_requests,
        schedule_conservativeness=1.0,
        drafting=None if config.speculative_algorithm == "off" else Drafting([], 8),
        sink=journal.note,
    )
    masks = MaskFiller(vocab_size)
    grammars = Compiler(tokenizer, vocab_size=vocab_size, eos_ids=eos)
    limits = Limits(context_length, cache.largest_request, tokenizer.vocab_size)
    client = EngineClient(
        EngineCore(scheduler, cache, runner, tokenizer, masks=masks, journal=journal),
        InputProcessor(limits, frozenset(eos), grammars),
        max_queued_requests=config.max_queued_requests,
        adapters=Adapters(shelf or FolderShelf()),
    )
    info = ModelInfo(
        name=NAME,
        model_path="nowhere",
        model_type="fake",
        vocab_size=tokenizer.vocab_size,
        context_length=context_length,
        kv_tokens=kv_tokens,
        kv_bytes=0,
        page_size=1,
        dtype="float32",
        device="cpu",
        eos_token_ids=tuple(eos),
    )
    chat = compiled(template) if template is not None else None
    return AsyncEngine(Loaded(config, info, tokenizer, chat, client)), runner


def requests_seen(engine: AsyncEngine, monkeypatch: pytest.MonkeyPatch) -> list[GenerateRequest]:
    """The requests that reach the engine from now on; filled as they come."""
    seen: list[GenerateRequest] = []
    stream = engine.client.stream

    def spy(requests: Sequence[GenerateRequest]) -> AsyncGenerator[RequestOutput, None]:
        seen.extend(requests)
        return stream(requests)

    monkeypatch.setattr(engine.client, "stream", spy)
    return seen


def service_with(tokenizer: Tokenizer) -> Any:
    """As much of a Service as writers need."""
    engine = SimpleNamespace(tokenizer=tokenizer)
    return SimpleNamespace(engine=engine, caches=True, model_name=NAME, fingerprint="fp")


def events_of(writer: Writer, outputs: Iterable[RequestOutput]) -> list[dict[str, Any]]:
    """What a writer's stream holds when these outputs of the first choice have come."""
    events = [event for output in outputs for event in writer.push(0, output)]
    return [json.loads(event.removeprefix(b"data: ")) for event in events]


class Client:
    """Sends requests to an application in this process, one at a time.

    responses: the stored ones. batches: files, too. kv_events: what was published.
    recorder: takes requests that ended. tracing: their spans. flags: ServerConfig's.
    """

    def __init__(
        self,
        engine: AsyncEngine,
        name: str = NAME,
        responses: ResponseStore | None = None,
        batches: BatchKeeper | None = None,
        kv_events: KVEventCounts | None = None,
        recorder: Recorder | None = None,
        tracing: Tracing | None = None,
        **flags: Any,
    ) -> None:
        self.engine = engine
        self.app = create_app(
            engine,
            served_model_name=name,
            config=ServerConfig(**flags),
            responses=responses,
            batches=batches,
            kv_events=kv_events,
            recorder=recorder,
            tracing=tracing,
        )

    def request(self, method: str, path: str, **options: Any) -> httpx.Response:
        async def send() -> httpx.Response:
            transport = httpx.ASGITransport(self.app, raise_app_exceptions=False)
            async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
                return await client.request(method, path, **options)

        return asyncio.run(send())

    def post(self, path: str, **body: Any) -> httpx.Response:
        return self.request("POST", path, json=body)

    def generate(self, text: Any = "hello", **fields: Any) -> httpx.Response:
        prompt = {} if text is None else {"text": text}
        return self.request("POST", "/generate", json={**prompt, **fields})

    def get(self, path: str) -> httpx.Response:
        return self.request("GET", path)

    def complete(self, prompt: Any = "hello", **fields: Any) -> httpx.Response:
        return self.request("POST", "/v1/completions", json={"prompt": prompt, **fields})

    def chat(self, content: Any = "hello", **fields: Any) -> httpx.Response:
        messages = [{"role": "user", "content": content}]
        return self.request("POST", "/v1/chat/completions", json={"messages": messages, **fields})


def events(response: httpx.Response) -> list[dict[str, Any]]:
    """The JSON of each event; fails on any line that is not data, or without [DONE] at the end."""
    assert response.headers["content-type"].startswith("text/event-stream")
    blocks = response.text.split("\n\n")
    assert blocks[-2:] == ["data: [DONE]", ""]
    assert all(block.startswith("data: ") and "\n" not in block for block in blocks[:-1])
    return [json.loads(block.removeprefix("data: ")) for block in blocks[:-2]]


def refused(response: httpx.Response, status: int = 400) -> dict[str, Any]:
    """The error's object, its shape checked: of the route's API, else OpenAI's."""
    assert response.status_code == status, response.text
    body = response.json()
    if response.url.path.startswith("/api/"):
        assert body.keys() == {"error"}
        return {"message": body["error"]}
    error: dict[str, Any] = body["error"]
    if response.url.path.startswith("/v1/messages"):
        assert body.keys() == {"type", "error", "request_id"}
        assert body["type"] == "error"
        assert error.keys() - {"details"} == {"type", "message"}
    else:
        assert error.keys() == {"message", "type", "param", "code"}
    return error


class Hurry:
    """asyncio for uvicorn, which looks, and waits, a tenth of a second each time when it ends."""

    def __getattr__(self, name: str) -> Any:
        return getattr(asyncio, name)

    @staticmethod
    async def sleep(seconds: float) -> None:
        await asyncio.sleep(min(seconds, 0.005))


@contextmanager
def soon_ended() -> Iterator[None]:
    """Uvicorn's servers of the block end as soon as they may."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(uvicorn.server, "asyncio", Hurry())
        yield


@contextmanager
def live(
    engine: AsyncEngine, name: str = NAME, *, grace: float = 5, force: bool = False, **flags: Any
) -> Iterator[str]:
    """Serve over a real socket; gives the URL. force: end as if Ctrl-C came twice.

    flags: ServerConfig's.
    """
    listener = bind("127.0.0.1", 0)
    ready = threading.Event()

    async def announce() -> None:
        ready.set()

    settings = ServerConfig(**flags)
    config = http_config(create_app(engine, served_model_name=name, config=settings), settings)
    server = Server(config, announce, engine.close, grace)
    thread = threading.Thread(target=lambda: asyncio.run(server.serve(sockets=[listener])))
    with soon_ended():
        thread.start()
        try:
            assert ready.wait(60)
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.force_exit = force
            server.should_exit = True
            thread.join()
            listener.close()


@contextmanager
def running(monkeypatch: pytest.MonkeyPatch, **flags: Any) -> Iterator[int | None]:
    """`serve` itself, over an engine without weights; gives the port, None at a Unix socket.

    flags: ServerConfig's.
    """
    engine, _ = fake_engine()
    gc.freeze()  # what other tests left is not searched
    ready = threading.Event()
    made: list[serving.Server] = []
    ports: list[object] = []

    class Told(serving.Server):
        def __init__(self, config: uvicorn.Config, **options: Any) -> None:
            made.append(self)
            announce = options.pop("ready")

            async def ready_now() -> None:
                await announce()
                ready.set()

            super().__init__(config, **options, ready=ready_now)

        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            assert sockets
            ports.append(sockets[0].getsockname())
            await super().startup(sockets)

    monkeypatch.setattr(serving, "Server", Told)
    monkeypatch.setattr(AsyncEngine, "from_config", lambda _config: engine)
    settings = ServerConfig(port=0, **flags)

    def serve() -> None:
        with listening(settings) as listener:
            serving.serve(EngineConfig(), settings, listener)

    thread = threading.Thread(target=serve)
    with soon_ended():
        thread.start()
        try:
            assert ready.wait(60)
            yield ports[0][1] if isinstance(ports[0], tuple) else None
        finally:
            if made:
                made[0].should_exit = True
            thread.join()
            gc.freeze()  # which `serve` ended
            asyncio.run(engine.close())


def in_event_loop() -> bool:
    """Whether the caller runs in an event loop's thread, by one of its tasks or callbacks."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def until(condition: Any, seconds: float = 60.0) -> bool:
    """Wait until `condition()` holds; whether it did in time, which is ample for a busy machine."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.005)
    return True


def wait_for_copies(engine: Engine) -> None:
    """Until nothing is copied to the first of its places, nor waits to be: what is copied holds its
    slots, and a prompt that finds too few is computed at once.
    """

    def at_rest(core: EngineCore) -> bool:
        waits = core.cache.tiers[0].queue.take("evict", core.cache.capacity)
        return not waits and not core.cache.usage().locked

    assert until(lambda: engine.client.ask(at_rest).result())


@contextmanager
def under_way(engine: AsyncEngine) -> Iterator[None]:
    """A long request, of nobody's key, for as long as the block lasts."""
    engine.client.submit([make_request("under way", [1], 1000)], ThreadMailbox())
    try:
        yield
    finally:
        engine.abort(["under way"])


def idle_and_whole(engine: AsyncEngine) -> bool:
    """Nothing runs, and no slot is lost; pinned ones stay."""
    stats = engine.stats()
    whole = stats.kv_free + stats.kv_evictable + stats.kv_pinned == stats.kv_capacity
    return stats.running == stats.waiting == stats.leaks == 0 and whole
