"""Work on responses that nobody waits for."""

from __future__ import annotations

import asyncio
import time

from radixlm.server.responses.response_store import ResponseStore, StoreLimits, TurnStore


def test_work_is_cancelled_once():
    """What it does when it is cancelled goes on, however often it is told to stop."""
    store = ResponseStore(TurnStore(None, StoreLimits(9, 10**6, 60), time.time))
    done = []

    async def work() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            for _ in range(5):
                await asyncio.sleep(0)
            done.append("stored")

    async def main() -> None:
        store.start("a", work())
        await asyncio.sleep(0)
        first = asyncio.create_task(store.stop("a"))
        await asyncio.sleep(0)
        await asyncio.gather(first, store.stop("a"))

    asyncio.run(main())
    store.close()
    assert done == ["stored"]
