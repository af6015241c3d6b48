"""What a program reads of a step that may not be over yet."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress
from functools import partial
from typing import Any

from radixlm.core.errors import ProgramError


class Value:
    """A step's result, there once it is settled or has failed. Safe to use from any thread.

    meta: what the backend tells of it, from the first piece on.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._text = ""
        self._result: Any = None
        self._error: ProgramError | None = None
        self._over = False
        self._watchers: list[Callable[[], object]] = []
        self.meta: Any = None

    def grow(self, text: str) -> None:
        """More of the text is known."""
        with self._lock:
            self._text += text
        self._tell()

    def settle(self, result: Any, meta: Any = None) -> None:
        """This is the result. Does nothing when there is one, or an error, already."""
        self._end(result, None, meta)

    def fail(self, error: ProgramError) -> None:
        """There will be none. Does nothing when there is a result, or an error, already."""
        self._end(None, error, None)

    @property
    def over(self) -> bool:
        """Whether there is a result or an error."""
        return self._over

    def get(self) -> Any:
        """Wait for the result. Raises ProgramError when its step failed."""
        self._wait(lambda: self._over)
        if self._error is not None:
            raise self._error
        return self._result

    def pieces(self) -> Iterator[str]:
        """The text as it grows. Raises ProgramError when its step fails."""
        place = 0
        while True:
            self._wait(partial(self._has_behind, place))
            piece, over = self._behind(place)
            if piece:
                place += len(piece)
                yield piece
            elif over:
                return

    async def apieces(self) -> AsyncIterator[str]:
        """As `pieces`, in a coroutine."""
        loop, changed, place = asyncio.get_running_loop(), asyncio.Event(), 0

        def wake() -> None:
            with suppress(RuntimeError):  # the loop is closed: nobody reads any more
                loop.call_soon_threadsafe(changed.set)

        self._watch(wake)
        try:
            while True:
                changed.clear()
                piece, over = self._behind(place)
                if piece:
                    place += len(piece)
                    yield piece
                elif over:
                    return
                else:
                    await changed.wait()
        finally:
            self._unwatch(wake)

    def _end(self, result: Any, error: ProgramError | None, meta: Any) -> None:
        with self._lock:
            if self._over:
                return
            self._result, self._error = result, error
            if isinstance(result, str):
                self._text = result
            if meta is not None:
                self.meta = meta
            self._over = True
        self._tell()

    def _has_behind(self, place: int) -> bool:
        return self._over or len(self._text) > place

    def _behind(self, place: int) -> tuple[str, bool]:
        with self._lock:
            piece, over, error = self._text[place:], self._over, self._error
        if not piece and error is not None:
            raise error
        return piece, over

    def _wait(self, condition: Callable[[], bool]) -> None:
        if condition():
            return
        there = threading.Event()

        def look() -> None:
            if condition():  # waking a thread for each piece of a text costs more than the piece
                there.set()

        self._watch(look)
        try:
            look()
            there.wait()
        finally:
            self._unwatch(look)

    def _watch(self, watcher: Callable[[], object]) -> None:
        with self._lock:
            self._watchers.append(watcher)

    def _unwatch(self, watcher: Callable[[], object]) -> None:
        with self._lock:
            self._watchers.remove(watcher)

    def _tell(self) -> None:
        with self._lock:
            watchers = list(self._watchers)
        for watcher in watchers:
            watcher()
