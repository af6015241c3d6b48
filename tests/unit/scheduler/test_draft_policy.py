"""How much of drafts is computed, by what steps take on a machine that a test makes up."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from random import Random

import pytest

from radixlm.core.batch import ScheduledBatch, StepResult
from radixlm.core.clock import VirtualClock
from radixlm.drafts.draft import Draft
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
        policy.costs.learn(requests, sum(counts), cost(requests + sum(counts)))
    return counts


def test_as_many_as_pay() -> None:
    sure, weak = Draft(tuple(range(8)), "tree", 32), Draft(tuple(range(8)), "tree", 1)
    assert settled(flat, 2, [sure, weak]) == [8, 8]
    assert settled(steep, 2, [sure, weak]) == [0, 0]
    some = settled(lambda rows: 1 + 0.3 * (rows - 2), 2, [sure, weak])
    assert some[0] > some[1]


def test_nothing_is_drafted_before_steps_without_are_known() -> None:
    policy, draft = DraftPolicy(), Draft((1, 2), "tree", 32)
    for _ in range(3):
        assert policy.choose([draft], 1) == [0]
        assert not policy.may_pay(1, 8)
        policy.costs.learn(1, 0, 1.0)
    assert policy.may_pay(1, 8)
    assert policy.choose([draft], 1) == [2]


def test_what_is_old_is_measured_again() -> None:
    policy, draft = DraftPolicy(), Draft((1, 2), "tree", 32)
    for _ in range(3):
        policy.costs.learn(1, 0, 1.0)
    policy.costs.learn(1, 2, 10.0)
    assert policy.choose([draft], 1) == [0], "one is thought to cost half of what two do"
    for _ in range(STALE + 1):
        policy.costs.learn(1, 0, 1.0)
    assert policy.choose([draft], 1) == [2]
    for _ in range(PLAIN_STALE + 1):
        policy.costs.learn(1, 2, 1.0)
    assert policy.choose([draft], 1) == [0]


class Guesses:
    """Drafts of which each token is right with a chance."""

    def __init__(self, chance: float) -> None:
        self.chance, self.whole, self._random = chance, list[int](), Random(1)

    def propose(self, _namespace: Hashable, tokens: Sequence[int], most: int) -> Draft | None:
        follows = self.whole[len(tokens) :][:most]
        guess = [t if self._random.random() < self.chance else (t + 1) % 256 for t in follows]
        return Draft(tuple(guess), "tree", 4) if guess else None


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
