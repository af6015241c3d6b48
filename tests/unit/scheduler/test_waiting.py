"""What is known of those who wait, and who follows whom."""

from __future__ import annotations

from collections.abc import Hashable

import pytest

from radixlm.cache import Match, RadixTree
from radixlm.core.keys import KeyLike
from radixlm.core.reports import Event, Retracted, Scheduled
from tests.engines import Bench, make_request
from tests.invariants import check

SHARED = list(range(1, 21))


class Admissions:
    """The order in which requests were admitted, with what was cached of each."""

    def __init__(self) -> None:
        self.cached: dict[str, int] = {}

    def __call__(self, event: Event) -> None:
        if isinstance(event, Scheduled):
            self.cached[event.request_id] = event.start


def test_what_was_evicted_since_is_noticed_before_it_decides() -> None:
    """x matched 8 tokens and y 4 when they came; until they are next, 5 of x's are evicted."""
    admitted = Admissions()
    bench = Bench(24, policy="lpm", max_running=1, sink=admitted)
    for token, length in ((7, 8), (8, 4)):
        bench.core.add(make_request(f"warm {token}", [token] * length, 1))
    bench.run()
    bench.core.add(make_request("long", [9] * 4, 14))
    bench.step()
    bench.core.add(make_request("x", [*[7] * 8, 1], 1))
    bench.core.add(make_request("y", [*[8] * 4, 1], 1))
    bench.run()
    assert list(admitted.cached)[3:] == ["y", "x"]
    assert admitted.cached["y"] == 4
    assert admitted.cached["x"] < 4


def test_when_the_one_that_computes_is_aborted_one_follower_takes_over() -> None:
    admitted = Admissions()
    bench = Bench(200, budget=4, max_running=4, sink=admitted)
    for n in range(3):
        bench.core.add(make_request(f"r{n}", [*SHARED, 50 + n], 2))
    bench.step()
    assert len(bench.scheduler.running) == 1
    bench.core.abort("r0")
    bench.step()
    assert len(bench.scheduler.running) == 1
    bench.run()
    assert admitted.cached == {"r0": 0, "r1": 4, "r2": 20}
    assert bench.scheduler.counters.computed_tokens == 4 + 17 + 1 + 2


def test_when_the_one_that_computes_is_retracted_nobody_waits_for_it() -> None:
    retracted: list[int] = []

    def sink(event: Event) -> None:
        if isinstance(event, Retracted) and event.request_id == "new0":
            retracted.append(event.computed)

    bench = Bench(25, budget=4, policy="fcfs", sink=sink)
    olds = [make_request(f"old{n}", [100 + n], 20) for n in range(2)]
    news = [make_request(f"new{n}", [*SHARED, 50 + n], 4) for n in range(3)]
    for request in [*olds, *news]:
        bench.core.add(request)
    for _ in range(3):
        bench.step()
    assert [state.follows is not None for state in bench.scheduler.waiting] == [True, True]
    outputs = bench.run()
    assert retracted
    assert retracted[0] < len(SHARED)
    for request in news:
        assert list(outputs[request.request_id].token_ids) == bench.expected(request)


def test_an_aborted_follower_leaves_nothing_behind() -> None:
    bench = Bench(200, budget=4)
    for n in range(4):
        bench.core.add(make_request(f"r{n}", [*SHARED, 50 + n], 2))
    bench.step()
    assert [state.follows is not None for state in bench.scheduler.waiting] == [True] * 3
    for n in (2, 1, 3):
        bench.core.abort(f"r{n}")
    check(bench.scheduler)
    bench.run()
    check(bench.scheduler)


def test_what_is_computed_already_is_taken_and_not_followed() -> None:
    bench = Bench(200, budget=8, max_running=4)
    bench.core.add(make_request("wide", [*SHARED[:10], *[30] * 20], 2))
    bench.step()
    bench.core.add(make_request("near", [*SHARED[:8], 99], 2))
    bench.core.add(make_request("far", [*SHARED[:10], 99], 2))
    [wide] = bench.scheduler.running
    states = {state.request.request_id: state for state in bench.scheduler.waiting}
    assert states["near"].follows is None
    assert states["far"].follows is wide
    bench.step()
    assert states["far"].follows is None
    outputs = bench.run()
    assert outputs["near"].cached_tokens == 8
    assert outputs["far"].cached_tokens == 10


def test_one_whose_prefix_was_evicted_follows_who_computes_it_again() -> None:
    """Both believe that their 8 tokens are cached; the first one finds out that they are not."""
    bench = Bench(200, budget=16, max_running=4)
    bench.core.add(make_request("warmer", [7] * 8, 1))
    bench.run()
    bench.core.add(make_request("long", [9] * 32, 4))
    bench.step()
    bench.core.add(make_request("first", [*[7] * 8, 1], 4, tenant="a"))
    bench.core.add(make_request("second", [*[7] * 8, 2], 4, tenant="b"))
    bench.cache.flush()
    bench.step()
    bench.step()
    running = {state.request.request_id for state in bench.scheduler.running}
    assert running == {"long", "first"}
    assert bench.run()["second"].cached_tokens == 8


def test_nobody_follows_when_the_cache_is_off() -> None:
    bench = Bench(400, budget=4, enabled=False)
    for n in range(3):
        bench.core.add(make_request(f"r{n}", SHARED, 2))
    bench.run()
    assert bench.scheduler.counters.computed_tokens == 3 * 21


def test_followers_are_let_go_at_what_they_share_and_not_before() -> None:
    bench = Bench(200, budget=4, max_running=1)
    bench.core.add(make_request("leader", [*SHARED, 50], 1))
    for name, shared in (("near", 4), ("far", 12), ("gone", 12)):
        bench.core.add(make_request(name, [*SHARED[:shared], 99], 1))
    states = {state.request.request_id: state for state in bench.scheduler.waiting}
    followed = []
    for _ in range(3):
        bench.step()
        check(bench.scheduler)
        followed.append([states[name].follows is states["leader"] for name in ("near", "far")])
        bench.core.abort("gone")
    assert followed == [[False, True], [False, True], [False, False]]
    assert (states["near"].cached, states["far"].cached) == (4, 12)
    bench.run()
    check(bench.scheduler)


def test_a_request_is_matched_once_from_its_arrival_to_its_admission(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench = Bench(200)
    bench.core.add(make_request("warm", SHARED, 1))
    bench.run()
    matched: list[int] = []
    match_prefix = RadixTree.match_prefix

    def spy(tree: RadixTree, key: KeyLike, namespace: Hashable = None) -> Match:
        if tree is bench.cache.tree:
            matched.append(len(key))
        return match_prefix(tree, key, namespace)

    monkeypatch.setattr(RadixTree, "match_prefix", spy)
    bench.core.add(make_request("next", [*SHARED, 99], 1))
    bench.scheduler.schedule()
    assert matched == [len(SHARED)]
    [state] = bench.scheduler.running
    assert state.cached_tokens == len(SHARED)
