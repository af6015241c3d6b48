"""A viewer of the tree: updates wait here for a coroutine, within bounds."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress

from radixlm.core.errors import CacheError, EngineDeadError
from radixlm.core.reports import MAX_WAITING
from radixlm.engine.messages import Scene, SceneChange, TreeNews

# How many nodes may wait in the changes.
MAX_WAITING_NODES = 20_000

Ending = CacheError | EngineDeadError


class Viewer:
    """Follows what a query shows, from the coroutine's own loop.

    A viewer that is too slow loses what waits for it and is shown nothing more until it asks again:
    then it gets a fresh scene. So it costs the engine nothing, however slow it is.

    watch: begins to watch, and gives the ticket. stop: ends it.
    max_waiting: updates that may wait. dropped: how many were lost so far.
    """

    def __init__(
        self,
        watch: Callable[[Viewer], int],
        stop: Callable[[int], None],
        max_waiting: int = MAX_WAITING,
    ) -> None:
        self.dropped = 0
        self.max_waiting = max_waiting
        self._watch = watch
        self._stop = stop
        self._loop = asyncio.get_running_loop()
        # Held while a ticket is asked for: what is delivered by it may end it at once.
        self._lock = threading.RLock()
        self._waiting: deque[Scene | SceneChange] = deque()
        self._waiting_nodes = 0
        self._ended: Ending | None = None
        self._arrived = asyncio.Event()
        with self._lock:
            self._ticket: int | None = watch(self)

    async def next(self) -> Scene | SceneChange:
        """Wait for the next update. A scene takes the place of all before it.

        Raises NodeGoneError when the node that is watched is gone, EngineDeadError.
        """
        while True:
            with self._lock:
                self._arrived.clear()
                if self._waiting:
                    news = self._waiting.popleft()
                    self._waiting_nodes -= _size(news)
                    return news
                if self._ended is not None:
                    raise self._ended
                if self._ticket is None:
                    self._ticket = self._watch(self)
            await self._arrived.wait()

    def close(self) -> None:
        """Watch no longer."""
        with self._lock:
            ticket, self._ticket = self._ticket, None
            if ticket is not None:
                self._stop(ticket)

    def deliver(self, news: TreeNews | EngineDeadError) -> None:
        """Called by the engine's thread."""
        with self._lock:
            if isinstance(news, CacheError | EngineDeadError):
                self._ended = news
            elif not self._accept(news):
                self.close()
        with suppress(RuntimeError):  # the loop is closed, so there is no reader
            self._loop.call_soon_threadsafe(self._arrived.set)

    def _accept(self, news: Scene | SceneChange) -> bool:
        self._waiting.append(news)
        self._waiting_nodes += _size(news)
        many = self._waiting_nodes > MAX_WAITING_NODES and len(self._waiting) > 1
        if len(self._waiting) <= self.max_waiting and not many:
            return True
        self.dropped += len(self._waiting)
        self._waiting.clear()
        self._waiting_nodes = 0
        return False


def _size(news: Scene | SceneChange) -> int:
    if isinstance(news, Scene):
        return len(news.tree.nodes)
    return 0 if news.tree is None else len(news.tree.nodes)
