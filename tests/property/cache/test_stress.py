"""Seeded stress of the cache against a brute-force model; see benchmarks/cache_stress.py."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from benchmarks.cache_stress import CheckedCache, Mismatch, PrefixModel, Stress

SETUPS = [(1, 32), (1, 12), (4, 24), (16, 24)]


@pytest.mark.parametrize(("page_size", "pages"), SETUPS)
@pytest.mark.parametrize("seed", [0, 1])
def test_cache_agrees_with_the_model_after_every_operation(
    page_size: int, pages: int, seed: int
) -> None:
    counts = Stress(seed, page_size, pages=pages).run(1_000, check_every=1)
    rare = ("splits", "evicted", "trims", "remaps", "duplicates", "refused")
    assert all(counts[name] > 0 for name in rare), counts


def test_disabled_cache_agrees_with_the_model() -> None:
    counts = Stress(0, 4, enabled=False).run(1_000, check_every=5)
    assert counts["splits"] == counts["evicted"] == counts["remaps"] == 0


def test_same_seed_same_run() -> None:
    assert Stress(7).run(500, 50) == Stress(7).run(500, 50)


@pytest.mark.slow
def test_long_run(capsys: pytest.CaptureFixture[str]) -> None:
    total: Counter[str] = Counter()
    for seed, (page_size, pages) in enumerate(SETUPS):
        total.update(Stress(seed, page_size, pages=pages).run(50_000, check_every=25))
    with capsys.disabled():
        print(f"\ncache stress: {dict(total)}")
    assert total["operations"] >= 200_000


def test_the_model_bites() -> None:
    """The comparison itself is tested: another slot's content is noticed at once."""
    checked = CheckedCache(16)
    reader = checked.acquire(np.array([1, 2, 3], dtype=np.int32), None)
    checked.extend(reader, 3)
    checked.memory[reader.row[1]] = 0
    with pytest.raises(Mismatch, match="other prefixes"):
        checked.commit(reader, 3)


def test_the_model_evicts_the_oldest_end_first() -> None:
    model = PrefixModel(1)
    long, short = model.codes(None, [1, 2, 3]), model.codes(None, [1, 9])
    model.insert(long, [10, 11, 12])
    model.insert(short, [10, 13])
    assert model.evict(1) == [12]
    model.touch(long[2])
    assert model.evict(2) == [13, 11]
