"""Must show 4: far more long answers than the pool holds."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from radixlm.core.config import SchedulePolicy
from radixlm.core.request import FinishReason
from radixlm.scheduler import Counters
from tests.engines import EACH_ORDER, Bench, make_request
from tests.invariants import check

PROMPT = 100


@dataclass(frozen=True)
class Load:
    """So many requests, of which the pool holds so many at their full length."""

    n_requests: int
    max_tokens: int
    n_fit: int

    @property
    def must_be_computed(self) -> int:
        return self.n_requests * (PROMPT + self.max_tokens - 1)


def _work(
    load: Load,
    policy: SchedulePolicy = "lpm",
    *,
    conservativeness: float = 1.0,
    enabled: bool = True,
    after_short: int = 0,
) -> float:
    """Run it to the end and check it; tokens computed / tokens that must be computed.

    after_short: so many requests come before, which end after a few tokens: that is what the
    scheduler expects of the others then.
    """
    capacity = load.n_fit * (PROMPT + load.max_tokens)
    bench = Bench(
        capacity,
        policy=policy,
        budget=256,
        max_running=load.n_requests,
        conservativeness=conservativeness,
        enabled=enabled,
        chain=True,
    )
    for n in range(after_short):
        ends = frozenset(range(128))
        bench.core.add(make_request(f"s{n}", [n] * 10, load.max_tokens, stop_token_ids=ends))
    bench.run()
    bench.scheduler.counters = Counters()
    requests = [
        make_request(f"r{n}", [n] * PROMPT, load.max_tokens) for n in range(load.n_requests)
    ]
    for request in requests:
        bench.scheduler.add(request)
    tokens: dict[str, list[int]] = {request.request_id: [] for request in requests}
    counters, steps, checked = bench.scheduler.counters, 0, -1
    while bench.scheduler.has_work:
        before = counters.computed_tokens
        batch = bench.scheduler.schedule()
        for news in bench.scheduler.update(batch, bench.runner.execute(batch), {}):
            tokens[news.request_id] += news.token_ids
            assert news.finish_reason in (None, FinishReason.LENGTH)
        assert counters.computed_tokens > before, "a step without progress"
        steps += 1
        if counters.retractions // 20 != checked:
            checked = counters.retractions // 20
            check(bench.cache)
    check(bench.cache)
    for request in requests:
        assert tokens[request.request_id] == bench.expected(request)
    ratio = counters.computed_tokens / load.must_be_computed
    kept = "kept" if enabled else "dropped"
    print(
        f"{policy:24} {load.n_requests} x {load.max_tokens}, pool for {load.n_fit}, "
        f"conservativeness {conservativeness}, {after_short} short ones before, "
        f"retracted KV {kept:7}: work {ratio:5.3f}, {counters.retractions:3} retractions, "
        f"{steps} steps"
    )
    return ratio


SMALL = Load(16, 200, 4)
MANY = Load(64, 500, 8)
LARGE = Load(64, 2_000, 8)


@EACH_ORDER
def test_a_small_pool_costs_little_work(policy: SchedulePolicy) -> None:
    kept = _work(SMALL, policy)
    dropped = _work(SMALL, policy, enabled=False)
    assert kept <= 1.2
    assert kept <= dropped


@pytest.mark.slow
def test_no_livelock_when_nothing_is_reserved() -> None:
    kept = _work(SMALL, conservativeness=0.0)
    dropped = _work(SMALL, conservativeness=0.0, enabled=False)
    assert kept < dropped


def test_short_answers_before_teach_the_wrong_thing_for_a_while_only() -> None:
    assert _work(SMALL, after_short=100) <= 1.3


@pytest.mark.slow
def test_64_answers_of_2000_tokens_in_a_pool_for_8() -> None:
    kept = _work(LARGE)
    dropped = _work(LARGE, enabled=False)
    assert kept <= 1.2
    assert kept <= dropped


@pytest.mark.slow
def test_64_answers_that_nobody_expected() -> None:
    _work(MANY, conservativeness=0.0)
    assert _work(MANY, after_short=200) <= 1.3
