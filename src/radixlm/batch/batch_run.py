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
    """Answers a line of a part, with its bytes as they stand in the input.

    Raises EngineDeadError where nothing will ever be answered.
    """

    async def __call__(self, line: BatchLine, content: bytes, part: int, /) -> LineAnswer: ...


async def answer_all(
    plan: BatchPlan,
    results: Results,
    ask: AskLine,
    room: Callable[[], int],
    report: Callable[[LineAnswer], None] = lambda _: None,
    parts: int = 1,
) -> None:
    """Answer each line that is not done, in the plan's order; of several parts side by side.

    room: how many of a part may be asked at a time now. report: called with each answer. Cancelled,
    it ends the requests under way, whose lines are not done. Raises what `ask` and `results` raise.
    """
    working = [
        asyncio.create_task(_answer_part(plan, results, ask, room, report, *each))
        for each in enumerate(plan.parts(parts))
    ]
    try:
        for done in asyncio.as_completed(working):
            await done
    finally:
        for task in working:
            task.cancel()
        await asyncio.gather(*working, return_exceptions=True)


async def _answer_part(
    plan: BatchPlan,
    results: Results,
    ask: AskLine,
    room: Callable[[], int],
    report: Callable[[LineAnswer], None],
    part: int,
    span: range,
) -> None:
    ended = asyncio.Event()
    running: set[asyncio.Task[None]] = set()

    async def answer(place: int, content: bytes) -> None:
        try:
            line = BatchLine.parse(plan.numbers[place] + 1, content)
            while (reply := await ask(line, content, part)).status in _LATER:
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
        async for place, content in _left(plan, results.done, span):
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


async def _left(plan: BatchPlan, done: bytearray, span: range) -> AsyncIterator[tuple[int, bytes]]:
    """The places of what is to be answered of a part, in order, each with its line."""

    def read(file: BinaryIO, start: int) -> tuple[list[tuple[int, bytes]], int]:
        found: list[tuple[int, bytes]] = []
        size = 0
        while start < span.stop and len(found) < _AT_ONCE and size < _BYTES_AT_ONCE:
            place = plan.places[start]
            start += 1
            if not done[place]:
                found.append((place, plan.read(file, place)))
                size += len(found[-1][1])
        return found, start

    at = span.start
    with plan.path.open("rb") as file:
        while at < span.stop:
            found, at = await asyncio.to_thread(read, file, at)
            for each in found:
                yield each


def expire(
    plan: BatchPlan, results: Results, code: str, message: str, *, stopped: Callable[[], bool]
) -> None:
    """Write an error for each line that is not done. Takes time in proportion to them. stopped:
    whether nobody waits for it any more; it raises InterruptedError then.
    """
    with plan.path.open("rb") as file:
        for place, done in enumerate(results.done):
            if not done:
                if stopped():
                    raise InterruptedError
                line = BatchLine.parse(plan.numbers[place] + 1, plan.read(file, place))
                results.add_error(place, line.custom_id, code, message)
