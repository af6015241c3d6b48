"""What one step holds, who is admitted, who is retracted."""

from __future__ import annotations

import pytest

from radixlm.core.clock import VirtualClock
from radixlm.core.errors import InvalidRequestError, RequestTooLargeError
from radixlm.core.keys import as_key
from radixlm.core.request import FinishReason
from radixlm.core.sampling import SamplingParams
from radixlm.engine import Limits
from tests.engines import Bench, make_request
from tests.invariants import check


def _shape(bench: Bench) -> dict[str, int]:
    batch = bench.scheduler.schedule()
    result = bench.runner.execute(batch)
    bench.scheduler.update(batch, result, {})
    check(bench.cache)
    return {row.request.request_id: row.n_new for row in batch.rows}


def test_a_step_mixes_decodes_with_chunks_within_one_budget() -> None:
    bench = Bench(200, budget=8, policy="fcfs")
    bench.scheduler.add(make_request("short", [1, 2, 3], 20))
    assert _shape(bench) == {"short": 3}
    bench.scheduler.add(make_request("long", range(10, 30), 20))
    assert _shape(bench) == {"short": 1, "long": 7}
    assert _shape(bench) == {"short": 1, "long": 7}
    assert _shape(bench) == {"short": 1, "long": 6}
    assert _shape(bench) == {"short": 1, "long": 1}


def test_every_running_request_moves_however_small_the_budget() -> None:
    bench = Bench(200, budget=2, max_running=8, policy="fcfs")
    for index in range(4):
        bench.scheduler.add(make_request(f"r{index}", [index * 10 + 1], 3))
    assert _shape(bench) == {"r0": 1, "r1": 1}
    assert len(bench.scheduler.waiting) == 2


def test_lpm_admits_the_longest_cached_prefix_first_and_fcfs_the_oldest() -> None:
    for policy, parts in (("lpm", {"warm": 1, "cold": 3}), ("fcfs", {"cold": 4})):
        bench = Bench(200, budget=4, policy=policy)  # type: ignore[arg-type]
        bench.core.add(make_request("warmer", range(1, 9), 1))
        bench.run()
        bench.scheduler.add(make_request("cold", range(50, 58), 1))
        bench.scheduler.add(make_request("warm", [*range(1, 9), 99], 1))
        assert _shape(bench) == parts


def test_a_request_waits_for_the_one_that_computes_its_prefix() -> None:
    bench = Bench(200, budget=16)
    for index in range(4):
        bench.scheduler.add(make_request(f"r{index}", [*range(10), 50 + index], 2))
    assert _shape(bench) == {"r0": 11}
    assert _shape(bench) == {"r0": 1, "r1": 1, "r2": 1, "r3": 1}
    assert bench.scheduler.counters.cached_tokens == 30


def test_waiting_ends_when_the_computing_request_is_aborted() -> None:
    bench = Bench(200, budget=4)
    bench.scheduler.add(make_request("first", range(20), 2))
    bench.scheduler.add(make_request("second", [*range(20), 99], 2))
    assert _shape(bench) == {"first": 4}
    bench.scheduler.abort("first")
    assert _shape(bench) == {"second": 4}
    assert bench.scheduler.counters.cached_tokens == 4  # what the first one had computed


def test_a_full_pool_retracts_the_youngest_and_keeps_what_it_computed() -> None:
    bench = Bench(24, budget=16, policy="fcfs")
    requests = [make_request(f"r{index}", [index + 1] * 4, 12) for index in range(3)]
    for request in requests:
        bench.core.add(request)
    outputs = bench.run()
    assert bench.scheduler.counters.retractions > 0
    assert bench.scheduler.counters.readmitted_cached > 0
    for request in requests:
        assert list(outputs[request.request_id].token_ids) == bench.expected(request)


def test_conservativeness_reserves_so_that_nothing_is_retracted() -> None:
    bench = Bench(24, budget=16, conservativeness=2.0)
    for index in range(3):
        bench.core.add(make_request(f"r{index}", [index + 1] * 4, 12))
    bench.run()
    assert bench.scheduler.counters.retractions == 0


def test_admission_counts_what_is_evictable_but_not_what_it_locks_itself() -> None:
    bench = Bench(16, budget=16, policy="fcfs")
    bench.core.add(make_request("a", [1] * 8, 4))
    bench.run()
    assert bench.cache.usage().evictable == 11
    bench.core.add(make_request("b", [2] * 12, 4))
    assert bench.run()["b"].finish_reason is FinishReason.LENGTH


@pytest.mark.parametrize("when", [0, 1, 3])
def test_abort_waiting_prefilling_or_decoding_gives_everything_back(when: int) -> None:
    bench = Bench(64, budget=4)
    bench.core.add(make_request("r", range(1, 9), 8))
    for _ in range(when):
        bench.step()
    output = bench.core.abort("r")
    assert output is not None
    assert output.finish_reason is FinishReason.ABORT
    usage = bench.cache.usage()
    assert usage.private == usage.locked == 0
    assert usage.evictable == min(when * 4, 9)
    assert bench.core.abort("r") is None
    assert not bench.core.has_work


def test_the_same_id_twice_is_refused() -> None:
    bench = Bench()
    bench.core.add(make_request("r", [1]))
    with pytest.raises(InvalidRequestError, match="'r' is under way"):
        bench.core.add(make_request("r", [2]))


def test_what_can_never_fit_is_refused_with_the_numbers() -> None:
    limits = Limits(context_length=100, capacity=40, vocab_size=50)
    with pytest.raises(
        RequestTooLargeError,
        match=r"length is 40 tokens, .*KV pool.*requested 41 tokens.* max_tokens to at most 30",
    ):
        limits.resolve_max_tokens(as_key([1] * 10), SamplingParams(max_tokens=31))
    with pytest.raises(
        RequestTooLargeError, match=r"requested 41 tokens: 40 in the prompt.*at most 39"
    ):
        limits.resolve_max_tokens(as_key([1] * 40), SamplingParams(max_tokens=None))
    assert limits.resolve_max_tokens(as_key([1] * 10), SamplingParams(max_tokens=None)) == 30
    wide = Limits(context_length=100, capacity=400, vocab_size=50)
    with pytest.raises(RequestTooLargeError, match=r"length is 100 tokens\."):
        wide.resolve_max_tokens(as_key([1] * 100), SamplingParams())
    with pytest.raises(InvalidRequestError, match=r"token id 50.*end at 49"):
        wide.resolve_max_tokens(as_key([50]), SamplingParams())
    bench = Bench(16)
    with pytest.raises(
        InvalidRequestError, match=r"10 \+ 7 tokens can never fit the pool, which holds 16"
    ):
        bench.core.add(make_request("big", [1] * 10, 7))


def test_rows_of_one_node_are_neighbours() -> None:
    bench = Bench(200, budget=64, policy="fcfs")
    prefixes = [[1] * 5, [2] * 5]
    for prefix in prefixes:
        bench.core.add(make_request(f"p{prefix[0]}", prefix, 1))
    bench.run()
    for index in range(6):
        bench.scheduler.add(make_request(f"r{index}", [*prefixes[index % 2], 10 + index], 2))
    rows = [row.request.request_id for row in bench.scheduler.schedule().rows]
    parities = [int(name[1]) % 2 for name in rows]
    assert parities in ([0, 0, 0, 1, 1, 1], [1, 1, 1, 0, 0, 0])


def test_how_long_a_request_waited_is_told_with_its_first_token() -> None:
    clock = VirtualClock()
    bench = Bench(200, max_running=1, policy="fcfs", clock=clock)
    for name in ("first", "second"):
        bench.core.add(make_request(name, [1, 2, 3], 2))
    told = []
    while bench.core.has_work:
        clock.advance(2.0)
        told += [(output.request_id, output.queued) for output in bench.step()]
    assert told == [("first", 2.0), ("first", None), ("second", 6.0), ("second", None)]
