"""Whose turn it is."""

from __future__ import annotations

import pytest

from radixlm.core.reports import Event, Scheduled
from radixlm.scheduler.fairness import MOST_REMEMBERED, TokenFairness
from tests.engines import ORDERS, Bench, make_request


def _admit(fairness: TokenFairness, tenant: str, tokens: int) -> None:
    fairness.charge(tenant, tokens)
    fairness.admit(tenant)


def test_served_counts_what_is_computed() -> None:
    fairness = TokenFairness()
    fairness.enter("a")
    _admit(fairness, "a", 10)
    fairness.charge("a", 1)
    assert fairness.served("a") == 11


def test_who_comes_later_starts_where_the_others_are() -> None:
    fairness = TokenFairness()
    fairness.enter("a")
    for _ in range(3):
        fairness.enter("a")
        _admit(fairness, "a", 100)
    fairness.charge("a", 7)
    fairness.enter("late")
    assert fairness.served("late") == 300


def test_idle_tenants_save_nothing() -> None:
    fairness = TokenFairness()
    fairness.enter("b")
    fairness.leave("b")
    fairness.enter("a")
    fairness.enter("a")
    _admit(fairness, "a", 1_000)
    _admit(fairness, "a", 1_000)
    fairness.enter("b")
    assert fairness.served("b") == 2_000


def test_debts_stay_until_the_others_have_caught_up() -> None:
    fairness = TokenFairness()
    fairness.enter("a")
    fairness.enter("b")
    _admit(fairness, "b", 100)
    fairness.charge("b", 200)
    fairness.leave("b")
    fairness.enter("b")
    assert fairness.served("b") == 300
    fairness.leave("b")
    for _ in range(5):
        _admit(fairness, "a", 100)
    fairness.enter("b")
    assert fairness.served("b") == 500


def test_what_one_is_given_while_nobody_else_asks_is_held_against_nobody() -> None:
    fairness = TokenFairness()
    fairness.enter("a")
    _admit(fairness, "a", 10)
    fairness.charge("a", 8_000)
    fairness.leave("a")
    for tenant in ("a", "b"):
        fairness.enter(tenant)
    assert fairness.served("a") == fairness.served("b")


def test_who_has_no_request_any_more_is_forgotten() -> None:
    fairness = TokenFairness()
    fairness.enter("always there")
    for n in range(3 * MOST_REMEMBERED):
        fairness.enter(f"t{n}")
        fairness.charge(f"t{n}", n % 2)
        fairness.leave(f"t{n}")
    assert list(fairness._served) == list(fairness._active) == ["always there"]
    assert len(fairness._ahead) == MOST_REMEMBERED


@pytest.mark.parametrize("policy", ["fcfs", "lpm"])
def test_endless_new_tenants_keep_nobody_waiting(policy: str) -> None:
    """As a client with a fresh key for each request would."""
    names: list[str] = []

    def sink(event: Event) -> None:
        if isinstance(event, Scheduled):
            names.append(event.request_id)

    bench = Bench(2_000, policy=policy, max_running=1, budget=64, sink=sink)  # type: ignore[arg-type]
    for n in range(2):
        bench.core.add(make_request(f"mine{n}", [1, 2, 3 + n], 2, tenant="zzz"))
    for n in range(60):
        bench.core.add(make_request(f"new{n}", [n], 2, tenant=f"aaa{n}"))
        bench.step()
    assert names.index("mine0") == 0
    assert names.index("mine1") < 12


def test_only_what_is_computed_is_charged() -> None:
    bench = Bench(2_000, max_running=1, budget=8)
    bench.core.add(make_request("other", [9], 1, tenant="other"))
    bench.core.add(make_request("long", range(200), 1, tenant="long"))
    bench.step()
    bench.step()
    bench.core.abort("long")
    assert bench.scheduler.counters.computed_tokens < 20
    bench.core.add(make_request("again", [1], 1, tenant="long"))
    assert bench.scheduler.fairness.served("long") < 20


@pytest.mark.slow
def test_answers_count_as_prompts_do() -> None:
    """Equal prompts, but one tenant's answers are long: 10 + 2 tokens against 10 + 26."""
    names: list[str] = []

    def sink(event: Event) -> None:
        if isinstance(event, Scheduled):
            names.append(event.request_id[0])

    bench = Bench(2_000, policy="fcfs", max_running=1, budget=64, sink=sink)
    for n in range(30):
        bench.core.add(make_request(f"chatty{n}", [n] * 10, 26, tenant="chatty"))
        bench.core.add(make_request(f"terse{n}", [100 + n] * 10, 2, tenant="terse"))
    bench.run()
    assert names[:32].count("t") == pytest.approx(24, abs=1)


@pytest.mark.parametrize("policy", ORDERS)
def test_two_tenants_are_admitted_in_turn_by_tokens(policy: str) -> None:
    """One tenant's prompts are three times as long: it gets a third as many."""
    names: list[str] = []

    def sink(event: Event) -> None:
        if isinstance(event, Scheduled):
            names.append(event.request_id[0])

    bench = Bench(2_000, policy=policy, max_running=1, budget=64, sink=sink)  # type: ignore[arg-type]
    for n in range(30):
        bench.core.add(make_request(f"long{n}", [n] * 29, 1, tenant="long"))
    for n in range(30):
        bench.core.add(make_request(f"short{n}", [100 + n] * 9, 1, tenant="short"))
    bench.run()
    first = names[:32]
    assert first.count("s") == pytest.approx(24, abs=1)
    for at in range(4, 32, 4):
        assert names[:at].count("l") == pytest.approx(at / 4, abs=1)


@pytest.mark.slow
def test_who_sends_one_large_request_at_a_time_does_not_escape_its_debt() -> None:
    """Its tenant has no request for a moment, whenever one ends and before the next one comes."""
    bench = Bench(2_000, max_running=1, budget=64)
    computed = {"large": 0, "small": 0}
    sizes = {"large": 200, "small": 20}
    for n in range(300):
        bench.core.add(make_request(f"small{n}", [n, *range(19)], 1, tenant="small"))
    n = 0
    bench.core.add(make_request("large0", [7, n, *range(198)], 1, tenant="large"))
    while sum(computed.values()) < 4_000:
        for output in bench.step():
            tenant = output.request_id.rstrip("0123456789")
            computed[tenant] += sizes[tenant]
            if tenant == "large":
                n += 1
                key = [7, n, *range(198)]
                bench.core.add(make_request(f"large{n}", key, 1, tenant="large"))
    assert abs(computed["large"] - computed["small"]) <= 2 * sizes["large"]


def test_aborted_requests_leave_no_tenant_behind() -> None:
    bench = Bench(max_running=1)
    for n in range(6):
        bench.core.add(make_request(f"r{n}", [n], tenant=f"t{n % 3}"))
    bench.step()
    for n in range(6):
        bench.core.abort(f"r{n}")
    assert not bench.core.has_work
    assert len(bench.scheduler.fairness) == 0
