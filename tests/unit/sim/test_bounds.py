"""Bounds of what a cache could have found."""

from __future__ import annotations

import numpy as np
import pytest

from radixlm.sim.bounds import CLAIRVOYANT, KNOWABLE, NO_LIMIT, History

ONE = np.array([7], np.int32)


def note(history: History, first: int, size: int = 4, namespace: str = "") -> None:
    history.note(np.arange(first, first + size, dtype=np.int32), ONE, namespace)


def test_nothing_asked_for_has_no_bounds() -> None:
    assert History(1).bounds(10) == {}


def test_a_loop_longer_than_the_pool() -> None:
    """Four prompts of 4 tokens in turn, room for two: the future says to keep two of them."""
    history = History(1)
    for turn in range(100):
        note(history, 100 * (turn % 4))
    found = history.bounds(8)
    assert found[NO_LIMIT] == pytest.approx(3 / 4 * 96 / 100)
    assert found[CLAIRVOYANT] > 0.35
    assert found[KNOWABLE] > 0.3


def test_namespaces_share_nothing() -> None:
    history = History(1)
    note(history, 0, namespace="a")
    note(history, 0, namespace="b")
    assert history.bounds(100)[NO_LIMIT] == 0


def test_a_long_history_is_kept_in_longer_units() -> None:
    history = History(1, most_units=100)
    for turn in range(40):
        note(history, 1_000 * (turn % 2), size=33)
    assert history.unit == 16
    assert sum(each.prefixes.size for each in history.noted) <= 100
    assert history.bounds(66)[NO_LIMIT] == pytest.approx(38 * 32 / (40 * 33), abs=1e-6)
