"""Window slots against a brute-force model: what is there, who locks it, what goes first."""

from __future__ import annotations

from collections import Counter

import pytest

from radixlm.cache.components.window_slots import WindowSize
from tests.window_model import CheckedWindows, WindowStress, setups


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize(("size", "slots", "page"), list(setups()))
def test_every_step_is_the_models(size: WindowSize, slots: int, page: int, seed: int) -> None:
    checked = CheckedWindows(size, slots, page, pin_budget=slots // 4)
    WindowStress(seed, checked, longest=slots // 2).run(200)


@pytest.mark.slow  # runs the model again to count
def test_the_runs_see_what_is_rare() -> None:
    counts: Counter[str] = Counter()
    for seed, (size, slots, page) in enumerate(setups()):
        checked = CheckedWindows(size, slots, page, pin_budget=slots // 4)
        counts += WindowStress(seed, checked, longest=slots // 2).run(300)
    for rare in ("cut", "tombstones", "healed", "passed", "refused", "pins refused", "copied"):
        assert counts[rare] > 5, counts
