"""What a step costs, by what was measured."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from radixlm.core.errors import ConfigError
from radixlm.sim.costs import Costs, Timed, made_up, read_costs

# 1 ms a new token, 0.1 ms for a row's sampling, 1 us for a token and one before it.
PAIR = 1e-6


def prefill(n: int, c: int) -> Timed:
    return Timed(n, c, 1e-3 * n + 1e-4 + PAIR * n * (c + n / 2))


def decode(n: int, c: int) -> Timed:
    return Timed(n, c, 1.1e-3 * n + PAIR * n * c)


COSTS = Costs(
    "model",
    tuple(prefill(n, c) for n in (1, 10, 100, 1_000) for c in (0, 500, 5_000)),
    tuple(decode(n, c) for n in (1, 8, 64) for c in (10, 1_000)),
    overhead=0.01,
)


def test_what_was_measured_is_what_it_says():
    for each in COSTS.prefill:
        found = COSTS.step([(each.size, each.context)], 1, 0, 0)
        assert found == pytest.approx(each.seconds, rel=1e-6)
    for each in COSTS.decode:
        found = COSTS.step((), 0, each.size, each.size * each.context)
        assert found == pytest.approx(each.seconds, rel=1e-6)


def test_between_and_beyond_it_goes_on_in_proportion():
    assert COSTS.step([(300, 0)], 1, 0, 0) == pytest.approx(0.3 + PAIR * 300 * 150, rel=0.01)
    assert COSTS.step((), 0, 128, 0) == pytest.approx(128 * 1.1e-3, rel=0.01)


def test_a_mixed_step_costs_its_products_once_and_its_rows_beside():
    found = COSTS.step([(60, 300), (40, 0)], 1, 8, 8 * 200)
    rows, reads = 9 * 1e-4, PAIR * (60 * 330 + 40 * 20 + 8 * 200)
    assert found == pytest.approx(108e-3 + rows + reads, rel=0.02)


def test_costs_are_read_as_they_were_written(tmp_path: Path):
    path = tmp_path / "costs.json"
    path.write_text(COSTS.written())
    assert read_costs(path) == COSTS


@pytest.mark.parametrize(
    "change",
    [
        {"prefill": []},
        {"prefill": [[1, 0, -1.0]]},
        {"prefill": [[1, 7, 1.0]]},
        {"decode": [[0, 1, 1.0]]},
        {"decode": "no"},
        {"decode": [[1, 2]]},
        {"overhead": "nan"},
        {"overhead": 10**400},
        {"decode": [[float("inf"), 1, 1.0]]},
        {"about": 3},
    ],
)
def test_what_is_no_costs_is_refused(change, tmp_path: Path):
    path = tmp_path / "costs.json"
    path.write_text(json.dumps({**json.loads(COSTS.written()), **change}))
    with pytest.raises(ConfigError):
        read_costs(path)


def test_costs_that_nobody_measured():
    assert made_up("none").step([(1_000, 500)], 1, 8, 8_000) == 0
    assert 0.01 < made_up("node").step((), 0, 1, 1_000) < 0.02
    with pytest.raises(ConfigError, match="'fast' is not node, none, or a file"):
        made_up("fast")
