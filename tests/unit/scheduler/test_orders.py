"""Who is admitted first under each order, one at a time."""

from __future__ import annotations

import pytest

from radixlm.core.errors import ConfigError
from radixlm.core.reports import Event, Scheduled
from radixlm.core.request import GenerateRequest
from radixlm.scheduler import make_order
from radixlm.scheduler.prompt_index import PromptIndex
from radixlm.scheduler.state import RequestState
from tests.engines import Bench, make_request

WARM = list(range(100, 120))


def _admitted(requests: list[GenerateRequest], policy: str, *, seed: int = 0) -> list[str]:
    """The order of admission, one after the other, when all wait and WARM is cached."""
    names: list[str] = []

    def sink(event: Event) -> None:
        if isinstance(event, Scheduled):
            names.append(event.request_id)

    bench = Bench(2_000, policy=policy, seed=seed, max_running=1, budget=64, sink=sink)  # type: ignore[arg-type]
    bench.core.add(make_request("warmer", WARM, 1))
    bench.run()
    names.clear()
    for request in requests:
        bench.core.add(request)
    bench.run()
    return names


def test_fcfs_by_arrival() -> None:
    requests = [make_request(f"r{n}", [n + 1] * (10 - n)) for n in range(5)]
    assert _admitted(requests, "fcfs") == ["r0", "r1", "r2", "r3", "r4"]


def test_lpm_by_what_is_cached_then_by_arrival() -> None:
    requests = [
        make_request("none", [1, 2, 3]),
        make_request("half", [*WARM[:10], 1]),
        make_request("all", [*WARM, 1]),
        make_request("half too", [*WARM[:10], 2]),
    ]
    assert _admitted(requests, "lpm") == ["all", "half", "half too", "none"]


def test_lpm_follows_what_enters_the_cache_meanwhile() -> None:
    requests = [
        make_request("first", [1] * 8),
        make_request("other", [2] * 8),
        make_request("below the first", [*[1] * 8, 3]),
    ]
    assert _admitted(requests, "lpm") == ["first", "below the first", "other"]


def test_dfs_weight_takes_the_most_shared_branch_first_and_finishes_it() -> None:
    light = [[1, 1, n] for n in range(2)]
    heavy = [[2, 2, n] for n in range(3)]
    deeper = [[3, 3, 1, n] for n in range(2)], [[3, 3, 2, n] for n in range(3)]
    prompts = [light[0], heavy[0], deeper[0][0], heavy[1], *deeper[1], light[1], deeper[0][1]]
    requests = [make_request(f"{prompt}", prompt) for prompt in [*prompts, heavy[2]]]
    wanted = [*deeper[1], *deeper[0], *heavy, *light]
    assert _admitted(requests, "dfs-weight") == [f"{prompt}" for prompt in wanted]


def test_dfs_weight_lays_newcomers_out_once_they_are_a_quarter() -> None:
    order = make_order("dfs-weight")
    index = PromptIndex(page_size=1)
    layouts = 0
    for n in range(200):
        index.add(RequestState(make_request(f"r{n}", [n, n, n]), n))
        layouts += order.lay_out(index)
    assert 5 < layouts < 30


def test_lof_by_output_that_is_allowed() -> None:
    requests = [make_request(f"{n} out", [n], n) for n in (3, 9, 1, 5)]
    assert _admitted(requests, "lof") == ["9 out", "5 out", "3 out", "1 out"]


def test_shortest_prefill_first_by_what_the_cache_leaves_to_compute() -> None:
    requests = [
        make_request("10 to compute", [1] * 10),
        make_request("2 of 22 to compute", [*WARM, 1, 2]),
        make_request("5 to compute", [2] * 5),
    ]
    wanted = ["2 of 22 to compute", "5 to compute", "10 to compute"]
    assert _admitted(requests, "shortest-prefill-first") == wanted


def test_random_is_the_same_for_the_same_seed() -> None:
    requests = [make_request(f"r{n}", [n, n]) for n in range(12)]
    first = _admitted(requests, "random", seed=1)
    assert sorted(first) == sorted(request.request_id for request in requests)
    assert _admitted(requests, "random", seed=1) == first
    assert _admitted(requests, "random", seed=2) != first
    assert first != [request.request_id for request in requests]


def test_priority_before_what_is_cached() -> None:
    requests = [
        make_request("low, cached", [*WARM, 1], priority=1),
        make_request("low", [1, 2], priority=1),
        make_request("high", [3, 4], priority=2),
        make_request("high, cached", [*WARM, 5], priority=2),
    ]
    wanted = ["high, cached", "high", "low, cached", "low"]
    assert _admitted(requests, "priority") == wanted


@pytest.mark.parametrize("policy", ["lpm", "dfs-weight"])
def test_priority_means_nothing_to_the_other_orders(policy: str) -> None:
    requests = [make_request("low", [1, 2]), make_request("high", [3, 4], priority=9)]
    assert _admitted(requests, policy) == ["low", "high"]


def test_an_unknown_order_is_refused() -> None:
    with pytest.raises(ConfigError, match="unknown --schedule-policy 'best'"):
        make_order("best")  # type: ignore[arg-type]
