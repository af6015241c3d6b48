"""Where requests' outputs wait for the thread or the coroutine that asked."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from queue import SimpleQueue
from typing import Protocol

from radixlm.core.request import RequestOutput


class Mailbox(Protocol):
    """Takes outputs from the engine's thread; must not block it and must not raise."""

    def deliver(self, outputs: Iterable[RequestOutput], /) -> None: ...


class ThreadMailbox:
    """For a thread that waits for the outputs of many requests."""

    def __init__(self) -> None:
        self._queue: SimpleQueue[RequestOutput] = SimpleQueue()

    def deliver(self, outputs: Iterable[RequestOutput]) -> None:
        for output in outputs:
            self._queue.put(output)

    def get(self) -> RequestOutput:
        """Wait for the next output."""
        return self._queue.get()


class TaskMailbox:
    """For a coroutine that streams requests. A slow reader finds what came meanwhile joined into
    one output for each, so that it never holds more than the requests' own text.
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
        """In the coroutine's own thread."""
        self._waiting.extend(outputs)
        self._arrived.set()


def deliver_all(addressed: Mapping[Mailbox, Sequence[RequestOutput]]) -> None:
    """From the engine's thread: every loop is woken once, when all is there. Woken for each, it
    would take the interpreter away while the engine still needs it.
    """
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
