"""Layers in which a token sees only the last tokens, itself included."""

from __future__ import annotations

import functools

import numpy as np
import pytest
import torch
from torch import Tensor

from radixlm.attention.backends import CpuBackend
from radixlm.attention.plan import ChunkSize, make_plan
from tests.tensor.attention_cases import (
    BACKENDS,
    DTYPES,
    EVERYTHING,
    Case,
    Heads,
    apart,
    in_codes,
    make_case,
    make_tree_case,
    random_shapes,
    random_tree,
    reference,
    run,
)


def mixture(dtype: torch.dtype, window: int) -> Case:
    rng = np.random.default_rng(window)
    shapes = [*random_shapes(rng), (700, 1), (900, 600), (0, 40), (63, 9)]
    return make_case(shapes, Heads(6, 3, 16), dtype, "cpu", seed=window, scattered=window % 2 > 0)


@functools.cache
def expected(dtype: torch.dtype, kind: type[int], window: int) -> Tensor:
    """The reference for a mixture, the same for all backends."""
    case = mixture(dtype, window)
    run(case)
    return reference(case, kind(window))


@pytest.mark.parametrize("window", [1, 2, 5, 64, 300, 5000])
@pytest.mark.parametrize("kind", [int, ChunkSize])
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(("dtype", "near"), DTYPES)
def test_a_token_sees_its_window(
    dtype: torch.dtype, near: float, backend: str, kind: type[int], window: int
) -> None:
    out = run(mixture(dtype, window), backend=backend, window=kind(window))
    assert (out.double() - expected(dtype, kind, window)).abs().max().item() < near


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("kind", [int, ChunkSize])
@pytest.mark.parametrize("backend", BACKENDS)
def test_shared_nodes_in_windows(backend: str, kind: type[int], seed: int) -> None:
    rng = np.random.default_rng(seed)
    page = int(rng.choice([0, 1, 4]))
    paths = random_tree(rng, depth=4, page=page)
    case = make_tree_case(paths, Heads(6, 3, 16), torch.float32, "cpu", seed=seed, page=page)
    window = kind(rng.choice([3, 17, 60]))
    out = run(case, EVERYTHING, backend, window)
    assert (out.double() - reference(case, window)).abs().max().item() < 5e-6


@pytest.mark.parametrize("backend", ["torch", "cpu", "tiles"])
def test_windows_of_a_coded_pool(backend: str) -> None:
    shapes = [(200, 1), (150, 90)]
    case = in_codes(
        make_case(shapes, Heads(6, 2, 64), torch.bfloat16, "cpu", seed=3, scattered=True)
    )
    out = run(case, backend=backend, window=50)
    assert (out.double() - reference(case, 50)).abs().max().item() < 5e-2


@pytest.mark.parametrize("backend", ["torch", "tiles"])
def test_what_no_token_sees_is_not_read(backend: str) -> None:
    """Freed memory may hold anything, numbers that are none among it."""
    case = make_case([(600, 30)], Heads(2, 1, 16), torch.float32, "cpu", seed=4, scattered=True)
    for side in (case.pool.keys[1], case.pool.values[1]):
        side[case.table[1, : 600 - 63].long()] = float("nan")
    out = run(case, backend=backend, window=64)
    assert not out.isnan().any()


@pytest.mark.parametrize("window", [1, 5, 64, ChunkSize(64), 5000])
@pytest.mark.parametrize("backend", BACKENDS)
def test_layers_with_slots_of_their_own(backend: str, window: int) -> None:
    """Rows share nodes, and are shorter and longer than the window. Outside it there is NaN."""
    rng = np.random.default_rng(window)
    paths = random_tree(rng, depth=4, page=1)
    case = make_tree_case(paths, Heads(6, 3, 16), torch.float32, "cpu", seed=window, page=1)
    expected = run(case, EVERYTHING, backend, window)
    assert torch.equal(run(case, EVERYTHING, backend, window), expected)
    out = run(apart(case, window), EVERYTHING, backend, window)
    assert (out - expected).abs().max().item() < 5e-6


def test_one_plan_serves_all_layers_while_contexts_are_short() -> None:
    case = make_case([(30, 1)], Heads(2, 1, 16), torch.float32, "cpu", seed=4, scattered=True)
    plan = make_plan(case.rows)
    assert plan.within(31) is plan
    assert plan.within(ChunkSize(31)) is plan
    assert plan.within(30).kv_tokens_read == 30
    assert plan.within(ChunkSize(30)).kv_tokens_read == 1
    attend = CpuBackend(case.pool, 2, windows=(None, 31)).prepare(plan, case.table, case.slots)
    assert hasattr(attend, "workers")
