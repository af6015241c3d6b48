"""Where programs' steps are run: an event loop on a thread of its own, while it is needed."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, TypeVar

from radixlm.lang.backend import Backend, Session

T = TypeVar("T")


class Executor:
    """Runs the streams of one program, or of a batch of programs, in one session of a backend.

    The thread ends, and the session with it, when `finish` was called and every stream is over.
    Every method may be called from any thread. Raises what opening the session raises.
    """

    session: Session
    loop: asyncio.AbstractEventLoop

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._opened = threading.Event()
        self._failed: BaseException | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._cancelled = False
        self._thread = threading.Thread(target=self._run, name="radixlm-programs")
        self._thread.start()
        self._opened.wait()
        if self._failed is not None:
            raise self._failed

    def call(self, function: Callable[..., object], *arguments: Any) -> None:
        """Soon, on the loop, in the order of the calls. Not after `finish` and the last stream."""
        self.loop.call_soon_threadsafe(function, *arguments)

    def start(self, work: Coroutine[Any, Any, None]) -> None:
        """Run a stream. Not after `finish`."""
        self.call(self._spawn, work)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run it, wait, and give its result. Not after `finish`."""
        return asyncio.run_coroutine_threadsafe(work, self.loop).result()

    def finish(self) -> None:
        """No stream will be started any more. Once only."""
        self.call(self._last.set)

    def cancel(self) -> None:
        """End all streams where they are. Does nothing once the thread is over."""
        with suppress(RuntimeError):  # the loop is closed
            self.call(self._cancel_all)

    def join(self) -> None:
        """Wait for the thread to end."""
        self._thread.join()

    def _run(self) -> None:
        try:
            asyncio.run(self._main())
        except BaseException as error:  # handed to the thread that waits for the session
            if self._opened.is_set():
                raise
            self._failed = error
        finally:
            self._opened.set()

    async def _main(self) -> None:
        self.loop = asyncio.get_running_loop()
        self._last = asyncio.Event()
        async with self._backend.session() as self.session:
            self._opened.set()
            await self._last.wait()
            while self._tasks:
                await asyncio.wait(self._tasks)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = self.loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        if self._cancelled:
            self._cancel_all()

    def _cancel_all(self) -> None:
        self._cancelled = True
        for task in self._tasks:
            # Behind its first step: a task that is cancelled before it never comes to its end.
            self.loop.call_soon(task.cancel)
