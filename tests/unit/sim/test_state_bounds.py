"""The bound of any placement of checkpoints, beside all choices that there are."""

from __future__ import annotations

from itertools import product
from typing import NamedTuple

import numpy as np
import pytest

from radixlm.sim.state_bounds import placed


class Asked(NamedTuple):
    parts: tuple[int, ...]
    held: int


def best_choice(sizes: list[int], asked: list[Asked], slots: list[int]) -> int:
    """By trying all: for each request nothing, or a part that a request had before."""
    ways: list[list[tuple[int, int]]] = []
    for number, each in enumerate(asked):
        found, end = [(number, 0)], 0
        for part in each.parts:
            end += sizes[part]
            last = [at for at in range(number) if part in asked[at].parts]
            if last and end <= each.held:
                found.append((last[-1], end))
        ways.append(found)
    best = 0
    for choice in product(*ways):
        room = list(slots)
        for until, (since, _) in enumerate(choice):
            for at in range(since + 1, until + 1):
                room[at] -= 1
        if min(room) >= 0:
            best = max(best, sum(gain for _, gain in choice))
    return best


@pytest.mark.parametrize("seed", range(12))
def test_no_choice_passes_the_bound_and_the_best_one_is_near(seed: int) -> None:
    draw = np.random.default_rng(seed)
    sizes = draw.integers(1, 20, 6).tolist()
    paths = [(0,), (0, 1), (0, 2), (0, 2, 3), (4,), (4, 5)]
    asked = []
    for _ in range(8):
        parts = paths[draw.integers(len(paths))]
        whole = sum(sizes[part] for part in parts)
        asked.append(Asked(parts, whole if draw.random() < 0.8 else sizes[parts[0]]))
    slots = draw.integers(0, 3, 8).tolist()
    most, found = best_choice(sizes, asked, slots), placed(sizes, asked, slots)
    assert most - 1e-6 <= found <= 1.15 * most + 1


def test_what_had_no_keys_and_values_can_not_be_found() -> None:
    asked = [Asked((0, 1), 0), Asked((0, 1), 13), Asked((0, 1), 10)]
    assert placed([10, 5], asked, [1, 1, 1]) == pytest.approx(23)


def test_slots_that_running_requests_take_hold_no_checkpoint() -> None:
    asked = [Asked((0,), 0), Asked((1,), 0), Asked((0,), 10), Asked((1,), 10)]
    found = [placed([10, 10], asked, [2, 2, room, 2]) for room in (2, 1, 0)]
    assert found == pytest.approx([20, 10, 0], abs=0.2)
