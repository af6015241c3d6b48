"""Must show 3: one tenant floods, the other's wait stays within twice what it is alone."""

from __future__ import annotations

from collections.abc import Callable
from statistics import mean

from radixlm.core.config import SchedulePolicy
from radixlm.core.request import GenerateRequest
from tests.engines import EACH_ORDER, Bench, make_request
from tests.invariants import check

BUDGET = 32
OWN = 40
OUT = 4
FLOOD = 500
WARM = [200] * 24
# Tokens that one request takes: the last token of its answer is never computed.
COST = OWN + OUT - 1


def _modest(n: int) -> GenerateRequest:
    own = [1, n % 256, n // 256, *(255 - n * i % 50 for i in range(OWN - 3))]
    return make_request(f"modest{n}", own, OUT, tenant="modest")


def _flooding(n: int) -> GenerateRequest:
    """As much to compute as a modest one, but every order would prefer it: its prefix is cached
    and shared by many, its answer a bit longer and its prompt as much shorter.
    """
    own = [n % 256, n // 256, *(n * i % 50 for i in range(OWN - 3))]
    return make_request(f"flood{n}", [*WARM, *own], OUT + 1, tenant="flood")


def _waits(policy: SchedulePolicy, arrivals: list[int], *, flood: bool) -> list[int]:
    """Steps from arrival to the end of the answer, for every modest request."""
    bench = Bench(8_192, policy=policy, max_running=BUDGET, budget=BUDGET, chain=True)
    bench.core.add(make_request("warmer", WARM, 1, tenant="flood"))
    bench.run()
    flooding = 0
    if flood:
        for _ in range(FLOOD):
            bench.core.add(_flooding(flooding))
            flooding += 1
        for _ in range(20):
            bench.core.step()
    waits: dict[str, int] = {}
    step = sent = 0
    while len(waits) < len(arrivals):
        while sent < len(arrivals) and arrivals[sent] <= step:
            bench.core.add(_modest(sent))
            sent += 1
        if flood:
            bench.core.add(_flooding(flooding))
            flooding += 1
        step += 1
        for output in bench.core.step():
            if output.finished and output.request_id.startswith("modest"):
                arrival = arrivals[int(output.request_id.removeprefix("modest"))]
                waits[output.request_id] = step - arrival
    assert len(bench.scheduler.waiting) > 300 or not flood
    return list(waits.values())


def _compare(policy: SchedulePolicy, arrivals: list[int], name: str) -> tuple[list[int], list[int]]:
    alone, flooded = (_waits(policy, arrivals, flood=flood) for flood in (False, True))

    def ratio(of: Callable[[list[int]], float]) -> str:
        return f"{of(alone):5.1f} alone, {of(flooded):5.1f} flooded, x{of(flooded) / of(alone):.2f}"

    print(f"{policy:24} {name:6} mean {ratio(mean)}; largest {ratio(max)}")
    return alone, flooded


@EACH_ORDER
def test_a_modest_tenant_hardly_notices_a_flood(policy: SchedulePolicy) -> None:
    """It sends a request every three steps, which takes 45 % of the step's tokens: less than its
    half. Then it is never behind, so whoever of it comes is next, as soon as one of the others
    that has begun has its prompt computed: a wait for one request of the other, then its own
    time, of which decoding takes the same number of steps as alone.
    """
    assert COST / 3 < BUDGET / 2
    alone, flooded = _compare(policy, [3 * n for n in range(100)], "modest")
    assert mean(flooded) <= 2 * mean(alone)
    assert max(flooded) <= 2 * max(alone)


@EACH_ORDER
def test_a_burst_gets_half_of_the_machine(policy: SchedulePolicy) -> None:
    """Forty at once: alone they get every token of a step, with a flood beside them half. So the
    k-th takes twice as long as alone, and what one request of the other takes beside it: that is
    how far what two tenants were served may differ, and a request that runs is not interrupted.
    """
    alone, flooded = _compare(policy, [0] * 40, "burst")
    one_request = -(-COST // BUDGET) + OUT
    for mine, beside_flood in zip(sorted(alone), sorted(flooded), strict=True):
        assert beside_flood <= 2 * mine + one_request
    assert mean(flooded) <= 2 * mean(alone)
    assert max(flooded) <= 2 * max(alone)


def test_a_tenant_served_less_does_not_wait_for_anothers_long_prompt() -> None:
    bench = Bench(400, budget=8)
    bench.core.add(make_request("flood", range(100), 4, tenant="flood"))
    for _ in range(3):
        assert _parts(bench) == {"flood": 8}
    bench.core.add(make_request("quiet", range(200, 206), 4, tenant="quiet"))
    assert _parts(bench) == {"quiet": 6, "flood": 2}
    assert _parts(bench) == {"quiet": 1, "flood": 7}


def test_of_two_running_prompts_the_one_of_the_tenant_served_less_is_first() -> None:
    bench = Bench(400, budget=8)
    bench.core.add(make_request("flood", range(100), 4, tenant="flood"))
    for _ in range(3):
        _parts(bench)
    bench.core.add(make_request("quiet", range(200, 220), 4, tenant="quiet"))
    # It came in where the one admitted last was then, so until it is served as much it is first.
    assert [_parts(bench) for _ in range(2)] == [{"quiet": 8}] * 2
    assert _parts(bench) == {"flood": 8}
    assert _parts(bench) == {"quiet": 4, "flood": 4}


def test_a_long_prompt_moves_on_however_many_short_ones_another_tenant_sends() -> None:
    bench = Bench(400, budget=8)
    bench.core.add(make_request("long", range(100), 1, tenant="long"))
    _parts(bench)
    computed = 8
    for step in range(40):
        bench.core.add(make_request(f"short{step}", [200 + step] * 8, 1, tenant="short"))
        computed += _parts(bench).get("long", 0)
    assert computed >= 100


def _parts(bench: Bench) -> dict[str, int]:
    """What the next step computes of each."""
    batch = bench.scheduler.schedule()
    bench.scheduler.update(batch, bench.runner.execute(batch), {})
    check(bench.cache)
    return {row.request.request_id: row.n_new for row in batch.rows}
