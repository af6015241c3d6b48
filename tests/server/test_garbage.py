"""What requests leave for the collector of cycles, and when that runs."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Iterator

import httpx
import pytest

from radixlm.engine.engine_stats import EngineStats
from radixlm.server.http.envelope import Exchange
from radixlm.server.serve import full_searches_on_demand, search_when_quiet
from tests.server_support import fake_engine, live


@pytest.fixture(autouse=True)
def alone() -> Iterator[None]:
    """What other tests left, and all that is imported, is not searched."""
    gc.freeze()
    yield
    gc.freeze()


@pytest.mark.parametrize("stream", [False, True])
def test_a_request_that_is_over_is_freed_without_a_search(stream):
    engine, _ = fake_engine()
    body = {"prompt": "a", "max_tokens": 2, "stream": stream}
    with live(engine) as url, httpx.Client(base_url=url) as client:
        client.post("/v1/completions", json=body)
        gc.collect()
        gc.disable()
        try:
            for path in ("/v1/completions", "/generate", "/no/such/route"):
                client.post(path, json=body)
            messages = {"messages": [{"role": "user", "content": "a"}], "max_tokens": 2}
            for fields in ({"stream": stream}, {"stream": stream, "nonsense": 1}):
                client.post("/v1/messages", json={**messages, **fields})
                client.post("/v1/responses", json={"input": "a", "max_output_tokens": 2, **fields})
            client.get("/health")
            left = [item for item in gc.get_objects() if type(item) is Exchange]
            assert len(left) <= 1  # the last one's task may not have ended yet
        finally:
            gc.enable()


def test_what_was_there_is_left_out_and_no_full_search_comes_unasked():
    before = gc.get_threshold()
    left_out = gc.get_freeze_count()
    there = [[number] for number in range(1_000)]
    with full_searches_on_demand():
        assert gc.get_freeze_count() > left_out + len(there)
        assert gc.get_threshold()[:2] == before[:2]
        assert gc.get_threshold()[2] > 100_000
    assert gc.get_threshold() == before
    assert gc.get_freeze_count() == 0


def test_after_a_long_search_the_next_one_comes_late(monkeypatch):
    """So it stands still for a small share of the time only, however large the tree is."""
    searches = []

    def search() -> None:
        time.sleep(0.05)
        searches.append(1)

    async def run() -> None:
        searching = asyncio.create_task(search_when_quiet(EngineStats, every=0.001))
        while not searches:
            await asyncio.sleep(0)
        await asyncio.sleep(0.05)
        searching.cancel()

    monkeypatch.setattr(gc, "collect", search)
    asyncio.run(run())
    assert len(searches) == 1


@pytest.mark.parametrize(("under_way", "at_least_every", "searches"), [
    (0, 900.0, True),
    (10_000, 900.0, False),
    (10_000, 0.001, True),
])  # fmt: skip
def test_a_search_waits_until_few_requests_are_under_way(under_way, at_least_every, searches):
    looked = 0

    def counted() -> EngineStats:
        nonlocal looked
        looked += 1
        return EngineStats(running=under_way // 2, waiting=under_way // 2)

    async def run() -> None:
        searching = asyncio.create_task(search_when_quiet(counted, 0.001, at_least_every))
        while looked < 10:
            await asyncio.sleep(0.001)
        searching.cancel()

    with full_searches_on_demand():
        before = gc.get_stats()[2]["collections"]
        asyncio.run(run())
        assert (gc.get_stats()[2]["collections"] > before) is searches
