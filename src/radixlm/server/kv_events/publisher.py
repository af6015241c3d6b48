"""Tells of blocks from a thread of its own, as one more viewer of the cache."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from itertools import chain

from radixlm.build import AsyncEngine
from radixlm.core.errors import EngineDeadError, RadixLMError
from radixlm.core.reports import TreeQuery
from radixlm.engine.messages import Scene
from radixlm.engine.viewer import Viewer
from radixlm.server.kv_events.blocks import BlockLedger, Removed, Stored
from radixlm.server.kv_events.outlet import Outlet
from radixlm.server.kv_events.wire import CLEARED, Event, events_of

_SECONDS_TO_NEXT_TRY = 1.0

_logger = logging.getLogger("radixlm.server")


@dataclass(slots=True)
class KVEventCounts:
    """Totals so far, written by the publisher's thread.

    dropped: changes that came too fast. Nothing is missing for it: what differs is told at once.
    """

    batches: int = 0
    stored_blocks: int = 0
    removed_blocks: int = 0
    dropped: int = 0


class Publisher:
    """Follows the cache and tells of its blocks. The engine waits for nothing here.

    The first batch says that there are none, to those who knew an earlier server, and so does the
    last, whatever it ends for.
    """

    def __init__(self, engine: AsyncEngine, outlet: Outlet) -> None:
        self.counts = KVEventCounts()
        self._engine = engine
        self._outlet = outlet
        self._ledger = BlockLedger(outlet.config.block_size_for(engine.info.page_size))
        self._loop = asyncio.new_event_loop()
        self._task = self._loop.create_task(self._publish())
        self._thread = threading.Thread(target=self._run, name="radixlm-kv-events", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Tell no more."""
        with suppress(RuntimeError):  # it has ended, since the engine has
            self._loop.call_soon_threadsafe(self._task.cancel)
        self._thread.join()

    def _run(self) -> None:
        with closing(self._loop):
            try:
                self._loop.run_until_complete(self._task)
            except asyncio.CancelledError:
                return
            except Exception:
                _logger.exception("no more KV events are told")

    async def _publish(self) -> None:
        self._send((CLEARED,))
        try:
            async with asyncio.TaskGroup() as group:
                repeating = group.create_task(self._outlet.repeat(self._whole))
                await self._follow()
                repeating.cancel()
        finally:
            self._send((CLEARED,))

    async def _follow(self) -> None:
        """Until the engine ends. A viewer that breaks off is followed by another, whose first
        sight makes up for what was missed.
        """
        most = self._outlet.config.max_queue_size
        while True:
            try:
                with closing(self._engine.watch(TreeQuery(), max_waiting=most, own=True)) as viewer:
                    await self._tell_what_is_seen(viewer)
            except EngineDeadError:
                return
            except RadixLMError as error:
                _logger.warning("KV events pause for a second: %s", error)
                await asyncio.sleep(_SECONDS_TO_NEXT_TRY)

    async def _tell_what_is_seen(self, viewer: Viewer) -> None:
        dropped_before = self.counts.dropped
        while True:
            sight = await viewer.next()
            self.counts.dropped = dropped_before + viewer.dropped
            if isinstance(sight, Scene):
                self._tell(self._ledger.replace(sight.tree.nodes))
            elif sight.tree is not None:
                self._tell(self._ledger.update(sight.tree.removed, sight.tree.nodes))

    def _tell(self, changes: Sequence[Stored | Removed]) -> None:
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
    """Tell of the engine's cache by an outlet, while there is one."""
    if outlet is None:
        yield None
        return
    with closing(Publisher(engine, outlet)) as publisher:
        config = outlet.config
        doing = "bound to" if config.binds else "sent to"
        _logger.info("KV events: %s %s, topic %r", doing, config.endpoint, config.topic)
        yield publisher
