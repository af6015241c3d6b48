"""What a program reads of a step that may still run."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import Future
from contextlib import suppress
from typing import Any

from radixlm.core.errors import ProgramError


class Value(Future[Any]):
    """A step's result, and its text as it grows. One thread writes it; any thread may read.

    meta: what the backend says of it, from the first piece on. in_scope: it is the text of a scope
    that the program has not left.
    """

    def __init__(self) -> None:
        super().__init__()
        self.meta: Any = None
        self.in_scope = False
        self._text = ""
        # "more", where somebody waits for it. Waking who waits for the result for each piece would
        # cost more than the piece. A dict's methods are atomic.
        self._waited: dict[str, Future[None]] = {}

    def grow(self, text: str) -> None:
        """Add a piece of the text."""
        self._text += text
        self._wake()

    def settle(self, result: Any, meta: Any = None) -> None:
        """Set the result. Does nothing when there is one, or an error."""
        if self.done():
            return
        if isinstance(result, str):
            self._text = result
        if meta is not None:
            self.meta = meta
        self.set_result(result)
        self._wake()

    def fail(self, error: ProgramError) -> None:
        """There will be no result. Does nothing when there is one, or an error."""
        if not self.done():
            self.set_exception(error)
            self._wake()

    def pieces(self) -> Iterator[str]:
        """The text as it grows. Raises ProgramError when its step fails."""
        place = 0
        while True:
            more = self._waited.setdefault("more", Future())
            if piece := self._rest(place):
                place += len(piece)
                yield piece
            elif piece is None:
                return
            else:
                more.result()

    async def apieces(self) -> AsyncIterator[str]:
        """As `pieces`, in a coroutine."""
        place = 0
        while True:
            more = self._waited.setdefault("more", Future())
            if piece := self._rest(place):
                place += len(piece)
                yield piece
            elif piece is None:
                return
            else:
                await done(more)

    def _wake(self) -> None:
        more = self._waited.pop("more", None)
        if more is not None:
            more.set_result(None)

    def _rest(self, place: int) -> str | None:
        """The text from `place` on; empty when more may come, None at the end."""
        over = self.done()
        if piece := self._text[place:]:
            return piece
        if over:
            self.result()
        return None if over else ""


async def done(future: Future[Any]) -> None:
    """Wait until it has a result or an error. Being cancelled leaves it as it is."""
    loop, there = asyncio.get_running_loop(), asyncio.Event()

    def wake(_: object) -> None:
        with suppress(RuntimeError):  # the loop is closed, so nobody waits any more
            loop.call_soon_threadsafe(there.set)

    future.add_done_callback(wake)
    await there.wait()
