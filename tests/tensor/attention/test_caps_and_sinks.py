"""Scores that are capped, and heads that give part of their weight to nothing."""

from __future__ import annotations

import functools

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.tensor.attention_cases import (
    BACKENDS,
    DTYPES,
    EVERYTHING,
    Case,
    Heads,
    in_codes,
    make_case,
    make_tree_case,
    random_shapes,
    random_tree,
    reference,
    run,
)

HEADS = Heads(6, 3, 16)  # those of other tests: kernels of each shape are compiled
# Far above, near, and far below all scores of these cases.
SINKS = torch.tensor([-300.0, -1.0, 0.5, 4.0, 40.0, 300.0])


def mixture(dtype: torch.dtype) -> Case:
    rng = np.random.default_rng(7)
    shapes = [*random_shapes(rng), (700, 1), (900, 600), (0, 40)]
    return make_case(shapes, HEADS, dtype, "cpu", seed=7, scattered=True)


@functools.cache
def expected(dtype: torch.dtype, cap: float, sinks: Tensor | None) -> Tensor:
    """The reference for the mixture, the same for all backends."""
    case = mixture(dtype)
    run(case)
    return reference(case, 70, cap, sinks)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(("dtype", "near"), DTYPES)
@pytest.mark.parametrize(("cap", "sinks"), [(1.5, None), (0.0, SINKS), (1.5, SINKS)])
def test_one_answer_of_all_backends(
    cap: float,
    sinks: Tensor | None,
    dtype: torch.dtype,
    near: float,
    backend: str,
) -> None:
    out = run(mixture(dtype), backend=backend, window=70, cap=cap, sinks=sinks)
    right = expected(dtype, cap, sinks)
    assert (right - expected(dtype, 0.0, None)).abs().max().item() > 10 * near
    assert (out.double() - right).abs().max().item() < near


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("backend", BACKENDS)
def test_shared_nodes_meet_a_sink_once(backend: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    page = int(rng.choice([0, 1, 4]))
    case = make_tree_case(
        random_tree(rng, depth=4, page=page),
        HEADS,
        torch.float32,
        "cpu",
        seed=seed,
        page=page,
    )
    out = run(case, EVERYTHING, backend, cap=1.5, sinks=SINKS)
    assert (out.double() - reference(case, None, 1.5, SINKS)).abs().max().item() < 5e-6


@pytest.mark.parametrize("backend", ["torch", "cpu", "tiles"])
def test_a_coded_pool(backend: str) -> None:
    plain = make_case(
        [(200, 1), (150, 90)], Heads(4, 2, 64), torch.bfloat16, "cpu", seed=3, scattered=True
    )
    case, sinks = in_codes(plain), SINKS[1:5]
    out = run(case, backend=backend, cap=1.5, sinks=sinks)
    assert (out.double() - reference(case, None, 1.5, sinks)).abs().max().item() < 5e-2


@pytest.mark.parametrize("backend", BACKENDS)
def test_what_is_no_number_is_seen(backend: str) -> None:
    case = make_case([(40, 1), (30, 9)], HEADS, torch.float32, "cpu", seed=4, scattered=False)
    case.k[-1] = float("nan")
    out = run(case, backend=backend, cap=1.5, sinks=SINKS)
    assert out[-1].isnan().all()
    assert not out[0].isnan().any()
