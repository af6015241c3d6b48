"""A batch's run: its lines are asked in order, some at a time, and their answers written."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import BinaryIO, Protocol

from radixlm.batch.lines import BatchLine
from radixlm.batch.order import BatchPlan
from radixlm.batch.results import LineAnswer, Results

# No room in the queue, and an engine that takes nothing now: asked again.
_LATER = (429, 503)
PAUSE_SECONDS = 1.0
LOOK_SECONDS = 0.2
# Lines are read some at a time, off the event loop.
_AT_ONCE, _BYTES_AT_ONCE = 32, 4 * 2**20


class AskLine(Protocol):
    """Answers a line, with its bytes as they stand in the input.

    Raises EngineDeadError where nothing will ever be answered.
    """

    async def __call__(self, line: BatchLine, content: bytes, /) -> LineAnswer: ...


async def answer_all(
    plan: BatchPlan,
    results: Results,
    ask: AskLine,
    room: Callable[[], int],
    report: Callable[[LineAnswer], None] = lambda _: None,
) -> None:
    """Answer each line that is not done, in the plan's order.

    room: how many may be asked at a time now. report: called with each answer. Cancelled, it ends
    the requests under way, whose lines are not done. Raises what `ask` and `results` raise.
    """
    ended = asyncio.Event()
    running: set[asyncio.Task[None]] = set()

    async def answer(place: int, content: bytes) -> None:
        try:
            line = BatchLine.parse(plan.numbers[place] + 1, content)
            while (reply := await ask(line, content)).status in _LATER:
                await asyncio.sleep(PAUSE_SECONDS)
            results.add(place, line.custom_id, reply)
            report(reply)
        finally:
            ended.set()

    def take_ended() -> None:
        for task in [each for each in running if each.done()]:
            running.remove(task)
            task.result()

    try:
        async for place, content in _left(plan, results.done):
            take_ended()
            while len(running) >= max(room(), 1):
                ended.clear()
                await _wait(ended)
                take_ended()
            running.add(asyncio.create_task(answer(place, content)))
        while running:
            await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
            take_ended()
    finally:
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)


async def _wait(ended: asyncio.Event) -> None:
    """Wait until a request has ended, or it is time to look whether there is more room."""
    try:
        async with asyncio.timeout(LOOK_SECONDS):
            await ended.wait()
    except TimeoutError:
        return


async def _left(plan: BatchPlan, done: bytearray) -> AsyncIterator[tuple[int, bytes]]:
    """The places of what is to be answered, in order, each with its line."""

    def read(file: BinaryIO, start: int) -> tuple[list[tuple[int, bytes]], int]:
        found: list[tuple[int, bytes]] = []
        size = 0
        while start < len(plan) and len(found) < _AT_ONCE and size < _BYTES_AT_ONCE:
            place = plan.places[start]
            start += 1
            if not done[place]:
                found.append((place, plan.read(file, place)))
                size += len(found[-1][1])
        return found, start

    at = 0
    with plan.path.open("rb") as file:
        while at < len(plan):
            found, at = await asyncio.to_thread(read, file, at)
            for each in found:
                yield each


def expire(plan: BatchPlan, results: Results, code: str, message: str) -> None:
    """Write an error for each line that is not done. Takes time in proportion to them."""
    with plan.path.open("rb") as file:
        for place, done in enumerate(results.done):
            if not done:
                line = BatchLine.parse(plan.numbers[place] + 1, plan.read(file, place))
                results.add_error(place, line.custom_id, code, message)
