"""KV events on the wire: their sockets, and the thread that fills them as a viewer of the cache."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any

from radixlm.assembly import AsyncEngine
from radixlm.core.errors import ConfigError, EngineDeadError
from radixlm.core.reports import TreeQuery, counter
from radixlm.core.request import Namespace
from radixlm.engine.watching import Scene
from radixlm.server.config.server_config import FLAG, KVEventsConfig, Libraries, load_libraries
from radixlm.server.kv_events.blocks import BlockLedger, Removed, Stored

SECONDS_TO_NEXT_TRY = 1.0

# Of the batches that are kept for subscribers who missed them; the whole cache can be sent instead.
MAX_KEPT_BYTES = 64 * 2**20
# Batches are of any size: so that few wait for one who asks and does not read, they go out as they
# are taken.
_MOST_REPEATED_AHEAD = 16
_SECONDS_BETWEEN_SENDS = 0.001
PATIENCE_SECONDS = 1.0
_LINGER_MS = 1_000
_NUMBER_BYTES = 8
_END = (-1).to_bytes(_NUMBER_BYTES, "big", signed=True)

_logger = logging.getLogger("radixlm.server")

# What vLLM and SGLang call the memory that attention reads, on a CPU too.
MEDIUM = "GPU"
RANK = 0

Event = dict[str, Any]
CLEARED: Event = {"type": "AllBlocksCleared"}


@dataclass(slots=True)
class KVEventCounts:
    """Totals so far, written by the publisher's thread.

    dropped: changes that came too fast. Nothing is lost: the difference is published at once.
    failures: times it broke off and published all again; 0 unless there is a bug.
    """

    batches: int = counter("kv_event_batches", "Batches of KV events that were published.")
    stored_blocks: int = counter("kv_event_stored_blocks", "Blocks published as stored.")
    removed_blocks: int = counter("kv_event_removed_blocks", "Blocks published as removed.")
    dropped: int = counter(
        "kv_event_dropped_changes", "Changes that came too fast to be published one by one."
    )
    failures: int = counter(
        "kv_event_failures", "Times they broke off and began afresh: a bug if not 0."
    )


class Publisher:
    """Follows the cache and publishes its blocks. The engine waits for nothing here.

    The first batch says that there are no blocks, to those who knew an earlier server, and so does
    the last. When something breaks it begins again in a second, as if it were another server.
    """

    def __init__(self, engine: AsyncEngine, outlet: Outlet) -> None:
        self.counts = KVEventCounts()
        self._engine = engine
        self._outlet = outlet
        self._block_size = outlet.config.block_size_for(engine.info.page_size)
        self._ledger = BlockLedger(self._block_size)
        self._loop = asyncio.new_event_loop()
        self._task = self._loop.create_task(self._publish())
        self._thread = threading.Thread(target=self._run, name="radixlm-kv-events", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Publish no more."""
        with suppress(RuntimeError):  # it has ended, since the engine has
            self._loop.call_soon_threadsafe(self._task.cancel)
        self._thread.join()

    def _run(self) -> None:
        with closing(self._loop), suppress(asyncio.CancelledError):
            self._loop.run_until_complete(self._task)
        self._send((CLEARED,))

    async def _publish(self) -> None:
        """Publish until the engine ends or it is cancelled, even where an error hid the
        cancellation.
        """
        while not self._task.cancelling():
            try:
                await self._publish_all()
                return
            except Exception:
                self.counts.failures += 1
                _logger.exception("KV events broke off; in a second all is published again")
                await asyncio.sleep(SECONDS_TO_NEXT_TRY)

    async def _publish_all(self) -> None:
        """Publish from the beginning, until the engine ends."""
        self._ledger = BlockLedger(self._block_size)
        self._send((CLEARED,))
        async with asyncio.TaskGroup() as group:
            repeating = group.create_task(self._outlet.repeat(self._whole))
            with suppress(EngineDeadError):
                await self._follow()
            repeating.cancel()

    async def _follow(self) -> None:
        """Endlessly. Raises EngineDeadError."""
        most, dropped_before = self._outlet.config.max_queue_size, self.counts.dropped
        with closing(self._engine.watch(TreeQuery(), max_waiting=most, own=True)) as viewer:
            while True:
                sight = await viewer.next()
                self.counts.dropped = dropped_before + viewer.dropped
                if isinstance(sight, Scene):
                    self._publish_changes(self._ledger.replace(sight.tree.nodes))
                elif sight.tree is not None:
                    self._publish_changes(self._ledger.update(sight.tree.removed, sight.tree.nodes))

    def _publish_changes(self, changes: Sequence[Stored | Removed]) -> None:
        if not changes:
            return
        for change in changes:
            if isinstance(change, Stored):
                self.counts.stored_blocks += len(change.hashes)
            else:
                self.counts.removed_blocks += len(change.hashes)
        self._send(self._events(changes))

    def _send(self, events: Iterable[Event]) -> None:
        self.counts.batches += 1
        self._outlet.publish(events)

    def _events(self, changes: Iterable[Stored | Removed]) -> Iterator[Event]:
        return (event for change in changes for event in events_of(change, self._ledger.block_size))

    def _whole(self) -> Iterator[Event]:
        """The events after which a reader knows all there is, whatever it knew before."""
        return chain((CLEARED,), self._events(self._ledger.all()))


@contextmanager
def published(engine: AsyncEngine, outlet: Outlet | None) -> Iterator[Publisher | None]:
    """Publish the engine's cache by an outlet, while there is one."""
    if outlet is None:
        yield None
        return
    with closing(Publisher(engine, outlet)) as publisher:
        config = outlet.config
        if config.binds:
            _logger.info("KV events: bound to %s, topic %r", config.endpoint, config.topic)
        else:
            _logger.warning(
                "KV events: sent to %s, which a follower must have bound; for followers that "
                'connect to this server give tcp://*:PORT, or "bind": true. Topic %r',
                config.endpoint,
                config.topic,
            )
        yield publisher


class BatchWriter:
    """Writes batches of events as maps that vLLM 0.32 and SGLang 0.5.23 decode.

    Both tag an event with its `type`; a batch is an array: time, events, rank. The fields are in
    docs/kv-events.md.
    """

    def __init__(self, libraries: Libraries) -> None:
        self._encode: Callable[[Any], bytes] = libraries.msgspec.msgpack.Encoder().encode
        self._raw: Callable[[bytes], Any] = libraries.msgspec.Raw

    def batch(self, seconds: float, events: Iterable[Event]) -> bytes:
        """seconds: since 1970. One by one: the engine's thread gets the interpreter in between."""
        written = [self._raw(self._encode(event)) for event in events]
        return self._encode((seconds, written, RANK))


def events_of(change: Stored | Removed, block_size: int) -> Iterator[Event]:
    """A change as events, without empty fields; two when all is gone: some readers know but one."""
    if isinstance(change, Removed):
        yield {"type": "BlockRemoved", "block_hashes": list(change.hashes), "medium": MEDIUM}
        if change.cleared:
            yield CLEARED
        return
    namespace = change.namespace
    event: Event = {
        "type": "BlockStored",
        "block_hashes": list(change.hashes),
        "parent_block_hash": change.parent,
        "token_ids": memoryview(change.tokens).cast("i").tolist(),
        "block_size": block_size,
        "lora_id": None,
        "medium": MEDIUM,
        "lora_name": namespace.adapter or None,
    }
    keys = [_extra_keys(namespace, change.first + at) for at in range(len(change.hashes))]
    if any(keys):
        event["extra_keys"] = keys
    if namespace.cache_salt:
        event["cache_salt"] = namespace.cache_salt
    yield event


def _extra_keys(namespace: Namespace, block: int) -> tuple[str, ...] | None:
    """The extra keys of a block, as in vLLM: the adapter of every block, and whether its keys turn
    as those of long requests; what else divides the cache, of a prompt's first.
    """
    of_first = (namespace.cache_salt, namespace.extra_key) if block == 0 else ()
    return tuple(filter(None, (namespace.adapter_id, namespace.long_rope, *of_first))) or None


class Outlet:
    """Numbers batches of events, sends them, and repeats those that are asked for.

        PUB     -> topic, number, payload
        ROUTER  <- "", number of the first batch that is wanted
                -> "", topic, number, payload      for each batch from there on
                -> "", "", -1, ""                  there are no more

    Where one of these is not kept any more, the whole cache is sent instead, under the number of
    the last batch. Sending waits for nobody: slow subscribers lose batches. Repeating waits for a
    second; an asker that takes nothing in it gets no more of that answer, not even its end.

    Opened by one thread, used by another until it is closed. Raises ConfigError, also where pyzmq
    or msgspec is not installed.
    """

    def __init__(self, config: KVEventsConfig) -> None:
        self.config = config
        self.published = 0
        self._topic = config.topic.encode()
        self._kept: deque[bytes] = deque()
        self._kept_bytes = 0
        libraries = load_libraries()
        self._writer = BatchWriter(libraries)
        self._zmq = libraries.zmq
        self._awaitable = libraries.zmq_asyncio.Socket.from_socket
        self._context = self._zmq.Context()
        try:
            self._out = self._open(self._zmq.PUB, config.endpoint, config.hwm, bind=config.binds)
            self._replay: Any = None
            if config.replay_endpoint is not None:
                most = _MOST_REPEATED_AHEAD
                self._replay = self._open(self._zmq.ROUTER, config.replay_endpoint, most, bind=True)
                self._replay.router_mandatory = True
        except BaseException:
            self.close()
            raise

    def _open(self, kind: int, endpoint: str, hwm: int, *, bind: bool) -> Any:
        socket = self._context.socket(kind)
        socket.set_hwm(hwm)
        socket.ipv6 = "[" in endpoint
        try:
            (socket.bind if bind else socket.connect)(endpoint)
        except self._zmq.ZMQError as error:
            doing = "bind" if bind else "connect to"
            raise ConfigError(f"{FLAG}: cannot {doing} {endpoint!r}: {error}") from None
        return socket

    def publish(self, events: Iterable[Event]) -> None:
        """Send a batch, and keep it."""
        payload = self._writer.batch(time.time(), events)
        number = self.published.to_bytes(_NUMBER_BYTES, "big")
        self._out.send_multipart((self._topic, number, payload))
        self.published += 1
        self._kept.append(payload)
        self._kept_bytes += len(payload)
        while len(self._kept) > self.config.buffer_steps or self._kept_bytes > MAX_KEPT_BYTES:
            self._kept_bytes -= len(self._kept.popleft())

    async def repeat(self, whole: Callable[[], Iterable[Event]]) -> None:
        """Answer subscribers that missed batches, endlessly. whole: events of the whole cache."""
        if self._replay is None:
            return
        replay = self._awaitable(self._replay)
        while True:
            request = await replay.recv_multipart()
            if len(request) != 3 or len(request[2]) != _NUMBER_BYTES:
                _logger.debug("no request for missed KV events: %d frames", len(request))
                continue
            asker, _, first = request
            for frames in self._answer(int.from_bytes(first, "big"), whole):
                if not await self._taken(replay, (asker, b"", *frames)):
                    _logger.debug("an asker for missed KV events does not read them")
                    break

    async def _taken(self, replay: Any, frames: tuple[bytes, ...]) -> bool:
        """Send it; False when the asker has gone, or takes nothing."""
        until = time.monotonic() + PATIENCE_SECONDS
        while time.monotonic() < until:
            try:
                await replay.send_multipart(frames, flags=self._zmq.NOBLOCK)
            except self._zmq.Again:
                await asyncio.sleep(_SECONDS_BETWEEN_SENDS)
            except self._zmq.ZMQError as error:
                if error.errno != self._zmq.EHOSTUNREACH:
                    raise
                break
            else:
                return True
        return False

    def close(self) -> None:
        """Let what was sent leave, for a second; ZeroMQ's own end is waited for two at most."""
        end = partial(self._context.destroy, linger=_LINGER_MS)
        ending = threading.Thread(target=end, name="radixlm-kv-events-end", daemon=True)
        ending.start()
        ending.join(2 * _LINGER_MS / 1000)
        if ending.is_alive():
            _logger.warning("KV events: ZeroMQ does not end; the server goes on ending without it")

    def _answer(
        self, first: int, whole: Callable[[], Iterable[Event]]
    ) -> Iterator[tuple[bytes, bytes, bytes]]:
        """The frames of all batches from `first` on, or of the whole cache, and of the end."""
        oldest = self.published - len(self._kept)
        batches = [each for each in enumerate(self._kept, oldest) if each[0] >= first]
        if first < oldest or (first < self.published and not batches):
            batches = [(self.published - 1, self._writer.batch(time.time(), whole()))]
        for number, payload in batches:
            yield self._topic, number.to_bytes(_NUMBER_BYTES, "big"), payload
        yield b"", _END, b""
