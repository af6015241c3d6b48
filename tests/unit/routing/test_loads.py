"""What replicas have to do, and what a prompt costs each of them."""

from __future__ import annotations

import random

import pytest

from radixlm.routing.loads import ReplicaLoads
from radixlm.routing.replica_tree import ReplicaMatches


def loads(*capacities: int) -> ReplicaLoads:
    made = ReplicaLoads()
    for number, capacity in enumerate(capacities):
        made.add(number, capacity, price=0.0)
    return made


def found(levels=(), coming=None, awaited=()) -> ReplicaMatches:
    return ReplicaMatches(list(levels), coming or {}, list(awaited), None, 0)


def test_a_prompt_costs_what_is_missing_and_what_is_queued():
    made = loads(*[1_000] * 70)
    made.queues[3] = 500.0
    holders = (1 << 3) | (1 << 69)
    costs = made.costs(100, found([(60, holders)], {2: 90, 69: 30}))
    assert costs[0] == 100
    assert costs[2] == 10 - 90, "what is computed there for others is no queue to it"
    assert costs[3] == 40 + 500
    assert costs[69] == 40, "it holds more than what comes"


def test_a_new_token_costs_its_price_too_or_a_part_of_it_for_each_that_waits():
    made = loads(1_000, 1_000, 1_000)
    made.prices[:] = 9.0
    alone = made.costs(100, found([(60, 1)], {1: 80}))
    assert alone.tolist() == [40 + 9 * 40, 20 + 9 * 20 - 80, 100 + 9 * 100]
    shared = made.costs(100, found([(60, 1)], {1: 80}, [(0, 80, 3)]))
    assert shared.tolist() == [40 + 9 * (5 + 20), 20 + 9 * 20 - 80, 100 + 9 * (20 + 20)]


def test_new_tokens_cost_more_where_more_was_computed_lately():
    made = loads(1_000, 1_000, 100_000)
    for _ in range(20):
        made.send(0, 100)
    made.send(1, 100)
    made.send(2, 2_000)
    first, second, large = made.prices
    assert first == pytest.approx(20 * second, rel=0.1)
    assert large == pytest.approx(first / 100, rel=0.1), "a part of what it can hold"


def test_what_was_computed_long_ago_counts_less():
    made, chosen = loads(1_000, 1_000), random.Random(0)

    def compute(tokens: int, *replicas: int) -> None:
        for _ in range(tokens // 10):
            made.send(chosen.choice(replicas), 10)

    compute(40_000, 0, 1)
    settled = made.prices.mean()
    compute(40_000, 0, 1)
    assert made.prices.mean() == pytest.approx(settled, rel=0.02), "it does not grow for ever"
    compute(20_000, 1)
    assert made.prices[0] < settled / 100
    assert made.prices[1] == pytest.approx(2 * settled, rel=0.1)


def test_a_replica_may_take_the_number_of_one_that_is_gone():
    made = loads(1_000, 1_000)
    made.send(0, 800)
    made.remove(0)
    made.add(0, 1_000, price=3.0)
    assert (made.queues[0], made.prices[0]) == (0.0, 3.0)
