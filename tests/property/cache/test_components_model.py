"""Components and places, in all combinations, against a brute-force model."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.component_model import ComponentStress, Setup, setups

SETUPS = list(setups())


@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 6))]
)
@pytest.mark.parametrize("setup", SETUPS, ids=lambda setup: f"{setup[1:]}")
def test_every_step_is_the_models(setup: Setup, seed: int) -> None:
    ComponentStress(seed, setup).run(200)


@pytest.mark.slow  # runs the model again to count
def test_the_runs_see_what_is_rare() -> None:
    counts: Counter[str] = Counter()
    for seed, setup in enumerate(SETUPS):
        counts += ComponentStress(seed + 100, setup).run(200)
    rare = ["cut", "refused", "gave way", "states found", "states left", "states evicted",
            "states with their tokens", "stored", "dropped", "states stored", "states read",
            "pins refused"]  # fmt: skip
    assert not [name for name in rare if counts[name] <= 5], counts
