"""What is reserved for those who run, and how the guard learns how much that must be."""

from __future__ import annotations

import pytest

from radixlm.cache import RadixCache
from radixlm.scheduler.memory_guard import (
    FIRST_GUESS,
    LEARNING_RATE,
    LINGER_STEPS,
    STEPS_AHEAD,
    MemoryGuard,
)
from radixlm.scheduler.state import RequestState
from tests.engines import Bench, make_request


def _running(
    cache: RadixCache, prompt: list[int], max_tokens: int, *, output: int = 0, name: str = "r"
) -> RequestState:
    """A request whose prompt is committed and that has slots for all it generated."""
    state = RequestState(make_request(name, prompt, max_tokens), 0)
    lease = cache.acquire(state.tokens, state.request.namespace, n_tokens=state.n_tokens)
    lease.extend(state.n_tokens - lease.cached)
    lease.commit(state.n_tokens)
    for _ in range(output):
        state.extend([0])
        lease.extend(1)
    state.lease = lease
    return state


def _waiting(prompt: list[int], max_tokens: int) -> RequestState:
    return RequestState(make_request("new", prompt, max_tokens), 1)


def _admits(guard: MemoryGuard, cache: RadixCache, state: RequestState) -> bool:
    return guard.admits(state, cache.match(state.known, state.request.namespace))


def test_the_only_request_is_admitted_whatever_it_is_expected_to_need() -> None:
    cache = RadixCache(20, pin_budget=0)
    guard = MemoryGuard(cache, 4.0)
    guard.begin([])
    assert _admits(guard, cache, _waiting([1] * 10, 10))


@pytest.mark.parametrize(("capacity", "fits"), [(37, False), (38, True)])
def test_what_is_expected_of_running_and_new_requests_is_kept_free(
    capacity: int, fits: bool
) -> None:
    """Running: 10 + 4 are there, half of the other 16 to come. New: 6, and half of 20."""
    cache = RadixCache(capacity, pin_budget=0)
    guard = MemoryGuard(cache, 1.0)
    guard.begin([_running(cache, [1] * 10, 20, output=4)])
    assert guard.expected_share == FIRST_GUESS
    assert _admits(guard, cache, _waiting([2] * 6, 20)) is fits


def test_conservativeness_0_reserves_nothing_but_what_is_known() -> None:
    cache = RadixCache(16, pin_budget=0)
    guard = MemoryGuard(cache, 0.0)
    guard.begin([_running(cache, [1] * 10, 6)])
    assert guard.expected_share == 0.0
    assert _admits(guard, cache, _waiting([2] * 6, 10))
    assert not _admits(guard, cache, _waiting([2] * 7, 9))


def test_conservativeness_never_reserves_more_than_is_allowed() -> None:
    assert MemoryGuard(RadixCache(16), 100.0).expected_share == 1.0


def test_shared_tokens_count_once() -> None:
    """12 of the new one's 14 are locked by the running one: 2 are needed, and there are 2."""
    cache = RadixCache(15, pin_budget=0)
    guard = MemoryGuard(cache, 0.0)
    guard.begin([_running(cache, [1] * 12, 1, output=1)])
    assert _admits(guard, cache, _waiting([*[1] * 12, 2, 3], 1))
    assert not _admits(guard, cache, _waiting([*[1] * 12, 2, 3, 4], 1))
    assert not _admits(guard, cache, _waiting([2, 3, 4], 1))


def test_what_is_cached_and_evictable_is_room_but_not_for_who_uses_it() -> None:
    cache = RadixCache(20, pin_budget=0)
    gone = _running(cache, [2] * 8, 1)
    assert gone.lease is not None
    gone.lease.release()
    guard = MemoryGuard(cache, 0.0)
    guard.begin([_running(cache, [1] * 10, 1)])
    assert _admits(guard, cache, _waiting([3] * 10, 1))
    assert _admits(guard, cache, _waiting([*[2] * 8, 3, 4], 1))
    assert not _admits(guard, cache, _waiting([*[2] * 8, 3, 4, 5], 1))


def test_pages_are_rounded_up() -> None:
    cache = RadixCache(16, page_size=4, pin_budget=0)
    guard = MemoryGuard(cache, 0.0)
    guard.begin([_running(cache, [1] * 8, 1)])
    assert _admits(guard, cache, _waiting([2] * 8, 1))
    assert not _admits(guard, cache, _waiting([2] * 9, 1))


def test_the_share_follows_what_requests_have_used() -> None:
    guard = MemoryGuard(RadixCache(64), 1.0)
    short = RequestState(make_request("short", [1], 20), 0)
    short.extend([0])
    guard.learn_from_end(short)
    assert guard.expected_share == pytest.approx(
        FIRST_GUESS + LEARNING_RATE * (1 / 20 - FIRST_GUESS)
    )
    for _ in range(200):
        guard.learn_from_end(short)
    assert guard.expected_share == pytest.approx(1 / 20, rel=1e-3)


def test_a_retraction_raises_the_share_and_never_lowers_it() -> None:
    cache = RadixCache(2_000, pin_budget=0)
    guard = MemoryGuard(cache, 1.0)
    early = _running(cache, [1] * 4, 500, output=10, name="early")
    guard.learn_from_retraction([early])
    assert guard.expected_share == FIRST_GUESS
    late = _running(cache, [2] * 4, 500, output=450, name="late")
    guard.learn_from_retraction([late])
    assert guard.expected_share == pytest.approx((450 + STEPS_AHEAD) / 500)
    guard.learn_from_retraction([early, late])
    assert guard.expected_share == pytest.approx((450 + STEPS_AHEAD) / 500)
    guard.learn_from_retraction([])


@pytest.mark.slow
def test_an_engine_learns_to_retract_less() -> None:
    """Everybody uses all that is allowed: at first half is expected, so that some are retracted."""
    bench = Bench(60, conservativeness=1.0, policy="fcfs")
    retractions = []
    for turn in range(12):
        for n in range(8):
            bench.core.add(make_request(f"{turn}.{n}", [turn * 8 + n] * 4, 16))
        before = bench.scheduler.counters.retractions
        bench.run()
        retractions.append(bench.scheduler.counters.retractions - before)
    assert retractions[0] > 0
    assert sum(retractions[-4:]) == 0


def test_reserves_keep_nobody_out() -> None:
    """Slots laid aside for a running request are there for one that waits."""
    ends = []
    for reserve in (0, 12):
        bench = Bench(100, policy="fcfs", budget=64, reserve=reserve)
        bench.core.add(make_request("a", [1] * 10, 40))
        bench.step()
        bench.core.add(make_request("b", [2] * 80, 2))
        steps = 0
        while bench.scheduler.has_work and "b" not in [o.request_id for o in bench.step()]:
            steps += 1
        ends.append(steps)
    assert ends[0] == ends[1] < 5


def _chat(next_turn_after: int | None) -> tuple[Bench, list[int]]:
    """One runs for long, one ends, one waits that fits only in what it leaves behind. The next turn
    of the one that ended comes so many steps later. Gives the steps in which the last one waited.
    """
    bench = Bench(100, policy="lpm", budget=64)
    bench.core.add(make_request("runs", [1] * 10, 30))
    bench.core.add(make_request("turn1", [2] * 40, 2))
    answer = [token for _ in range(2) for o in bench.step() for token in o.token_ids][-1:]
    bench.core.add(make_request("waits", [3] * 50, 2))
    waited = []
    for step in range(12):
        if step == next_turn_after:
            bench.core.add(make_request("turn2", [*[2] * 40, *answer, 5], 2))
        bench.step()
        waited.append(any(s.request.request_id == "waits" for s in bench.scheduler.waiting))
    return bench, [step for step, waits in enumerate(waited) if waits]


def test_what_one_leaves_behind_is_kept_for_its_next_turn() -> None:
    for after in (1, LINGER_STEPS):
        bench, _ = _chat(after)
        assert bench.scheduler.counters.cached_tokens >= 40


def test_but_only_for_some_steps() -> None:
    _, waited = _chat(None)
    assert waited == list(range(LINGER_STEPS))
    bench, _ = _chat(LINGER_STEPS + 2)
    assert bench.scheduler.counters.cached_tokens < 40


def test_nothing_is_kept_from_one_who_would_be_alone() -> None:
    bench = Bench(100, budget=64)
    bench.core.add(make_request("ends", [2] * 60, 1))
    bench.step()
    bench.core.add(make_request("next", [3] * 60, 1))
    assert [output.request_id for output in bench.step()] == ["next"]
