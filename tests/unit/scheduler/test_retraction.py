"""Who gives way when the pool is full."""

from __future__ import annotations

import pytest

from radixlm.cache import RadixCache
from radixlm.core.errors import CacheError
from radixlm.core.reports import Event, Retracted
from radixlm.scheduler.memory_guard import Retraction
from radixlm.scheduler.state import RequestState
from tests.engines import Bench, make_request

SHARED = [1] * 10


class Pool:
    """Running requests, by arrival."""

    def __init__(self) -> None:
        self.cache = RadixCache(500)
        self.states: list[RequestState] = []

    def run(self, prompt: list[int], priority: int = 0) -> RequestState:
        arrival = len(self.states)
        request = make_request(f"r{arrival}", prompt, priority=priority)
        state = RequestState(request, arrival)
        state.lease = self.cache.acquire(state.tokens, n_tokens=state.n_tokens)
        state.lease.extend(state.n_tokens - state.lease.cached)
        state.lease.commit(state.n_tokens)
        self.states.append(state)
        return state


def test_the_one_with_the_fewest_tokens_of_its_own_costs_least() -> None:
    pool = Pool()
    pool.run([9] * 3)
    own = pool.run([8] * 6)
    sharing = pool.run([*SHARED, 2, 2])
    pool.run([*SHARED, 3, 3, 3])
    retraction = Retraction(by_priority=False)
    assert retraction.pick(pool.states) is sharing
    assert own.lease is not None
    assert own.lease.own_size == 6


def test_of_equal_cost_the_youngest() -> None:
    pool = Pool()
    for n in range(4):
        pool.run([n] * 5)
    assert Retraction(by_priority=False).pick(pool.states) is pool.states[3]


def test_nobody_twice_in_a_row_while_there_are_others() -> None:
    pool = Pool()
    pool.run([7] * 9)
    dear = pool.run([8] * 8)
    cheap = pool.run([9] * 2)
    retraction = Retraction(by_priority=False)
    picks = [retraction.pick(pool.states) for _ in range(5)]
    assert picks == [cheap, dear, cheap, dear, cheap]


def test_the_oldest_is_spared() -> None:
    pool = Pool()
    oldest = pool.run([1])
    other = pool.run([2] * 50)
    retraction = Retraction(by_priority=False)
    assert retraction.pick([other, oldest]) is other
    assert retraction.pick([other, oldest]) is other
    with pytest.raises(CacheError, match="does not fit, though alone"):
        retraction.pick([oldest])


def test_the_least_important_first_and_the_most_important_oldest_is_spared() -> None:
    pool = Pool()
    low = pool.run([1] * 30, priority=1)
    high = pool.run([2], priority=2)
    high_too = pool.run([3], priority=2)
    retraction = Retraction(by_priority=True)
    assert retraction.pick(pool.states) is low
    assert retraction.pick([high, high_too]) is high_too
    assert Retraction(by_priority=False).pick(pool.states) is high_too


def test_below_a_priority_even_the_only_one_is_picked() -> None:
    pool = Pool()
    low = pool.run([1] * 30, priority=1)
    high = pool.run([2], priority=2)
    retraction = Retraction(by_priority=True)
    assert retraction.pick_below([low, high], 0) is None
    assert retraction.pick_below([low, high], 1) is low
    assert retraction.pick_below([low, high], 1) is low


def test_an_engine_retracts_nobody_twice_in_a_row_while_three_run() -> None:
    names: list[str] = []

    def sink(event: Event) -> None:
        if isinstance(event, Retracted):
            assert len(bench.scheduler.running) > 1
            others = len(bench.scheduler.running) > 2
            assert not (others and names and names[-1] == event.request_id)
            names.append(event.request_id)

    bench = Bench(40, policy="fcfs", sink=sink)
    requests = [make_request(f"r{n}", [n] * (4 + n % 3), 20) for n in range(8)]
    for request in requests:
        bench.core.add(request)
    outputs = bench.run()
    assert len(set(names)) > 3
    assert "r0" not in names
    for request in requests:
        assert list(outputs[request.request_id].token_ids) == bench.expected(request)


def test_nobody_is_admitted_in_a_step_in_which_somebody_gave_way() -> None:
    events: list[str] = []
    bench = Bench(40, policy="lpm", sink=lambda event: events.append(type(event).__name__))
    for n in range(8):
        bench.core.add(make_request(f"r{n}", [n] * 4, 20))
    steps = 0
    while bench.core.has_work:
        events.clear()
        bench.step()
        steps += "Retracted" in events
        assert not {"Retracted", "Scheduled"} <= set(events)
    assert steps > 3


def test_the_same_one_again_before_a_more_important_one() -> None:
    pool = Pool()
    low = pool.run([1] * 30, priority=0)
    mid = pool.run([2] * 3, priority=5)
    pool.run([3] * 3, priority=9)
    retraction = Retraction(by_priority=True)
    assert [retraction.pick(pool.states) for _ in range(3)] == [low, low, low]
    assert retraction.pick([mid, pool.states[2]]) is mid
