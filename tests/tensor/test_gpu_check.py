"""The checks for GPUs run, small, on the CPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from scripts.gpu_check import graphs, hardware, kernels, overlap, products, speeds, tokens
from scripts.gpu_check.commands import memcheck
from scripts.gpu_check.place import Finding, Place


@pytest.mark.parametrize(
    "check",
    [
        hardware.hardware,
        graphs.graphs,
        speeds.model_small,
        kernels.attention,
        kernels.launches,
        kernels.tiles,
        products.products,
        overlap.overlap,
        speeds.parts,
        speeds.trace,
        memcheck,
        pytest.param(tokens.tokens, marks=pytest.mark.slow),
    ],
)
def test_a_check_runs(check: Callable[[Place], Iterator[Finding]], tmp_path: Path) -> None:
    found = list(check(Place("cpu", small=True, out=tmp_path)))
    assert found
    assert len({row["what"] for row in found}) == len(found)
    assert not [row for row in found if row.get("ok") is False]
    assert all(value for row in found for value in row.values() if isinstance(value, float))
