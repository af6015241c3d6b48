"""Mailboxes where requests' outputs, and what viewers are shown of the tree, wait to be read."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from queue import SimpleQueue
from typing import Protocol

from radixlm.core.errors import CacheError, EngineDeadError
from radixlm.core.futures import fail, settle
from radixlm.core.reports import MAX_WAITING
from radixlm.core.request import RequestOutput
from radixlm.engine.watching import Scene, SceneChange, TreeNews

# How many nodes may wait in a viewer's changes.
MAX_WAITING_NODES = 20_000


class Mailbox(Protocol):
    """Takes outputs from the engine's thread; must not block it and must not raise."""

    def deliver(self, outputs: Iterable[RequestOutput], /) -> None: ...


class ThreadMailbox(SimpleQueue[RequestOutput]):
    """A mailbox for a thread that waits for the outputs of many requests; `get` gives the next
    one.
    """

    def deliver(self, outputs: Iterable[RequestOutput]) -> None:
        for output in outputs:
            self.put(output)


class TaskMailbox:
    """A mailbox for a coroutine that streams requests. A slow reader finds what came meanwhile
    joined into one output for each, so that it never holds more than the requests' own text.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._waiting: list[RequestOutput] = []
        self._arrived = asyncio.Event()

    def deliver(self, outputs: Iterable[RequestOutput]) -> None:
        deliver_all({self: list(outputs)})

    async def get(self) -> list[RequestOutput]:
        """Wait for output; all there is, one for each request."""
        await self._arrived.wait()
        self._arrived.clear()
        outputs, self._waiting = self._waiting, []
        if len(outputs) == 1:
            return outputs
        parts: dict[str, list[RequestOutput]] = {}
        for output in outputs:
            parts.setdefault(output.request_id, []).append(output)
        return [
            each[0] if len(each) == 1 else RequestOutput.joined(each) for each in parts.values()
        ]

    def accept(self, outputs: Iterable[RequestOutput]) -> None:
        """Accept outputs, in the coroutine's own thread."""
        self._waiting.extend(outputs)
        self._arrived.set()


def deliver_all(addressed: Mapping[Mailbox, Sequence[RequestOutput]]) -> None:
    """Wake each loop once, when all is there: else the engine lacks the interpreter."""
    by_loop: dict[asyncio.AbstractEventLoop, list[tuple[TaskMailbox, Sequence[RequestOutput]]]] = {}
    for mailbox, outputs in addressed.items():
        if isinstance(mailbox, TaskMailbox):
            by_loop.setdefault(mailbox.loop, []).append((mailbox, outputs))
        else:
            mailbox.deliver(outputs)
    for loop, pairs in by_loop.items():
        with suppress(RuntimeError):  # the loop is closed: nobody reads any more
            loop.call_soon_threadsafe(_accept_all, pairs)


def _accept_all(pairs: Iterable[tuple[TaskMailbox, Sequence[RequestOutput]]]) -> None:
    for mailbox, outputs in pairs:
        mailbox.accept(outputs)


News = TreeNews | EngineDeadError


class Look(Future[Scene]):
    """Waits for a single scene."""

    def deliver(self, news: News) -> None:
        """Called by the engine's thread."""
        if isinstance(news, Scene):
            settle(self, news)
        elif isinstance(news, Exception):
            fail(self, news)


class Viewer:
    """Follows what a query shows, from the coroutine's own loop.

    One that is too slow loses what waits for it, and is shown nothing more until it asks again,
    then a fresh scene. So it costs the engine nothing. dropped: updates that were lost so far.

    watch: begins to watch, and gives the ticket. stop: ends it. max_waiting: updates that may wait.
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
        self._ended: CacheError | EngineDeadError | None = None
        self._arrived = asyncio.Event()
        with self._lock:
            self._ticket: int | None = watch(self)

    async def next(self) -> Scene | SceneChange:
        """Wait for the next update; a scene replaces all before. Raises NodeGoneError,
        EngineDeadError.
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

    def deliver(self, news: News) -> None:
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
