"""KV events of a server, heard over real sockets and decoded by nothing of ours."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import socket
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager

import httpx
import pytest
import zmq

from radixlm.assembly import AsyncEngine
from radixlm.core.config import EngineConfig
from radixlm.core.errors import CacheError, ConfigError
from radixlm.core.request import Namespace
from radixlm.engine import client as clients
from radixlm.engine.mailbox import Viewer
from radixlm.engine.watching import SECONDS_BETWEEN_CHANGES
from radixlm.server.config.server_config import KVEventsConfig, ServerConfig
from radixlm.server.kv_events import publisher as publishers
from radixlm.server.kv_events.blocks import BlockLedger
from radixlm.server.kv_events.publisher import Event, KVEventCounts, Outlet, Publisher, published
from radixlm.server.serve import serve
from tests.kv_follower import Batch, Follower, Prefix
from tests.server_support import Client, fake_engine, live, running

SIZE = 4
END = 2**64 - 1
FAR = 5_000  # milliseconds


# Below the ports that systems hand out, and others for each process that runs tests beside this.
_PORTS = itertools.count(20_000 + 1_000 * int(os.environ.get("PYTEST_XDIST_WORKER", "gw0")[2:]))


def free_port() -> int:
    for port in _PORTS:
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port
    raise AssertionError("no port is free")


class Router:
    """Subscribes, asks for what it has missed, and follows. live: numbers as they came."""

    def __init__(self, config: KVEventsConfig) -> None:
        self.config = config
        self._context = zmq.Context()
        self._sub = self._context.socket(zmq.SUB)
        self._sub.connect(config.endpoint.replace("*", "127.0.0.1"))
        self._sub.subscribe(config.topic)
        self._req = self._context.socket(zmq.DEALER)
        if config.replay_endpoint is not None:
            self._req.connect(config.replay_endpoint.replace("*", "127.0.0.1"))
        self._topic = config.topic.encode()
        self.follower = Follower()
        self.batches: list[Batch] = []
        self.last = -1

    def ask(self, first: int) -> list[int]:
        """Ask for batches from `first` on, and take them; their numbers."""
        self._req.send_multipart((b"", first.to_bytes(8, "big")))
        numbers = []
        while True:
            assert self._req.poll(FAR), "no answer"
            empty, topic, number, payload = self._req.recv_multipart()
            assert empty == b""
            if int.from_bytes(number, "big") == END:
                assert (topic, payload) == (b"", b"")
                return numbers
            assert topic == self._topic
            numbers.append(int.from_bytes(number, "big"))
            self._take(numbers[-1], payload)

    def hear(self, milliseconds: int = FAR) -> bool:
        """Take the next live batch that is new; False when none comes."""
        while self._sub.poll(milliseconds):
            topic, number, payload = self._sub.recv_multipart()
            assert topic == self._topic
            if int.from_bytes(number, "big") > self.last:
                assert int.from_bytes(number, "big") == self.last + 1, "a gap"
                self._take(self.last + 1, payload)
                return True
        return False

    def close(self) -> None:
        self._context.destroy(linger=0)

    def _take(self, number: int, payload: bytes) -> None:
        self.batches.append(self.follower.take(payload))
        self.last = number


@contextmanager
def publishing(engine: AsyncEngine, **fields) -> Iterator[tuple[Publisher, Router]]:
    """A publisher, and a router that has heard all from the beginning."""
    ports = [free_port(), free_port()]
    fields = {
        "publisher": "zmq",
        "endpoint": f"tcp://*:{ports[0]}",
        "replay_endpoint": f"tcp://*:{ports[1]}",
        "block_size": SIZE,
        "topic": "kv-events",
    } | fields
    config = KVEventsConfig.from_json(json.dumps(fields))
    with (
        closing(Outlet(config)) as outlet,
        published(engine, outlet) as publisher,
        closing(Router(config)) as router,
    ):
        assert publisher is not None
        router.ask(0)
        assert router.last == 0
        yield publisher, router


def there(engine: AsyncEngine) -> set[Prefix]:
    """Whole blocks in the engine's tree, as the follower names them."""
    found: set[Prefix] = set()
    tree = asyncio.run(engine.snapshot())
    paths: dict[int | None, tuple[int, ...]] = {None: ()}
    for view in tree.nodes:
        above = paths[view.parent_id]
        paths[view.id] = above + view.tokens
        resident = above + view.tokens[: view.resident]
        assert isinstance(view.namespace, Namespace)
        keys = tuple(part for part in view.namespace if part) or None
        ends = range(SIZE, len(resident) + 1, SIZE)
        found |= {(keys, resident[:end]) for end in ends if end > len(above)}
    return found


def kinds(batch: Batch) -> list[str]:
    return [type(event).__name__ for event in batch.events]


def test_a_router_follows_a_server(engine):
    with publishing(engine) as (publisher, router), live(engine) as url:
        for prompt, salt in [
            ("a shared beginning, one end", None),
            ("a shared beginning, another end", None),
            ("a shared beginning, one end", "a secret"),
        ]:
            body = {"prompt": prompt, "max_tokens": 3, "cache_salt": salt}
            assert httpx.post(f"{url}/v1/completions", json=body).status_code == 200
        follow(router, engine)
        assert {keys for keys, _ in router.follower.prefixes} == {None, ("a secret",)}
        stored = publisher.counts.stored_blocks
        assert stored == len(router.follower.blocks)
        assert publisher.counts.batches == router.last + 1
        assert httpx.post(f"{url}/flush_cache").status_code == 200
        assert router.hear()
        assert kinds(router.batches[-1]) == ["Removed", "Cleared"]
        assert not router.follower.blocks
        assert publisher.counts.removed_blocks == stored


def test_the_tokens_are_the_prompt_s(engine):
    with publishing(engine) as (_, router):
        prompt = engine.tokenizer.encode("twelve bytes").tolist()
        Client(engine).complete("twelve bytes", max_tokens=1)
        assert router.hear()
        [stored] = router.batches[-1].events
        assert (stored.token_ids, stored.block_size, stored.medium) == (prompt, SIZE, "GPU")
        assert (stored.parent_block_hash, stored.lora_id, stored.lora_name) == (None, None, None)
        assert stored.extra_keys is stored.cache_salt is None
        assert router.batches[-1].data_parallel_rank == 0
        assert abs(router.batches[-1].ts - time.time()) < 60


def complete(engine: AsyncEngine, *prompts: str) -> None:
    client = Client(engine)
    for prompt in prompts:
        assert client.complete(prompt, max_tokens=1).status_code == 200


def follow(router: Router, engine: AsyncEngine) -> None:
    """Hear what there is, until it is what is there."""
    while router.follower.prefixes != there(engine):
        assert router.hear(), "the router was not told all"


def late(router: Router) -> Router:
    """Another that has heard nothing yet."""
    return Router(router.config)


def test_what_was_missed_is_repeated(engine):
    with publishing(engine) as (_, router):
        for number in range(3):
            complete(engine, f"{number} is a prompt")
            follow(router, engine)
        with closing(late(router)) as other:
            assert other.ask(router.last) == [router.last]
            assert other.ask(router.last + 1) == []
        with closing(late(router)) as other:
            assert other.ask(0) == list(range(router.last + 1))
            assert other.follower.blocks == router.follower.blocks
            complete(engine, "one more prompt")
            follow(other, engine)


@pytest.mark.slow
@pytest.mark.parametrize(("steps", "most_bytes"), [(2, 10**6), (100, 100)])
def test_who_missed_more_than_is_kept_is_told_all(engine, monkeypatch, steps, most_bytes):
    monkeypatch.setattr(publishers, "MAX_KEPT_BYTES", most_bytes)
    with publishing(engine, buffer_steps=steps) as (_, router):
        for number in range(4):
            complete(engine, f"{number} is a prompt")
            follow(router, engine)
        with closing(late(router)) as other:
            assert other.ask(1) == [router.last]
            assert other.follower.blocks == router.follower.blocks
            complete(engine, "one more prompt")
            assert other.hear()
            follow(other, engine)


def test_a_request_for_what_is_missed_may_be_nonsense(engine):
    with publishing(engine) as (_, router), zmq.Context() as context:
        with closing(context.socket(zmq.DEALER)) as rude:
            rude.connect(router.config.replay_endpoint.replace("*", "127.0.0.1"))
            for frames in [(b"",), (b"", b"all"), (b"", b"x" * 8, b"")]:
                rude.send_multipart(frames)
            assert not rude.poll(100)
        assert router.ask(0) == [0]


@pytest.mark.slow
def test_who_asks_and_does_not_read_holds_up_nobody_and_costs_little(engine, monkeypatch):
    monkeypatch.setattr(publishers, "PATIENCE_SECONDS", 0.003)
    large = {"type": "BlockRemoved", "block_hashes": [], "medium": 2**20 * "x"}
    asks, publish = 100, Outlet.publish
    monkeypatch.setattr(Outlet, "publish", lambda outlet, each: publish(outlet, [*each, large]))
    with (
        publishing(engine) as (_, router),
        zmq.Context() as context,
        closing(context.socket(zmq.DEALER)) as greedy,
    ):
        greedy.rcvhwm, greedy.linger = 1, 0
        greedy.connect(router.config.replay_endpoint.replace("*", "127.0.0.1"))
        for _ in range(asks):
            greedy.send_multipart((b"", bytes(8)))
        assert router.ask(1) == []
        time.sleep(1)
        assert greedy.poll(60_000)
        taken = 0
        while greedy.poll(200):
            taken += greedy.recv_multipart()[3:] != [b""]
        assert 0 < taken < asks / 2


@pytest.mark.slow
def test_a_publisher_that_is_too_slow_makes_up_for_it(engine, monkeypatch):
    go_on, publish = threading.Event(), Outlet.publish

    def late(outlet: Outlet, batch: Iterable[Event]) -> None:
        go_on.wait(60)
        publish(outlet, batch)

    with publishing(engine, max_queue_size=1) as (publisher, router):
        monkeypatch.setattr(Outlet, "publish", late)
        for number in range(4):
            complete(engine, f"{number} is a prompt")
            time.sleep(1.5 * SECONDS_BETWEEN_CHANGES)  # so that each is a change of its own
        go_on.set()
        follow(router, engine)
        assert publisher.counts.dropped
        assert router.last < 4


@pytest.mark.parametrize(
    ("where", "error"),
    [
        ((Viewer, "next"), CacheError("a bug")),
        ((BlockLedger, "update"), KeyError("a bug")),
        ((Outlet, "publish"), zmq.ZMQError(msg="a bug")),
    ],
    ids=str,
)
def test_what_breaks_off_begins_afresh(engine, monkeypatch, caplog, where, error):
    monkeypatch.setattr(publishers, "SECONDS_TO_NEXT_TRY", 0.01)
    real, breaks = getattr(*where), iter([True])

    def broken(*args: object):
        if next(breaks, False):
            raise error
        return real(*args)

    with publishing(engine) as (publisher, router):
        complete(engine, "a prompt")
        follow(router, engine)
        monkeypatch.setattr(*where, broken)
        complete(engine, "another one", "and a third")
        while "Cleared" not in kinds(router.batches[-1]):
            assert router.hear()
        follow(router, engine)
        complete(engine, "one more")
        follow(router, engine)
        assert router.ask(router.last + 1) == []
        assert publisher.counts.failures == 1
    assert "KV events broke off; in a second all is published again" in caplog.text
    assert "a bug" in caplog.text


def test_one_that_breaks_again_and_again_can_be_closed(engine, monkeypatch):
    def fail(*_: object) -> None:
        raise KeyError("a bug")

    with publishing(engine) as (publisher, _):
        monkeypatch.setattr(BlockLedger, "update", fail)
        complete(engine, "a prompt")
        while not publisher.counts.failures:
            time.sleep(0.01)


def test_it_is_never_turned_away(engine, monkeypatch):
    monkeypatch.setattr(clients, "MAX_VIEWERS", 0)
    with publishing(engine) as (_, router):
        complete(engine, "a prompt")
        follow(router, engine)


def test_blocks_end_with_the_engine():
    engine, _ = fake_engine()
    with publishing(engine) as (_, router):
        complete(engine, "a prompt")
        follow(router, engine)
        asyncio.run(engine.close())
        assert router.hear()
        assert not router.follower.blocks


def test_the_command_s_server_publishes(monkeypatch):
    text = json.dumps(
        {
            "enable_kv_cache_events": True,
            "endpoint": f"tcp://127.0.0.1:{free_port()}",
            "bind": True,
            "replay_endpoint": f"tcp://*:{free_port()}",
        }
    )
    config = KVEventsConfig.from_json(text)
    with closing(Router(config)) as router:
        with running(monkeypatch, kv_events_config=text) as port:
            assert router.ask(0) == [0]
            url = f"http://127.0.0.1:{port}"
            body = {"prompt": "a prompt of more than one block", "max_tokens": 1}
            assert httpx.post(f"{url}/v1/completions", json=body).status_code == 200
            assert router.hear()
            assert router.batches[-1].events[0].block_size == 16
            lines = httpx.get(f"{url}/metrics").text.splitlines()
            assert any(line.startswith("radixlm:kv_event_batches_total") for line in lines)
        assert router.hear()
        assert not router.follower.blocks


def test_what_is_wrong_is_told_before_the_model_is_loaded(monkeypatch):
    def flag(endpoint: str) -> ServerConfig:
        text = json.dumps({"publisher": "zmq", "endpoint": endpoint})
        return ServerConfig(port=0, kv_events_config=text)

    nowhere = EngineConfig(model="/nowhere")
    with (
        closing(socket.create_server(("127.0.0.1", 0))) as listener,
        closing(socket.create_server(("0.0.0.0", 0))) as taken,  # noqa: S104
    ):
        endpoint = f"tcp://*:{taken.getsockname()[1]}"
        with pytest.raises(ConfigError, match=r"cannot bind 'tcp://.*: Address already in use"):
            serve(nowhere, flag(endpoint), listener)
    with pytest.raises(ConfigError, match="no use with --disable-radix-cache"):
        serve(EngineConfig(disable_radix_cache=True), flag("ipc:///nowhere"), listener)
    for name in ("zmq.asyncio", "msgspec"):
        with monkeypatch.context() as patch:
            patch.setitem(sys.modules, name, None)
            with pytest.raises(ConfigError, match=r"pip install pyzmq msgspec"):
                serve(nowhere, flag("ipc:///nowhere"), listener)


def test_the_server_tells_of_it(engine):
    assert Client(engine).get("/server_info").json()["kv_events"] is None
    assert "kv_event" not in Client(engine).get("/metrics").text
    text = '{"publisher": "zmq", "topic": "kv-events"}'
    client = Client(engine, kv_events_config=text, kv_events=KVEventCounts(1, 2, 3, 4, 5))
    told = client.get("/server_info").json()["kv_events"]
    assert (told["endpoint_port_base"], told["topic"]) == (5557, "kv-events")
    lines = client.get("/metrics").text.splitlines()
    counts = [line.rsplit(" ", 1)[1] for line in lines if line.startswith("radixlm:kv_event_")]
    assert counts == ["1.0", "2.0", "3.0", "4.0", "5.0"]


@pytest.mark.parametrize("binds", [True, False])
def test_nobody_can_follow_a_server_that_connects(engine, caplog, binds):
    caplog.set_level("INFO")
    config = KVEventsConfig(publisher="zmq", endpoint=f"tcp://127.0.0.1:{free_port()}", bind=binds)
    with closing(Outlet(config)) as outlet, published(engine, outlet):
        [told] = [
            record for record in caplog.records if record.getMessage().startswith("KV events")
        ]
    assert (told.levelname == "WARNING") is not binds
    assert ('"bind": true' in told.getMessage()) is not binds
