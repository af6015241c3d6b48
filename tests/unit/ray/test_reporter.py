"""What a replica tells the router."""

from __future__ import annotations

import pytest

from tests.aside import Aside

pytest.importorskip("ray", reason="Ray has no wheel for this platform")
COMMON = """
import asyncio
import numpy as np
from radixlm.core.errors import CacheError, EngineDeadError
from radixlm.core.request import GenerateRequest, Namespace
from radixlm.core.sampling import SamplingParams
from radixlm.engine.loop import Died
from radixlm.ray.reporter import Reporter
from radixlm.routing import RouterActor
from tests.server_support import fake_engine

KEY = np.arange(1, 9, dtype=np.int32)


class RouterHandle:
    def __init__(self):
        self.front, self.calls = RouterActor(), []

    async def ask(self, method, *arguments):
        await asyncio.sleep(0.001)
        self.calls.append(method)
        return getattr(self.front, method)(*arguments)

    async def leave(self, name):
        self.calls.append("leave")

    async def close(self):
        pass

    def held(self):
        [offer] = self.front.offers(Namespace(), KEY) or [None]
        return 0 if offer is None else offer.cached_tokens


def request(number):
    return GenerateRequest(str(number), KEY, SamplingParams(max_tokens=1))

"""
DYING = (
    COMMON
    + """
async def main():
    engine, _ = fake_engine()
    router = RouterHandle()
    reporter = Reporter("one", engine, router)
    reporter.start()
    await asyncio.sleep(0.1)
    engine.client.put(Died(EngineDeadError("rank 1 of 2 is gone")))
    while "leave" not in router.calls:
        await asyncio.sleep(0.1)
    count = len(router.calls)
    await asyncio.sleep(2)
    print("report" in router.calls, router.calls[-1], len(router.calls) - count)
    await engine.close()

asyncio.run(asyncio.wait_for(main(), 120))
"""
)
# A tree whose picture comes after some of the reports, and whose changes do not come, the first
# times.
SLOW = (
    COMMON
    + """
import sys

seconds, failures = float(sys.argv[1]), int(sys.argv[2])


class Viewer:
    def __init__(self, viewer):
        self.viewer, self.came = viewer, False

    async def next(self):
        global failures
        if not self.came:
            await asyncio.sleep(seconds)
        elif failures:
            failures -= 1
            raise CacheError("the picture of the cache failed")
        self.came = True
        return await self.viewer.next()

    def close(self):
        self.viewer.close()


async def main():
    engine, _ = fake_engine()
    async for output in engine.stream_all([request("first")]):
        pass
    watch, watched = engine.watch, []
    engine.watch = lambda *args, **named: watched.append(0) or Viewer(watch(*args, **named))
    router = RouterHandle()
    reporter = Reporter("one", engine, router)
    reporter.start()
    number = 0
    while not router.held():
        number += 1
        reporter.arrived(request(number))
        reporter.ended(request(number), None)
        await asyncio.sleep(0.01)
    print(router.held(), len(watched))
    await engine.flush_cache()
    while router.held():
        await asyncio.sleep(0.01)
    print(router.held(), len(watched))
    await reporter.close()
    await engine.close()

asyncio.run(asyncio.wait_for(main(), 120))
"""
)


@pytest.mark.slow
def test_a_replica_whose_engine_has_died_takes_its_leave(aside: Aside) -> None:
    assert aside.run(DYING).split() == ["True", "leave", "0"]


@pytest.mark.slow
def test_a_whole_tree_may_take_longer_than_requests(aside: Aside) -> None:
    assert aside.run(SLOW, "0.5", "0").split() == ["8", "1", "0", "1"]


@pytest.mark.slow
def test_a_tree_that_can_not_be_followed_is_looked_at_anew(aside: Aside) -> None:
    assert aside.run(SLOW, "0", "1").split() == ["8", "1", "0", "2"]
