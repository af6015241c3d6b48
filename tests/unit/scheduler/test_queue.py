"""What the waiting queue keeps: no more than what waits, however long it is used."""

from __future__ import annotations

import pytest

from radixlm.scheduler import make_order
from radixlm.scheduler.fairness import TokenFairness
from radixlm.scheduler.queue import SLACK, TenantQueue, WaitingQueue
from radixlm.scheduler.state import RequestState
from tests.engines import ORDERS, make_request


def _state(arrival: int, tenant: str = "") -> RequestState:
    return RequestState(make_request(f"r{arrival}", [1, 2, 3], tenant=tenant), arrival)


@pytest.mark.parametrize("order", ORDERS)
def test_a_line_forgets_what_does_not_wait_any_more(order: str) -> None:
    line = TenantQueue(make_order(order), bound=1_000)  # type: ignore[arg-type]
    stuck = _state(0)
    line.push(stuck)
    for arrival in range(1, 3_000):
        state = _state(arrival)
        line.push(state)
        for cached in range(3):
            state.cached = cached
            line.rank(state)
        line.remove(state, admitted=arrival < 500)
    assert line.size == 1
    assert line.entries <= 2 * (2 + SLACK) + 1
    line.remove(stuck, admitted=False)
    assert line.head() is None
    assert line.entries <= 2 + SLACK


def test_a_line_forgets_those_who_came_back_and_are_gone() -> None:
    line = TenantQueue(make_order("fcfs"), bound=1_000)
    oldest = _state(0)
    oldest.returned = True
    line.push(oldest)
    for arrival in range(1, 3_000):
        state = _state(arrival)
        state.returned = True
        line.push(state)
        line.remove(state, admitted=False)
    assert line.entries <= 2 + SLACK
    assert line.head() is oldest


def test_overtakers_are_counted_up_to_the_bound_only() -> None:
    line = TenantQueue(make_order("lof"), bound=5)
    oldest = _state(0)
    line.push(oldest)
    for arrival in range(1, 2_000):
        line.push(_state(arrival))
        head = line.head()
        assert head is not None
        line.remove(head, admitted=True)
        assert len(line.overtakers) <= 5


def test_the_queue_forgets_lines_of_tenants_who_come_and_go_behind_one_who_waits() -> None:
    fairness = TokenFairness()
    queue = WaitingQueue(make_order("fcfs"), fairness, 1_000)
    fairness.enter("a")
    stuck = _state(0, "a")
    queue.push(stuck)
    for arrival in range(1, 3_000):
        state = _state(arrival, "b")
        fairness.enter("b")
        queue.push(state)
        assert queue.head() is stuck
        queue.remove(state, admitted=False)
        fairness.leave("b")
    [level] = queue.levels.values()
    assert len(level.turns) <= 2 + SLACK
    queue.remove(stuck, admitted=True)
    assert queue.levels == {}


def test_the_order_decides_when_nobody_came_back_or_waited_too_long() -> None:
    line = TenantQueue(make_order("shortest-prefill-first"), bound=100)
    states = [_state(arrival) for arrival in range(3)]
    for state, cached in zip(states, (0, 2, 1), strict=True):
        state.cached = cached
        line.push(state)
    heads = []
    while (head := line.head()) is not None:
        heads.append(head.arrival)
        line.remove(head, admitted=True)
    assert heads == [1, 2, 0]


def test_one_who_follows_in_its_turn_lets_nobody_overtake() -> None:
    line = TenantQueue(make_order("lof"), bound=2)
    leader = _state(99)
    oldest = _state(0)
    line.push(oldest)
    oldest.follows = leader
    line.rank(oldest)
    for arrival in (1, 2):
        line.push(_state(arrival))
        head = line.head()
        assert head is not None
        line.remove(head, admitted=True)
    line.push(_state(3))
    assert line.head() is None
    oldest.follows = None
    line.rank(oldest)
    assert line.head() is oldest
