"""What clients say of what comes after a request, as the policy that learns takes it."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from radixlm.cache import RadixCache, make_policy
from radixlm.core.request import Hint

CAPACITY, TOKENS, TURNS = 3_000, 20, 6


def calls(random: np.random.Generator, sessions: int) -> Iterator[tuple[np.ndarray, bool]]:
    """Sixty conversations at a time, each of one turn or of six, in any order; and whether it is
    their last one.
    """
    begun, left = list[np.ndarray](), list[int]()
    for number in range(sessions):
        begun.append(np.arange(TOKENS, dtype=np.int32) + np.int32(1_000 * number))
        left.append(int(random.choice([1, TURNS])))
        while len(begun) >= 60 or (number == sessions - 1 and begun):
            at = int(random.integers(len(begun)))
            left[at] -= 1
            yield begun[at], not left[at]
            start = begun[at][-1] + 1
            begun[at] = np.concatenate((begun[at], np.arange(start, start + TOKENS)))
            if not left[at]:
                del begun[at], left[at]


def hit_rate(how: str, policy: str = "learned") -> float:
    """Percent. how: hints are true, false, or there are none."""
    cache, random = RadixCache(CAPACITY, policy=make_policy(policy)), np.random.default_rng(2)
    lies = np.random.default_rng(5)
    found = asked = 0
    for key, last in calls(random, 1_500):
        lease = cache.acquire(key)
        found, asked = found + lease.cached, asked + key.size
        if how == "true":
            lease.hint = Hint.SESSION_END if last else Hint.TOOL_RUNNING
        elif how == "false":
            lease.hint = list(Hint)[lies.integers(len(Hint))]
        lease.extend(key.size - lease.cached)
        lease.commit(key.size)
        lease.release()
    return 100 * found / asked


@pytest.mark.slow
def test_true_hints_are_worth_much_and_false_ones_do_little_harm() -> None:
    true, without, false = hit_rate("true"), hit_rate("none"), hit_rate("false")
    lru = hit_rate("none", "lru")
    assert true > without + 3
    assert false > without - 3
    assert false >= lru - 0.5


def use(cache: RadixCache, number: int) -> np.ndarray:
    key = np.arange(TOKENS, dtype=np.int32) + np.int32(100 * number)
    lease = cache.acquire(key)
    lease.extend(TOKENS - lease.cached)
    lease.commit(TOKENS)
    lease.release()
    return key


@pytest.mark.parametrize("policy", ["learned", "lru"])
def test_a_hint_after_the_end_says_how_much_it_is_about(policy: str) -> None:
    cache = RadixCache(100, policy=make_policy(policy))
    key = use(cache, 1)
    assert cache.hint(key, None, Hint.SESSION_END) == TOKENS
    assert cache.hint(key[:7], None, Hint.SESSION_END) == 7
    assert cache.hint(key + np.int32(50_000), None, Hint.SESSION_END) == 0
    assert cache.hint(key, "another", Hint.SESSION_END) == 0
    lease = cache.acquire(key)
    assert cache.hint(key, None, Hint.SESSION_END) == TOKENS
    lease.release()
    assert sum(cache.usage()) == 100


def test_what_was_said_to_end_goes_first_once_that_was_true_before() -> None:
    cache = RadixCache(400, policy=make_policy("learned"))
    for number in range(300):  # ends are ends, the rest comes again
        key = use(cache, 1_000 + number)
        cache.hint(key, None, Hint.SESSION_END)
        use(cache, number % 8)
        cache.hint(use(cache, number % 8), None, Hint.TOOL_RUNNING)
    assert all(
        cache.match(np.arange(TOKENS, dtype=np.int32) + np.int32(100 * number)).length
        for number in range(8)
    )
