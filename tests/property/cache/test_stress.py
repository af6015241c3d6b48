"""Seeded stress of the cache against a brute-force model; see tests/cache_stress.py."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from radixlm.core.misses import MissReason
from tests.cache_model import Mismatch, PrefixModel
from tests.cache_stress import LARGE, SMALL, Stress
from tests.checked_cache import CheckedCache

CACHING = [setup for setup in SMALL if setup.enabled]
OFF = next(setup for setup in SMALL if not setup.enabled)


@pytest.mark.parametrize(
    "setup",
    [
        pytest.param(
            setup,
            id=f"{setup.pages}x{setup.page_size}",
            marks=[pytest.mark.slow] if setup.pages > 12 else [],
        )
        for setup in CACHING
    ],
)
@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_cache_agrees_with_the_model_after_every_operation(setup, seed: int) -> None:
    counts = Stress(seed, setup).run(2_000, check_every=1)
    rare = ["splits", "merges", "evicted", "trims", "remaps", "duplicates", "aborts", "pins",
            "pins expired", "pins refused", "forgotten", "orders compared"]  # fmt: skip
    if setup.ghosts:
        rare += ["revived", "why evicted"]
    assert not [name for name in rare if not counts[name]], counts


def test_every_reason_is_told() -> None:
    counts: Counter[str] = Counter()
    for setup in SMALL:
        counts.update(Stress(3, setup).run(1_000, check_every=50))
    of_others = {MissReason.BLOCK_FLOOR, MissReason.WINDOW_EVICTED, MissReason.NO_STATE}
    assert all(counts[f"why {reason}"] > 0 for reason in set(MissReason) - of_others), counts


def test_disabled_cache_agrees_with_the_model() -> None:
    counts = Stress(0, OFF).run(1_000, check_every=5)
    assert counts["splits"] == counts["evicted"] == counts["remaps"] == counts["pins"] == 0
    assert counts["refused"] > 0


@pytest.mark.slow
def test_a_larger_tree() -> None:
    setup = replace(LARGE[0], pages=2_000, ghosts=2_000, fill=600, check_every=1_000)
    counts = Stress(0, setup).run(10_000)
    assert counts["nodes x operations"] > 500 * counts["operations"]
    assert counts["evicted"] > counts["revived"] > 0


def test_same_seed_same_run() -> None:
    assert Stress(7, SMALL[0]).run(500, 50) == Stress(7, SMALL[0]).run(500, 50)


@pytest.mark.slow
def test_long_run(capsys: pytest.CaptureFixture[str]) -> None:
    total: Counter[str] = Counter()
    for seed, setup in enumerate((*SMALL, *LARGE)):
        total.update(Stress(seed, setup).run(10_000 if setup in SMALL else 50_000))
    with capsys.disabled():
        print(f"\ncache stress: {dict(total)}")
    assert total["operations"] >= 150_000


def test_the_model_bites() -> None:
    """The comparison itself is tested: another slot's content is noticed at once."""
    checked = CheckedCache(16)
    reader = checked.acquire(np.array([1, 2, 3], dtype=np.int32), None)
    checked.extend(reader, 3)
    checked.memory[reader.row[1]] = 0
    with pytest.raises(Mismatch, match="other prefixes"):
        checked.commit(reader, 3)


class TestModel:
    def test_only_the_free_end_may_be_evicted(self) -> None:
        model = PrefixModel(1)
        long, short = model.codes(None, [1, 2, 3]), model.codes(None, [1, 9])
        model.insert(long, [10, 11, 12])
        assert model.insert(short, [10, 13]) == 1
        model.lock(short, 0, 2)
        for slots in ([11], [10], [13], [99]):
            with pytest.raises(Mismatch):
                PrefixModel.evict(model, slots, 0.0)
            model = PrefixModel(1)
            model.insert(long, [10, 11, 12])
            model.insert(short, [10, 13])
            model.lock(short, 0, 2)
        model.evict([11, 12], 5.0)
        assert (model.match(long, 3), model.evictable, len(model.ghosts)) == (1, 0, 2)
        assert model.insert(long, [10, 20, 21]) == 1
        assert (model.slots(long, 3), len(model.ghosts)) == ([10, 20, 21], 0)

    def test_a_ghost_is_forgotten_with_all_behind_it(self) -> None:
        model = PrefixModel(1)
        codes = model.codes(None, [1, 2])
        model.insert(codes, [10, 11])
        model.evict([10, 11], 0.0)
        with pytest.raises(Mismatch, match="something is behind it"):
            model.forget(codes[1:2])
