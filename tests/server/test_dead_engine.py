"""A server whose engine has died ends."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest

from radixlm.core.errors import EngineDeadError
from radixlm.engine.loop import Died
from radixlm.server.serve import end_with
from tests.server_support import fake_engine


def test_it_is_asked_to_end_when_its_engine_dies(caplog: pytest.LogCaptureFixture) -> None:
    engine, _ = fake_engine()
    server = SimpleNamespace(should_exit=False)

    async def die_after_a_moment() -> None:
        ending = asyncio.create_task(end_with(engine, server))
        await asyncio.sleep(0.1)
        assert not server.should_exit
        engine.client.put(Died(EngineDeadError("rank 1 of 2 is gone")))
        await asyncio.wait_for(ending, 60)

    asyncio.run(die_after_a_moment())
    assert server.should_exit
    assert "so the server ends: rank 1 of 2 is gone" in caplog.text
    asyncio.run(engine.close())
