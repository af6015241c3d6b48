"""How much of drafts is computed, by what steps take on a machine that a test makes up."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from random import Random

import pytest

from radixlm.core.batch import ScheduledBatch, StepResult
from radixlm.core.clock import VirtualClock
from radixlm.drafts.draft import Draft, Sibling
from radixlm.scheduler import Drafting, DraftPolicy
from radixlm.scheduler.draft_policy import PLAIN_STALE, STALE
from tests.engines import Bench, make_request

Cost = Callable[[int], float]


def flat(_rows: int) -> float:
    """As where weights are read once for all rows."""
    return 1.0


def steep(rows: int) -> float:
    """As where each row is computed by itself."""
    return float(rows)


def settled(cost: Cost, requests: int, drafts: Sequence[Draft], steps: int = 40) -> list[int]:
    """What is chosen once costs are known."""
    policy = DraftPolicy()
    counts = [0] * len(drafts)
    for _ in range(steps):
        counts = policy.choose(drafts, requests)
        learn(policy, sum(counts), cost(requests + sum(counts)), requests)
    return counts


def learn(policy: DraftPolicy, drafted: int, seconds: float, requests: int = 1) -> None:
    """A step is over that took `seconds`."""
    policy.costs.age()
    policy.costs.learn(requests, drafted, seconds)


def test_as_many_as_pay() -> None:
    sure, weak = Draft(tuple(range(8)), "tree", 32), Draft(tuple(range(8)), "tree", 1)
    all_of_it, little = settled(flat, 2, [sure, weak])
    assert all_of_it == 8 > little > 0, "a row costs something, whatever is measured"
    assert settled(steep, 2, [sure, weak]) == [0, 0]
    some = settled(lambda rows: 1 + 0.3 * (rows - 2), 2, [sure, weak])
    assert some[0] > some[1]


def test_nothing_is_drafted_before_steps_without_are_known() -> None:
    policy, draft = DraftPolicy(), Draft((1, 2), "tree", 32)
    for _ in range(3):
        assert policy.choose([draft], 1) == [0]
        assert not policy.may_pay(1, 8)
        learn(policy, 0, 1.0)
    assert policy.may_pay(1, 8)
    assert policy.choose([draft], 1) == [2]


def test_a_step_that_was_held_up_says_little() -> None:
    """As where another process had the processor: it is not what its rows cost."""
    policy, draft = DraftPolicy(), Draft(tuple(range(8)), "tree", 32)
    for _ in range(3):
        learn(policy, 0, 1.0)
    learn(policy, 8, 5.0)
    assert policy.choose([draft], 1) == [8]
    learn(policy, 8, 1.2)
    assert policy.choose([draft], 1) == [8]
    for _ in range(2):
        learn(policy, 8, 20.0)
    assert sum(policy.choose([draft], 1)) < 8, "but if all are, it is"


def test_what_is_old_is_measured_again() -> None:
    policy, draft = DraftPolicy(), Draft((1, 2), "tree", 32)
    for _ in range(3):
        learn(policy, 0, 1.0)
    for _ in range(2):
        learn(policy, 2, 10.0)
    assert policy.choose([draft], 1) == [0], "one is thought to cost half of what two do"
    for _ in range(STALE + 1):
        learn(policy, 0, 1.0)
    assert policy.choose([draft], 1) == [2]
    for _ in range(PLAIN_STALE + 1):
        learn(policy, 2, 1.0)
    assert policy.choose([draft], 1) == [0]


class Guesses:
    """Drafts of which each token is right with a chance."""

    def __init__(self, chance: float, source: str = "tree", matched: int = 4) -> None:
        self.chance, self.whole, self._random = chance, list[int](), Random(1)
        self.source, self.matched, self.asked = source, matched, 0

    def propose(self, _namespace: Hashable, tokens: Sequence[int], most: int) -> Draft | None:
        self.asked += 1
        follows = self.whole[len(tokens) :][:most]
        guess = [t if self._random.random() < self.chance else (t + 1) % 256 for t in follows]
        return Draft(tuple(guess), self.source, self.matched) if guess else None


def test_the_draft_that_promises_most_is_taken_not_the_longest_match() -> None:
    """Of two sources, of which one matches more tokens and is always wrong."""
    request, bench = make_request("a", range(1, 9), 200), Bench(600)
    whole = [*range(1, 9), *bench.expected(request)]
    wrong, right = Guesses(0.0, "corpus", 8), Guesses(1.0)
    wrong.whole = right.whole = whole
    clock = VirtualClock()
    bench.scheduler.drafting = Drafting([wrong, right], 4, DraftPolicy(), clock=clock)
    execute = bench.runner.execute

    def timed(batch: ScheduledBatch) -> StepResult:
        clock.advance(1.0)
        return execute(batch)

    bench.runner.execute = timed  # type: ignore[method-assign]
    bench.core.add(request)
    assert list(bench.run()["a"].token_ids) == whole[8:]
    assert clock.now() < 70


def test_a_source_that_was_wrong_is_tried_again_when_it_would_have_been_right() -> None:
    """A draft that is left out costs nothing, and is compared all the same."""
    request, bench = make_request("a", range(1, 9), 400), Bench(600)
    guesses = Guesses(0.0)
    guesses.whole = [*range(1, 9), *bench.expected(request)]
    clock, yields = VirtualClock(), list[int]()
    bench.scheduler.drafting = Drafting([guesses], 8, DraftPolicy(), clock=clock)
    execute = bench.runner.execute

    def timed(batch: ScheduledBatch) -> StepResult:
        clock.advance(1 + 0.1 * batch.n_tokens)
        yields.append(batch.n_tokens)
        if batch.rows[0].known > 200:
            guesses.chance = 1.0
        return execute(batch)

    bench.runner.execute = timed  # type: ignore[method-assign]
    bench.core.add(request)
    bench.run()
    assert yields[100:150] == [1] * 50, "it is always wrong"
    assert max(yields[200:]) > 6
    assert guesses.asked < 200, "while nothing pays it is seldom looked for"


@pytest.mark.parametrize("overlap", [False, True])
def test_drafts_that_were_slow_once_are_tried_again(overlap: bool) -> None:
    """Also where drafts rest, and where the next step is launched behind one, as on a GPU."""
    request = make_request("a", range(1, 9), 1_400)
    bench, guesses, clock = Bench(1_600, overlap=overlap), Guesses(1.0), VirtualClock()
    guesses.whole = [*range(1, 9), *bench.expected(request)]
    bench.scheduler.drafting = Drafting([guesses], 8, DraftPolicy(), clock=clock)
    execute, yields = bench.runner.execute, list[int]()

    def timed(batch: ScheduledBatch) -> StepResult:
        yields.append(batch.n_tokens)
        clock.advance(steep(batch.n_tokens) if len(yields) < 100 else 1.0)
        return execute(batch)

    bench.runner.execute = timed  # type: ignore[method-assign]
    bench.core.add(request)
    while bench.core.has_work:
        bench.core.step()
    assert max(yields[50:900]) == 1
    assert max(yields[900:]) == 9
    if overlap:
        assert bench.ahead > 900, "no step waits but to be measured"


@pytest.mark.parametrize("cost", [flat, steep, lambda rows: 1 + 0.08 * rows])
@pytest.mark.parametrize("chance", [0.0, 0.3, 0.9])
def test_never_slower(cost: Cost, chance: float) -> None:
    """By more than what it takes to find out, over an answer of 400 tokens."""
    clock, took = VirtualClock(), []
    request = make_request("a", range(1, 9), 400)
    for policy in (None, DraftPolicy()):
        guesses = Guesses(chance)
        bench = Bench(600)
        guesses.whole = [*range(1, 9), *bench.expected(request)]
        if policy is not None:
            bench.scheduler.drafting = Drafting([guesses], 8, policy, clock=clock)
        execute = bench.runner.execute

        def timed(
            batch: ScheduledBatch,
            execute: Callable[[ScheduledBatch], StepResult] = execute,
        ) -> StepResult:
            clock.advance(cost(batch.n_tokens))
            return execute(batch)

        bench.runner.execute = timed  # type: ignore[method-assign]
        began = clock.now()
        bench.core.add(request)
        assert list(bench.run()["a"].token_ids) == guesses.whole[8:]
        took.append(clock.now() - began)
    assert took[1] <= 1.05 * took[0]
    if cost is flat and chance == 0.9:
        assert took[1] < 0.3 * took[0]


def test_a_draft_and_its_sibling_have_no_more_rows_than_a_draft() -> None:
    policy = DraftPolicy()
    for _ in range(3):
        learn(policy, 0, 1.0)
    draft = Draft(tuple(range(8)), "tree", 4, Sibling(0, (9,) * 8, 4))
    for _ in range(30):
        [cut] = policy.cut([draft], 1)
        assert cut.sibling is not None
        assert cut.size == 8
        policy.verify(cut, draft, [9, 9, 9])
    assert policy.expected(draft) > policy.expected(draft._replace(sibling=None))
