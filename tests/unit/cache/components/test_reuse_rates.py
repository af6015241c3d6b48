"""What rates of checkpoints look at."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from radixlm.cache.components.reuse_rates import ReuseRates


class Farther:
    """A node that is as far as distances go: what is below it is not asked for."""

    end = 4096

    def __init__(self) -> None:
        self.asked = 0

    @property
    def children(self):
        self.asked += 1
        if self.asked > 1:  # once for whether ways part here
            pytest.fail("a way is followed farther than it matters")
        return {}


def node(end: int, *below: object) -> SimpleNamespace:
    return SimpleNamespace(end=end, children=dict(enumerate(below)))


def test_a_way_is_followed_as_far_as_distances_differ() -> None:
    rates = ReuseRates(10)
    far = node(0, Farther())
    rates.used(far, 0, 5)
    assert rates.of(node(0, Farther()), 0, 5) > rates.of(node(0, node(4095)), 0, 5)


def test_of_one_age_they_are_used_and_of_another_they_wait_in_vain() -> None:
    """Chats: as likely to go on after a while as at once, then hardly."""
    rates, end = ReuseRates(4), node(100)
    at_first = [rates.of(end, 0, age) for age in (2, 20, 200)]
    assert at_first == sorted(at_first, reverse=True)
    for _ in range(50):
        for age, time in ((2, 2), (20, 10), (200, 400)):
            rates.waited(end, 0, age, time)
        rates.used(end, 0, 20)
    young, later, old = (rates.of(end, 0, age) for age in (2, 20, 200))
    assert later > 2 * young
    assert later > 50 * old


def test_a_place_before_a_branch_is_not_like_the_end_of_a_prompt() -> None:
    rates = ReuseRates(10)
    before_a_branch, before_an_end = node(0, node(30, node(60), node(60))), node(0, node(30))
    for _ in range(100):
        rates.waited(before_a_branch, 0, 5, 10)
        rates.used(before_an_end, 0, 5)
    assert rates.of(before_an_end, 0, 5) > 100 * rates.of(before_a_branch, 0, 5)


def test_what_waits_in_vain_is_worth_less_at_any_age() -> None:
    rates, end = ReuseRates(10), node(100)
    before = rates.of(end, 0, 1_000)
    for _ in range(20):
        rates.waited(end, 0, 5, 100)
    assert rates.of(end, 0, 1_000) < before / 20
