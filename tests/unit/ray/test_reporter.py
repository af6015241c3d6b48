"""What a replica tells the router, in a process of its own: Ray warns, and keeps threads."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("ray", reason="Ray has no wheel for this platform")
ROOT = Path(__file__).parents[3]
DYING = """
import asyncio
from radixlm.core.errors import EngineDeadError
from radixlm.engine.loop import Died
from radixlm.ray.reporter import Reporter
from tests.server_support import fake_engine

calls = []

class Desk:
    async def ask(self, method, *arguments):
        calls.append(method)
        return True

    async def leave(self, name):
        calls.append("leave")

async def main():
    engine, _ = fake_engine()
    reporter = Reporter("one", engine, Desk())
    reporter.start()
    await asyncio.sleep(0.1)
    engine.client.put(Died(EngineDeadError("rank 1 of 2 is gone")))
    while "leave" not in calls:
        await asyncio.sleep(0.1)
    count = len(calls)
    await asyncio.sleep(2)
    print("report" in calls, calls[-1], len(calls) - count)
    await engine.close()

asyncio.run(asyncio.wait_for(main(), 30))
"""


@pytest.mark.slow
def test_a_replica_whose_engine_has_died_takes_its_leave() -> None:
    done = subprocess.run(  # noqa: S603
        [sys.executable, "-c", DYING], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.stdout.split() == ["True", "leave", "0"], done.stderr
