"""KV events on the wire, and their sockets: one for all subscribers, one that repeats."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

from radixlm.core.errors import ConfigError
from radixlm.core.request import Namespace
from radixlm.server.config.kv_events_config import (
    FLAG,
    KVEventsConfig,
    Libraries,
    load_libraries,
)
from radixlm.server.kv_events.blocks import Removed, Stored

# Of the batches that are kept for subscribers who missed them; the whole cache can be sent instead.
MAX_KEPT_BYTES = 64 * 2**20
# Batches are of any size: so that few wait for one who asks and does not read, they go out as they
# are taken.
_MOST_REPEATED_AHEAD = 16
_SECONDS_TO_NEXT_TRY = 0.001
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


class BatchWriter:
    """Writes batches of events as maps that vLLM 0.32 and SGLang 0.5.23 decode.

    Both tag an event with its `type`; a batch is an array: time, events, rank. The fields are in
    docs/kv-events.md.
    """

    def __init__(self, libraries: Libraries) -> None:
        self._encode: Callable[[Any], bytes] = libraries.msgspec.msgpack.Encoder().encode
        self._raw: Callable[[bytes], Any] = libraries.msgspec.Raw

    def batch(self, seconds: float, events: Iterable[Event]) -> bytes:
        """seconds: since 1970. Event by event: one call for all of them would not let the engine's
        thread have the interpreter for as long as it takes.
        """
        written = [self._raw(self._encode(event)) for event in events]
        return self._encode((seconds, written, RANK))


def events_of(change: Stored | Removed, block_size: int) -> Iterator[Event]:
    """A change as events. When the last blocks go there are two: some readers know only one kind.

    Fields that may be left out are left out where they are empty.
    """
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
        "lora_name": namespace.adapter_id or None,
    }
    keys = [_extra_keys(namespace, change.first + at) for at in range(len(change.hashes))]
    if any(keys):
        event["extra_keys"] = keys
    if namespace.cache_salt:
        event["cache_salt"] = namespace.cache_salt
    yield event


def _extra_keys(namespace: Namespace, block: int) -> tuple[str, ...] | None:
    """As in vLLM the adapter of every block; what else divides the cache, of a prompt's first."""
    of_first = (namespace.cache_salt, namespace.extra_key) if block == 0 else ()
    return tuple(filter(None, (namespace.adapter_id, *of_first))) or None


class Outlet:
    """Numbers batches of events, sends them, and repeats those that are asked for.

        PUB     -> topic, number, payload
        ROUTER  <- "", number of the first batch that is wanted
                -> "", topic, number, payload      for each batch from there on
                -> "", "", -1, ""                  there are no more

    Where one of these batches is not kept any more, the whole cache is sent instead, under the
    number of the last batch. Sending waits for nobody: slow subscribers lose batches. Repeating
    waits for a second; an asker that takes nothing in it gets no more of that answer, not even its
    end.

    It is opened by one thread, and used by another until it is closed. Raises ConfigError, also
    where pyzmq or msgspec is not installed.
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
                await asyncio.sleep(_SECONDS_TO_NEXT_TRY)
            except self._zmq.ZMQError as error:
                if error.errno != self._zmq.EHOSTUNREACH:
                    raise
                break
            else:
                return True
        return False

    def close(self) -> None:
        """Let what was sent leave, for a second at most. ZeroMQ may take longer to end, so it is
        left alone with that after twice the time.
        """
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
