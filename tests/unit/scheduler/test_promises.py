"""The next step is scheduled and launched while one is under way, and when it is not."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from radixlm.core.batch import ScheduledBatch, StepResult
from radixlm.core.grammar import Grammar
from radixlm.core.keys import as_key
from radixlm.core.request import FinishReason, Namespace
from radixlm.core.sampling import SamplingParams
from tests.engines import Bench, make_request

PROMPT = [1, 2, 3]


class Logged(Bench):
    """A bench that notes what is launched, and whose result is asked for, by numbers of steps."""

    def __init__(self, **options: object) -> None:
        super().__init__(overlap=True, **options)
        self.log: list[str] = []
        self.rows: list[list[str]] = []

    def launches(self, batch: ScheduledBatch) -> Callable[[], StepResult]:
        number, pending = len(self.rows), super().launches(batch)
        self.rows.append([row.request.request_id for row in batch.rows])
        self.log.append(f"launch {number}")

        def result() -> StepResult:
            self.log.append(f"result {number}")
            return pending()

        return result


def test_a_step_is_launched_before_the_host_waits_for_the_one_before() -> None:
    bench = Logged(budget=2)
    request = make_request("a", PROMPT, 3)
    bench.core.add(request)
    assert bench.run()["a"].token_ids == tuple(bench.expected(request))
    steps = "launch 0, launch 1, result 0, launch 2, result 1, launch 3, result 2, result 3"
    assert ", ".join(bench.log) == steps  # two chunks, and an end that is known ahead


def test_what_ends_unforeseen_wastes_one_row() -> None:
    bench = Logged()
    first, second = (make_request(name, PROMPT, 9) for name in "ab")
    stop = bench.expected(first)[3]
    first = make_request("a", PROMPT, 9, stop_token_ids=frozenset({stop}))
    bench.core.add(first)
    bench.core.add(second)
    found = bench.run()
    assert found["a"].token_ids == tuple(bench.expected(first))
    assert found["b"].token_ids == tuple(bench.expected(second))
    assert sum(row.count("a") for row in bench.rows) == 5
    assert bench.scheduler.counters.computed_tokens == len(PROMPT) + 3 + 1 + 8  # not the wasted one


@pytest.mark.parametrize("again", [False, True])
def test_what_is_aborted_while_a_step_is_under_way_gets_nothing_of_it(again: bool) -> None:
    """Nor does a request that comes with its id, the same object even."""
    bench, request = Logged(), make_request("a", PROMPT, 5)
    bench.core.add(request)
    bench.step()
    [ended] = filter(None, [bench.core.abort("a")])
    assert ended.finish_reason is FinishReason.ABORT
    there = bench.cache.match(as_key([*PROMPT, *bench.expected(request)]), request.namespace)
    assert there.length == len(PROMPT)  # nothing that is promised
    assert bench.core.flush() == (len(PROMPT), True)
    if again:
        bench.core.add(request)
    found = bench.run()
    assert not bench.core.has_work
    assert {name: its.token_ids for name, its in found.items()} == (
        {"a": tuple(bench.expected(request))} if again else {}
    )


class NoDrafts:
    def propose(self, *_: object) -> None:
        return None


@pytest.mark.parametrize(
    ("bench", "asked"),
    [
        ({}, {"grammar": Grammar.regex("[a-c]{9}")}),
        ({}, {"params": SamplingParams(max_tokens=6, presence_penalty=0.5)}),
        ({}, {"params": SamplingParams(max_tokens=6, repetition_penalty=1.5)}),
        ({"drafts": [NoDrafts()]}, {}),
    ],
    ids=["grammar", "presence", "repetition", "drafts"],
)
def test_a_step_waits_where_tokens_have_to_be_known(
    bench: dict[str, object], asked: dict[str, object]
) -> None:
    made = Logged(**bench)
    made.core.add(make_request("a", PROMPT, 6, **asked))
    made.run()
    assert made.ahead == 0


def test_a_step_waits_where_a_request_would_be_retracted() -> None:
    bench = Logged(capacity=12, conservativeness=0.0)
    requests = [make_request(name, [n] * 3, 8) for n, name in enumerate("ab")]
    for request in requests:
        bench.core.add(request)
    found = bench.run()
    assert bench.scheduler.counters.retractions > 0
    assert bench.ahead > 0
    for request in requests:
        assert found[request.request_id].token_ids == tuple(bench.expected(request))


def test_a_step_waits_where_an_important_request_may_preempt() -> None:
    bench = Logged(capacity=16, policy="priority", conservativeness=1.0)
    low = make_request("low", [1] * 3, 12)
    high = make_request("high", [2] * 3, 9, priority=5)
    bench.core.add(low)
    for _ in range(3):
        bench.step()
    assert bench.ahead == 3
    bench.core.add(high)
    bench.step()
    bench.step()
    assert bench.ahead == 3
    assert bench.scheduler.counters.preemptions == 1


def test_a_token_that_could_not_be_drawn_in_time_is_drawn_without_haste() -> None:
    """Its request goes on from its last token, and is waited for from then on."""
    bench = Logged()
    bench.flat = lambda row: row.stop == 5
    request = make_request("a", PROMPT, 6, namespace=Namespace(cache_salt="x"))
    bench.core.add(request)
    assert bench.run()["a"].token_ids == tuple(bench.expected(request))
    assert bench.scheduler.counters.retractions == 1
    later = [*(f"{what} {n}" for n in (5, 6, 7) for what in ("launch", "result"))]
    assert bench.log[-9:] == ["launch 4", "result 3", "result 4", *later]
