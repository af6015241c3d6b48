from __future__ import annotations

import numpy as np

from radixlm.runner.sampler import uniform


def test_it_hangs_on_seed_and_position_alone() -> None:
    assert uniform(7, 3) == uniform(7, 3)
    numbers = {uniform(seed, position) for seed in range(-20, 20) for position in range(50)}
    assert len(numbers) == 40 * 50


def test_known_values_do_not_change_between_releases() -> None:
    assert [uniform(0, 0), uniform(42, 1000), uniform(-1, 5)] == KNOWN


def test_seeds_of_64_bits_are_taken() -> None:
    assert 0.0 <= uniform(2**64 - 1, 2**31) < 1.0
    assert uniform(-1, 0) == uniform(2**64 - 1, 0)


def test_numbers_are_uniform_along_positions_and_along_seeds() -> None:
    along_positions = [uniform(1, position) for position in range(20_000)]
    along_seeds = [uniform(seed, 100) for seed in range(20_000)]
    for numbers in (along_positions, along_seeds):
        counts, _ = np.histogram(numbers, bins=100, range=(0, 1))
        chi_square = ((counts - 200.0) ** 2 / 200.0).sum()
        assert 60 < chi_square < 150  # 99 degrees of freedom: p beyond 0.001 on both sides
        assert abs(np.corrcoef(numbers[:-1], numbers[1:])[0, 1]) < 0.03


def test_the_largest_number_stays_below_the_total() -> None:
    largest = (2**52 - 1) * 2.0**-52
    assert all(largest * total < total for total in (1.0, 0.3, 1.5, np.nextafter(2.0, 1.0)))


KNOWN = [0.6524484863740321, 0.6952598398323255, 0.15403342580516743]
