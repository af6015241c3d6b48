"""Calls that may hang have threads of their own, few, and nobody has to wait for them."""

from __future__ import annotations

import asyncio
import threading

import pytest

from radixlm.core.errors import EngineStoppedError, QueueFullError
from radixlm.core.side_threads import SideThreads

LONG = 60.0


def test_what_a_call_returns_or_raises() -> None:
    async def main() -> None:
        side = SideThreads("reading", 1, 4)
        assert await side.run(threading.current_thread, LONG) is not threading.main_thread()
        with pytest.raises(ZeroDivisionError):
            await side.run(lambda: 1 // 0, LONG)
        assert await side.run(lambda: 7, LONG) == 7

    asyncio.run(main())


def test_calls_that_hang_hold_up_no_more_than_these_threads() -> None:
    """They leave their places in the line when they are given up, and the process when it ends."""

    async def main() -> None:
        side, hanging, begun = SideThreads("reading", 2, 3), threading.Event(), []

        def hang() -> None:
            begun.append(threading.current_thread())
            hanging.wait()

        waits = [asyncio.create_task(side.run(hang, LONG)) for _ in range(5)]
        while len(begun) < 2:
            await asyncio.sleep(0)
        with pytest.raises(QueueFullError, match="reading: 2 under way and 3 that wait are the"):
            await side.run(hang, LONG)
        waits[4].cancel()
        await asyncio.wait([waits[4]])
        with pytest.raises(TimeoutError):
            await side.run(hang, 0.0)
        assert all(thread.daemon for thread in begun)
        assert not any(thread is each for thread in begun for each in _pool())
        side.close(0.0)
        ended = await asyncio.gather(*waits, return_exceptions=True)
        assert [type(each) for each in ended] == [EngineStoppedError] * 4 + [asyncio.CancelledError]
        with pytest.raises(EngineStoppedError, match="shut down, and with it: reading"):
            await side.run(hang, LONG)
        hanging.set()
        for thread in begun:
            thread.join()
        assert len(begun) == 2, "what was given up before it began never begins"

    asyncio.run(main())


def test_calls_one_after_the_other_find_a_thread_each() -> None:
    async def main() -> None:
        side = SideThreads("reading", 1, 0)
        assert [await side.run(lambda: 7, LONG) for _ in range(200)] == [7] * 200

    asyncio.run(main())


def test_a_thread_that_the_system_refuses_takes_no_place(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    async def main() -> None:
        side = SideThreads("reading", 1, 4)
        with monkeypatch.context() as patched:
            patched.setattr(threading.Thread, "start", refuse)
            with pytest.raises(RuntimeError, match="can't start"):
                await side.run(lambda: 7, LONG)
        assert await side.run(lambda: 7, LONG) == 7
        side.close(LONG)

    asyncio.run(main())


def _pool() -> list[threading.Thread]:
    """Threads of asyncio's own pool."""
    return [each for each in threading.enumerate() if each.name.startswith("asyncio")]


def test_the_end_waits_for_a_call_that_ends() -> None:
    async def main() -> None:
        side, going = SideThreads("reading", 1, 1), threading.Event()
        task = asyncio.create_task(side.run(lambda: (going.set(), 7)[1], LONG))
        while not going.is_set():
            await asyncio.sleep(0)
        await asyncio.to_thread(side.close, LONG)
        assert await task == 7

    asyncio.run(main())
