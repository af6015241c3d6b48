"""StopScanner against brute force, on every short text and every short stop string."""

from __future__ import annotations

from itertools import combinations, product

import pytest

from radixlm.text.detokenizer import StopHit, StopScanner

WORDS = ["".join(word) for size in (1, 2, 3, 4) for word in product("ab", repeat=size)]
TEXTS = ["".join(text) for text in product("ab", repeat=7)]


def brute_force(stops: tuple[str, ...], text: str) -> StopHit | None:
    for end in range(1, len(text) + 1):
        found = [stop for stop in stops if text[:end].endswith(stop)]
        if found:
            return StopHit(max(found, key=len), end)
    return None


def held_back(stops: tuple[str, ...], text: str) -> int:
    return max(
        size
        for size in range(len(text) + 1)
        if size == 0 or any(size < len(s) and s.startswith(text[-size:]) for s in stops)
    )


@pytest.mark.parametrize("stop", WORDS)
def test_one_stop_string_on_every_text(stop):
    for text in TEXTS:
        assert StopScanner((stop,)).feed(text) == brute_force((stop,), text)
        scanner = StopScanner((stop,))
        for end, character in enumerate(text, start=1):
            hit = scanner.feed(character)
            assert (hit is not None) == text[:end].endswith(stop)
            assert scanner.pending == held_back((stop,), text[:end])


def test_pairs_of_stop_strings():
    for pair in combinations(WORDS[2:14], 2):
        for text in TEXTS[::5]:
            assert StopScanner(pair).feed(text) == brute_force(pair, text)


def test_the_longest_wins_where_several_end():
    assert StopScanner(("b", "ab", "xab")).feed("zab") == StopHit("ab", 3)


def test_what_ends_unarmed_is_passed_over_but_may_begin_another():
    scanner = StopScanner(("aa",))
    assert scanner.feed("xaa", armed=False) is None
    assert scanner.pending == 1
    assert scanner.feed("a") == StopHit("aa", 1)
