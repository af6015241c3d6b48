"""The bound of checkpoints' placement against an exhaustive search on small traces."""

from __future__ import annotations

from functools import cache
from itertools import combinations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from radixlm.sim.bounds import CLAIRVOYANT, PLACEMENT, History

Prompt = tuple[int, ...]
prompts = st.lists(st.integers(0, 1), min_size=2, max_size=5).map(tuple)
traces = st.lists(prompts, min_size=2, max_size=6)


def history(trace: list[Prompt]) -> History:
    made = History(1)
    for prompt in trace:
        made.note(np.array(prompt, np.int32), np.array([2], np.int32), None, held=len(prompt) - 1)
    return made


def best(trace: list[Prompt], slots: int) -> int:
    """Most tokens that any placement finds; all are tried. A request computes the states after the
    one that it goes on from, and keeps some of these and of what was there.
    """

    @cache
    def from_here(number: int, kept: frozenset[Prompt]) -> int:
        if number == len(trace):
            return 0
        prompt, most = trace[number], 0
        for start in [(), *(state for state in kept if prompt[: len(state)] == state)]:
            if len(start) == len(prompt):
                continue
            possible = kept | {prompt[:end] for end in range(len(start) + 1, len(prompt) + 1)}
            for size in range(min(slots, len(possible)) + 1):
                for some in combinations(sorted(possible), size):
                    most = max(most, len(start) + from_here(number + 1, frozenset(some)))
        return most

    return from_here(0, frozenset())


@settings(max_examples=40, deadline=None)
@given(traces, st.integers(1, 3))
def test_no_placement_finds_more(trace: list[Prompt], slots: int) -> None:
    total = sum(map(len, trace))
    bounds = history(trace).bounds(100, slots + 1)
    assert best(trace, slots) / total - 1e-6 <= bounds[PLACEMENT] <= bounds[CLAIRVOYANT]


def test_prices_bring_it_down_to_the_slots_that_there_are() -> None:
    """Four prompts in turn, of which two states are kept: half of what each could find."""
    trace = [(kind, 7, 7, 7, 7) for kind in range(4)] * 50
    found = history(trace).bounds(10_000, 3)[PLACEMENT]
    assert 0.35 < found < 0.43
    assert history(trace).bounds(10_000, 5)[PLACEMENT] > 0.78
