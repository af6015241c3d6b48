"""Threads for calls that may take long, or never end."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

from radixlm.core.errors import EngineStoppedError, QueueFullError
from radixlm.core.futures import fail, settle

T = TypeVar("T")


class SideThreads:
    """A few threads of their own for calls that read from disks, or write long pages: so they take
    none of asyncio's shared pool, in which prompts are read.

    Python joins the threads of an executor at its end, so one that hangs would keep the process.
    These are daemons. Each ends when no call waits. Every method may be called from any thread.

    most: threads at a time. most_waiting: calls that may wait for one.
    """

    def __init__(self, name: str, most: int, most_waiting: int) -> None:
        self._name, self._most, self._most_waiting = name, most, most_waiting
        self._lock = threading.Lock()
        self._waiting: dict[Future[Any], Callable[[], Any]] = {}
        # What each thread is at; None between two calls.
        self._threads: dict[threading.Thread, Future[Any] | None] = {}
        self._closed = False

    async def run(self, call: Callable[[], T], seconds: float | None = None) -> T:
        """Run a call; return what it returns, or raise what it raises. Raises TimeoutError after
        `seconds`, its wait for a thread included, QueueFullError, EngineStoppedError. A call that
        is given up, so or by cancelling this, never begins, or goes on and its result is dropped.
        """
        async with asyncio.timeout(seconds):
            return await asyncio.wrap_future(self._submit(call))

    def close(self, seconds: float) -> None:
        """Let no call begin any more, wait up to `seconds` for each that has, and give up all that
        is left.
        """
        with self._lock:
            self._closed = True
            given_up, self._waiting = list(self._waiting), {}
            threads = dict(self._threads)
        for thread in threads:
            thread.join(seconds)
        for future in (*given_up, *threads.values()):
            if future is not None:
                fail(future, self._stopped())

    def _submit(self, call: Callable[[], T]) -> Future[T]:
        future: Future[T] = Future()
        with self._lock:
            if self._closed:
                raise self._stopped()
            busy = sum(each is not None for each in self._threads.values())
            if busy + len(self._waiting) >= self._most + self._most_waiting:
                raise QueueFullError(
                    f"{self._name}: {self._most} under way and {self._most_waiting} that wait are "
                    "the most; try again later"
                )
            if len(self._threads) < self._most:
                self._begin_thread()
            self._waiting[future] = call
        future.add_done_callback(self._no_longer_waits)
        return future

    def _begin_thread(self) -> None:
        """Begin a thread. Where the system has none for us, those that there are have to do. Raises
        RuntimeError where there are none.
        """
        thread = threading.Thread(target=self._work, name=self._name, daemon=True)
        self._threads[thread] = None
        try:
            thread.start()
        except RuntimeError:
            del self._threads[thread]
            if not self._threads:
                raise

    def _no_longer_waits(self, future: Future[Any]) -> None:
        with self._lock:
            self._waiting.pop(future, None)

    def _work(self) -> None:
        while (taken := self._next()) is not None:
            future, call = taken
            try:
                value = call()
            except BaseException as error:  # raised where it is waited for
                self._leave()
                fail(future, error)
            else:
                self._leave()
                settle(future, value)
            del taken, future, call  # what the call holds goes now, not when the next one comes

    def _leave(self) -> None:
        """Leave, before the outcome is seen: then the next call finds the thread free."""
        with self._lock:
            self._threads[threading.current_thread()] = None

    def _next(self) -> tuple[Future[Any], Callable[[], Any]] | None:
        with self._lock:
            if not self._waiting:
                del self._threads[threading.current_thread()]
                return None
            future = self._threads[threading.current_thread()] = next(iter(self._waiting))
            return future, self._waiting.pop(future)

    def _stopped(self) -> EngineStoppedError:
        return EngineStoppedError(f"the engine is shut down, and with it: {self._name}")
