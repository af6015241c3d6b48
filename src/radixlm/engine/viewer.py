"""One who watches the tree: what was seen waits here for a coroutine, within bounds."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress

from radixlm.core.errors import CacheError, EngineDeadError
from radixlm.core.reports import MAX_WAITING
from radixlm.engine.messages import Scene, SceneChange, Sight

# So many nodes may wait in the changes.
MAX_WAITING_NODES = 20_000

Ending = CacheError | EngineDeadError


class Viewer:
    """Follows what a query shows, from the coroutine's own loop.

    A viewer that is too slow loses what waits for it and is shown nothing more, until it asks
    again: then it gets a fresh scene. So it costs the engine nothing, however slow it is.

    look: begins to watch, and gives the ticket. look_away: ends it.
    max_waiting: sights that may wait. dropped: how many were lost so far.
    """

    def __init__(
        self,
        look: Callable[[Viewer], int],
        look_away: Callable[[int], None],
        max_waiting: int = MAX_WAITING,
    ) -> None:
        self.dropped = 0
        self.max_waiting = max_waiting
        self._look = look
        self._look_away = look_away
        self._loop = asyncio.get_running_loop()
        # Held while a ticket is asked for: what is delivered by it may end it at once.
        self._lock = threading.RLock()
        self._waiting: deque[Scene | SceneChange] = deque()
        self._waiting_nodes = 0
        self._ended: Ending | None = None
        self._arrived = asyncio.Event()
        with self._lock:
            self._ticket: int | None = look(self)

    async def next(self) -> Scene | SceneChange:
        """Wait for what is to be seen next. A scene takes the place of all before it.

        Raises NodeGoneError when the node that is watched is gone, EngineDeadError.
        """
        while True:
            with self._lock:
                self._arrived.clear()
                if self._waiting:
                    sight = self._waiting.popleft()
                    self._waiting_nodes -= _size(sight)
                    return sight
                if self._ended is not None:
                    raise self._ended
                if self._ticket is None:
                    self._ticket = self._look(self)
            await self._arrived.wait()

    def close(self) -> None:
        """Watch no longer."""
        with self._lock:
            ticket, self._ticket = self._ticket, None
            if ticket is not None:
                self._look_away(ticket)

    def deliver(self, sight: Sight | EngineDeadError) -> None:
        """Called by the engine's thread."""
        with self._lock:
            if isinstance(sight, CacheError | EngineDeadError):
                self._ended = sight
            elif not self._accept(sight):
                self.close()
        with suppress(RuntimeError):  # the loop is closed: nobody reads any more
            self._loop.call_soon_threadsafe(self._arrived.set)

    def _accept(self, sight: Scene | SceneChange) -> bool:
        self._waiting.append(sight)
        self._waiting_nodes += _size(sight)
        many = self._waiting_nodes > MAX_WAITING_NODES and len(self._waiting) > 1
        if len(self._waiting) <= self.max_waiting and not many:
            return True
        self.dropped += len(self._waiting)
        self._waiting.clear()
        self._waiting_nodes = 0
        return False


def _size(sight: Scene | SceneChange) -> int:
    if isinstance(sight, Scene):
        return len(sight.tree.nodes)
    return 0 if sight.tree is None else len(sight.tree.nodes)
