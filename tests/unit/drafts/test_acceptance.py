"""Counts of what was accepted of drafts."""

from __future__ import annotations

import pytest

from radixlm.drafts.acceptance import DEPTH, Acceptance
from radixlm.drafts.draft import Draft, Sibling


def draft(size: int, matched: int = 4, source: str = "tree") -> Draft:
    return Draft((1,) * size, source, matched)


def test_longer_matches_are_surer_from_the_beginning() -> None:
    seen = Acceptance()
    first = [seen.chances(draft(1, matched))[0] for matched in (1, 2, 3, 4, 8, 16, 32)]
    assert first == sorted(first)
    assert seen.chances(draft(1, 33)) == seen.chances(draft(1, 32))
    assert seen.chances(draft(1, 5)) == seen.chances(draft(1, 4))


def test_chances_are_of_a_token_and_all_before_it() -> None:
    chances = Acceptance().chances(draft(DEPTH + 5))
    assert len(chances) == DEPTH + 5
    assert chances == sorted(chances, reverse=True)
    assert Acceptance().expected(draft(3)) == pytest.approx(sum(chances[:3]))


def test_what_was_seen_counts() -> None:
    seen = Acceptance()
    for _ in range(200):
        seen.learn(draft(4), accepted=4)
        seen.learn(draft(4, source="corpus"), accepted=0)
        seen.learn(draft(12, matched=32), accepted=10)
    assert seen.expected(draft(4)) > 3.7
    assert seen.expected(draft(4, source="corpus")) < 0.1
    assert 8 < seen.expected(draft(12, matched=32)) < 12
    assert seen.expected(draft(4, matched=2)) == Acceptance().expected(draft(4, matched=2))


def test_tokens_whose_turn_never_came_say_nothing() -> None:
    seen = Acceptance()
    given = seen.chances(draft(2))[1] / seen.chances(draft(2))[0]
    for _ in range(100):
        seen.learn(draft(2), accepted=0)
    after = seen.chances(draft(2))
    assert after[1] / after[0] == pytest.approx(given)


def test_old_drafts_count_less() -> None:
    seen = Acceptance()
    for _ in range(100_000):
        seen.learn(draft(1), accepted=1)
    for _ in range(2000):
        seen.learn(draft(1), accepted=0)
    assert seen.expected(draft(1)) < 0.3


def test_a_sibling_counts_where_its_draft_is_wrong() -> None:
    seen = Acceptance()
    both = draft(3)._replace(sibling=Sibling(1, (2, 2), 4))
    first, second, _ = seen.chances(both)
    of_sibling = seen.chances_of_sibling(both)
    assert of_sibling[0] == pytest.approx((first - second) * seen.chances(draft(1))[0])
    assert seen.expected(both) == pytest.approx(seen.expected(draft(3)) + sum(of_sibling))
    for _ in range(30):
        seen.learn_sibling(both, 0)
    assert seen.chances_of_sibling(both)[0] < of_sibling[0] / 2
    assert seen.chances(both) == seen.chances(draft(3))
