"""Many requests of one tenant that decode give way to another tenant's prompt."""

from __future__ import annotations

from radixlm.core.batch import ScheduledBatch
from radixlm.scheduler.fairness import MEMORY
from tests.engines import Bench, make_request
from tests.invariants import check

BUDGET = 16
STREAMS = 8


def _step(bench: Bench) -> dict[str, int]:
    """What the next step computes of each request."""
    batch: ScheduledBatch = bench.scheduler.schedule()
    bench.scheduler.update(batch, bench.runner.execute(batch), {})
    check(bench.cache)
    return {row.request.request_id: row.n_new for row in batch.rows}


def _decoding(tenant: str = "flood", streams: int = STREAMS, bench: Bench | None = None) -> Bench:
    """Requests of a tenant that have begun to decode, long answers before them."""
    bench = bench or Bench(4_000, budget=BUDGET, max_running=BUDGET)
    for number in range(streams):
        prompt = [number + 1, *tenant.encode()]
        bench.scheduler.add(make_request(f"{tenant}{number}", prompt, 200, tenant=tenant))
    for _ in range(20):
        _step(bench)
    return bench


def _ask(bench: Bench, tokens: int, name: str = "quiet") -> None:
    bench.scheduler.add(make_request(name, range(100, 100 + tokens), 4, tenant=name))


def test_half_of_an_even_share_goes_on_beside_another_tenants_prompt() -> None:
    bench = _decoding()
    _ask(bench, 24)
    first, second = _step(bench), _step(bench)
    assert first.pop("quiet") == second.pop("quiet") == 12
    assert len(first) == len(second) == BUDGET // 4
    assert not first.keys() & second.keys()
    assert len(_step(bench)) == STREAMS + 1


def test_a_prompt_that_is_running_already_is_given_way_to_as_well() -> None:
    bench = _decoding()
    _ask(bench, 40)
    assert [len(_step(bench)) for _ in range(5)] == [5, 5, 5, 5, STREAMS + 1]


def test_long_contexts_weigh_more() -> None:
    bench = Bench(4_000, budget=BUDGET, max_running=BUDGET)
    for number in range(4):
        prompt = [number + 1, *[7] * 512]
        bench.scheduler.add(make_request(f"long{number}", prompt, 200, tenant="flood"))
    while any(n_new > 1 for n_new in _step(bench).values()):
        pass
    _ask(bench, 60)
    seen = [_step(bench) for _ in range(4)]
    assert [len(step) for step in seen] == [2] * 4
    assert {name for step in seen for name in step} == {"quiet", *(f"long{n}" for n in range(4))}


def test_who_decodes_little_gives_way_to_nobody() -> None:
    bench = _decoding(streams=BUDGET // 4)
    _ask(bench, 40)
    assert all(len(_step(bench)) == BUDGET // 4 + 1 for _ in range(3))


def test_nobody_gives_way_to_its_like() -> None:
    bench = _decoding("flood", 6)
    _decoding("other", 6, bench)
    served = {name: bench.scheduler.fairness.served(name) for name in ("flood", "other")}
    least = min(served, key=lambda name: served[name])
    bench.scheduler.add(make_request("more", range(100, 140), 4, tenant=least))
    assert len(_step(bench)) == 6 + 6 + 1


def test_nobody_gives_way_to_a_tenant_that_was_served_more() -> None:
    bench = _decoding()
    bench.scheduler.add(make_request("quiet", [99] * 400, 4, tenant="quiet"))
    steps = [_step(bench) for _ in range(40)]
    first, *others = [len(step) for step in steps if step.get("quiet", 0) > 1]
    assert first < STREAMS + 1
    assert others[-1] == STREAMS + 1


def test_nobody_gives_way_to_a_prompt_that_has_no_room() -> None:
    bench = Bench(4_000, budget=BUDGET, max_running=STREAMS)
    _decoding(bench=bench)
    _ask(bench, 24)
    assert len(_step(bench)) == STREAMS


def test_one_tenant_gives_way_to_nobody() -> None:
    bench = _decoding()
    bench.scheduler.add(make_request("more", range(100, 140), 4, tenant="flood"))
    assert len(_step(bench)) == STREAMS + 1


def test_after_tenants_met_contexts_count_against_the_budget_for_a_while() -> None:
    bench = Bench(4_000, budget=BUDGET, max_running=BUDGET)

    def chunk() -> int:
        """Tokens that a prompt has beside two requests with 512 tokens of context each."""
        return next(n_new for n_new in _step(bench).values() if n_new > 1)

    for number in range(2):
        prompt = [number + 1, *[7] * 512]
        bench.scheduler.add(make_request(f"long{number}", prompt, 400, tenant="flood"))
    while any(n_new > 1 for n_new in _step(bench).values()):
        pass
    bench.scheduler.add(make_request("more", [9] * 300, 1, tenant="flood"))
    assert chunk() == BUDGET - 2
    _ask(bench, 1)
    _step(bench)
    bench.scheduler.abort("quiet")
    assert chunk() == BUDGET // 2
    bench.scheduler.turns.step += MEMORY
    assert chunk() == BUDGET - 2


def test_somebody_goes_on_however_small_the_share() -> None:
    bench = _decoding(streams=2, bench=Bench(4_000, budget=3, max_running=3))
    _ask(bench, 10)
    assert len(_step(bench)) == 2
