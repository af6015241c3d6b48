"""Under `priority`, a request takes the place of running ones of far lower priority."""

from __future__ import annotations

import pytest

from radixlm.core.request import GenerateRequest
from tests.engines import Bench, make_request


def _bench(capacity: int = 200, *, max_running: int = 1, gap: int = 5) -> Bench:
    return Bench(
        capacity, policy="priority", max_running=max_running, preemption_threshold=gap, budget=64
    )


def _run(
    bench: Bench, before: list[GenerateRequest], after: list[GenerateRequest]
) -> dict[str, int]:
    """Add some, step twice, add others, run to the end: in which step each ended. Checks tokens."""
    ends: dict[str, int] = {}
    tokens: dict[str, list[int]] = {r.request_id: [] for r in [*before, *after]}
    for request in before:
        bench.core.add(request)
    step = 0
    while bench.core.has_work:
        for output in bench.step():
            tokens[output.request_id] += output.token_ids
            if output.finished:
                ends[output.request_id] = step
        step += 1
        if step == 2:
            for request in after:
                bench.core.add(request)
    for request in [*before, *after]:
        assert tokens[request.request_id] == bench.expected(request)
    return ends


@pytest.mark.parametrize(("gap", "preempted"), [(3, True), (4, True), (5, False)])
def test_only_a_gap_of_at_least_the_threshold_preempts(gap: int, preempted: bool) -> None:
    bench = _bench(gap=gap)
    low = make_request("low", [1] * 6, 20, priority=1)
    high = make_request("high", [2] * 6, 4, priority=5)
    ends = _run(bench, [low], [high])
    assert bench.scheduler.counters.preemptions == preempted
    assert (ends["high"] < ends["low"]) is preempted


def test_what_a_preempted_request_computed_is_not_computed_again() -> None:
    bench = _bench()
    low = make_request("low", [1] * 30, 20, priority=0)
    high = make_request("high", [2] * 6, 4, priority=9)
    _run(bench, [low], [high])
    counters = bench.scheduler.counters
    assert counters.preemptions == counters.retractions == 1
    assert counters.computed_tokens == (30 + 19) + (6 + 3)
    assert counters.readmitted_cached == counters.readmitted_tokens - 1


def test_as_many_are_preempted_as_are_needed_the_least_important_first() -> None:
    bench = _bench(40, max_running=3)
    lows = [make_request(f"low{n}", [n] * 8, 5, priority=n) for n in (2, 1)]
    kept = make_request("kept", [9] * 8, 4, priority=8)
    high = make_request("high", [7] * 16, 4, priority=10)
    ends = _run(bench, [*lows, kept], [high])
    assert bench.scheduler.counters.preemptions == 1
    assert ends["low2"] < ends["high"] <= ends["low1"]


def test_nothing_is_preempted_when_it_would_not_be_enough() -> None:
    bench = _bench(40, max_running=3)
    low = make_request("low", [1] * 8, 5, priority=0)
    equal = make_request("equal", [9] * 12, 12, priority=10)
    high = make_request("high", [7] * 30, 4, priority=10)
    _run(bench, [low, equal], [high])
    assert bench.scheduler.counters.preemptions == 0


def test_what_is_shared_with_the_victim_is_no_gain() -> None:
    """The victim's tokens are the first of what the other one needs: it locks them itself."""
    bench = _bench(28, max_running=3)
    low = make_request("low", [1] * 10, 4, priority=0)
    equal = make_request("equal", [9] * 6, 10, priority=10)
    high = make_request("high", [*[1] * 10, *[7] * 13], 2, priority=10)
    _run(bench, [low, equal], [high])
    assert bench.scheduler.counters.preemptions == 0


@pytest.mark.parametrize("policy", ["fcfs", "lpm"])
def test_other_orders_never_preempt(policy: str) -> None:
    bench = Bench(200, policy=policy, max_running=1, budget=64)  # type: ignore[arg-type]
    low = make_request("low", [1] * 6, 20)
    high = make_request("high", [2] * 6, 4, priority=99)
    ends = _run(bench, [low], [high])
    assert bench.scheduler.counters.preemptions == 0
    assert ends["low"] < ends["high"]


@pytest.mark.parametrize("shared", [True, False])
def test_victims_may_share_a_prefix_with_each_other(shared: bool) -> None:
    """What both of them hold is free once both give way."""
    bench = _bench(200, max_running=4, gap=1)
    prompts = [([1] if shared else [n]) * 60 for n in (2, 3)]
    low = [
        make_request(f"low{n}", [*prompt, 50 + n], 60, priority=0)
        for n, prompt in enumerate(prompts)
    ]
    ends = _run(bench, low, [make_request("high", [9] * 150, 4, priority=10)])
    assert ends["high"] < 10 < min(ends["low0"], ends["low1"])
    assert bench.scheduler.counters.preemptions == 2
