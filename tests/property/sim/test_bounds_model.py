"""The bounds against an exhaustive search on small traces."""

from __future__ import annotations

from functools import cache
from itertools import combinations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from radixlm.sim.bounds import CLAIRVOYANT, KNOWABLE, NO_LIMIT, History

Prompt = tuple[int, ...]
prompts = st.lists(st.integers(0, 1), min_size=1, max_size=4).map(tuple)
traces = st.lists(st.tuples(prompts, prompts), min_size=1, max_size=7)


def history(trace: list[tuple[Prompt, Prompt]], unit: int = 1) -> History:
    made = History(unit)
    for prompt, answer in trace:
        made.note(np.array(prompt, np.int32), np.array(answer, np.int32), None)
    return made


def found(kept: frozenset[Prompt], prompt: Prompt) -> int:
    """Tokens of a prompt in a cache of prefixes, the last one left out."""
    there = 0
    while there < len(prompt) - 1 and prompt[: there + 1] in kept:
        there += 1
    return there


def best(trace: list[tuple[Prompt, Prompt]], room: int) -> int:
    """Most tokens that any cache of `room` prefixes could find; all of them are tried."""

    @cache
    def from_here(number: int, kept: frozenset[Prompt]) -> int:
        if number == len(trace):
            return 0
        prompt, answer = trace[number]
        whole = prompt + answer[:-1]
        possible = kept | {whole[:end] for end in range(1, len(whole) + 1)}
        most = 0
        for size in range(min(room, len(possible)) + 1):
            for some in combinations(sorted(possible), size):
                chosen = frozenset(some)
                if all(len(each) == 1 or each[:-1] in chosen for each in chosen):
                    most = max(most, from_here(number + 1, chosen))
        return found(kept, prompt) + most

    return from_here(0, frozenset())


@settings(max_examples=60, deadline=None)
@given(traces, st.integers(1, 4))
def test_no_cache_finds_more_than_the_clairvoyant_one(
    trace: list[tuple[Prompt, Prompt]], room: int
) -> None:
    total = sum(len(prompt) for prompt, _ in trace)
    assert history(trace).bounds(room)[CLAIRVOYANT] == round(best(trace, room) / total, 6)


@settings(max_examples=100, deadline=None)
@given(traces, st.integers(1, 12), st.sampled_from((1, 2)))
def test_bounds_stand_in_order(trace: list[tuple[Prompt, Prompt]], room: int, unit: int) -> None:
    bounds = history(trace, unit).bounds(room)
    assert 0 <= bounds[KNOWABLE] <= bounds[CLAIRVOYANT] <= bounds[NO_LIMIT] < 1
