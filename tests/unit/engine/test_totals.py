"""Sums over engines of which some are gone."""

from __future__ import annotations

from radixlm.core.misses import MissReason
from radixlm.engine import EngineStats
from radixlm.engine.totals import Totals


def stats(cached: int) -> EngineStats:
    ended = {MissReason.NEW: 1}
    sizes = {"kv_capacity": 100, "kv_free": 40, "kv_private": 60, "running": 2}
    return EngineStats(prompt_tokens=10, cached_tokens=cached, steps=5, endings=ended, **sizes)


def test_of_an_engine_that_is_gone_what_it_did_still_counts():
    totals = Totals()
    totals.take({"one": stats(cached=2), "other": stats(cached=6)})
    before = totals.now
    assert (before.kv_capacity, before.cached_tokens, before.running) == (200, 8, 4)

    totals.take({"one": stats(cached=3)})
    after = totals.now
    assert (after.kv_capacity, after.kv_private, after.running) == (100, 60, 2)
    assert (after.prompt_tokens, after.cached_tokens, after.steps) == (20, 9, 10)
    assert after.endings == {MissReason.NEW: 2}
    assert after.hit_rate == 9 / 20

    totals.take({"one": stats(cached=3), "other": stats(cached=7)})
    assert totals.now.cached_tokens == 10


def test_of_more_engines_than_are_kept_by_name_none_is_lost():
    totals = Totals()
    for number in range(1_100):
        totals.take({str(number): stats(cached=1)})
    assert (totals.now.cached_tokens, totals.now.kv_capacity) == (1_100, 100)
