"""Whether one way is faster than another, or the rounds are noise."""

from __future__ import annotations

import pytest

from radixlm.bench.bench_reports import Contrast


@pytest.mark.parametrize(
    ("off", "on", "noise"),
    [
        pytest.param((8.0, 8.2, 8.8), (2.0, 2.0, 2.2), False, id="four times"),
        pytest.param((0.9, 0.6, 0.6), (0.8, 0.3, 0.3), False, id="a slow round of both"),
        pytest.param((1.0, 1.3, 1.1), (1.2, 1.1, 1.0), True, id="now one, now the other"),
        pytest.param((1.01, 1.05, 1.2), (1.0, 1.0, 1.0), True, id="less than the rounds differ"),
        pytest.param((0.5, 0.5, 0.6), (1.0, 1.0, 1.1), False, id="the cache hurts"),
    ],
)
def test_a_difference_is_noise_where_the_rounds_differ_as_much(
    off: tuple[float, ...], on: tuple[float, ...], noise: bool
) -> None:
    assert Contrast(off=off, on=on).is_noise == noise
    assert ("noise" in Contrast(off=off, on=on).sentence()) == noise


def test_a_drift_that_both_share_is_left_out() -> None:
    contrast = Contrast(off=(4.0, 8.0, 2.0), on=(2.0, 4.0, 1.0))
    assert contrast.sentence() == (
        "With the cache off it takes 2.00 times as long (2.00 to 2.00 in 3 rounds)."
    )


def test_one_round_says_that_it_is_one() -> None:
    assert "in one round: --rounds 3" in Contrast(off=(4.0,), on=(2.0,)).sentence()
