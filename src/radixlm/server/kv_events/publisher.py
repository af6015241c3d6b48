"""Publishes blocks in its own thread, as one more viewer of the cache."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from itertools import chain

from radixlm.build import AsyncEngine
from radixlm.core.errors import EngineDeadError
from radixlm.core.reports import TreeQuery
from radixlm.engine.watching import Scene
from radixlm.server.kv_events.blocks import BlockLedger, Removed, Stored
from radixlm.server.kv_events.outlet import CLEARED, Event, Outlet, events_of

SECONDS_TO_NEXT_TRY = 1.0

_logger = logging.getLogger("radixlm.server")


@dataclass(slots=True)
class KVEventCounts:
    """Totals so far, written by the publisher's thread.

    dropped: changes that came too fast. Nothing is lost: the difference is published at once.
    failures: times it broke off and published all again; 0 unless there is a bug.
    """

    batches: int = 0
    stored_blocks: int = 0
    removed_blocks: int = 0
    dropped: int = 0
    failures: int = 0

    def described(self) -> list[tuple[str, str, float]]:
        """For the metrics: of each its name, what it counts, and how many."""
        fast = "Changes that came too fast to be published one by one."
        broken = "Times they broke off and began afresh: a bug if not 0."
        return [
            ("kv_event_batches", "Batches of KV events that were published.", self.batches),
            ("kv_event_stored_blocks", "Blocks published as stored.", self.stored_blocks),
            ("kv_event_removed_blocks", "Blocks published as removed.", self.removed_blocks),
            ("kv_event_dropped_changes", fast, self.dropped),
            ("kv_event_failures", broken, self.failures),
        ]


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
        """Until the engine ends or it is cancelled, even where an error hid the cancellation."""
        while not self._task.cancelling():
            try:
                await self._publish_all()
                return
            except Exception:
                self.counts.failures += 1
                _logger.exception("KV events broke off; in a second all is published again")
                await asyncio.sleep(SECONDS_TO_NEXT_TRY)

    async def _publish_all(self) -> None:
        """From the beginning, until the engine ends."""
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
        """After these a reader knows all there is, whatever it knew before."""
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
