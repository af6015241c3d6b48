from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.tensor.attention_cases import BACKENDS, Heads, make_case, random_shapes, reference, run

TOLERANCE = {torch.float32: 2e-6, torch.bfloat16: 2e-2}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    "heads",
    [Heads(6, 3, 16), Heads(4, 1, 8), pytest.param(Heads(4, 4, 16), marks=pytest.mark.slow)],
)
@pytest.mark.parametrize("scattered", [False, True])
@pytest.mark.parametrize("backend", BACKENDS)
def test_any_mixture_equals_the_dense_reference(
    dtype: torch.dtype, heads: Heads, scattered: bool, backend: str
) -> None:
    for seed in range(3):
        shapes = random_shapes(np.random.default_rng(seed))
        case = make_case(shapes, heads, dtype, "cpu", seed=seed, scattered=scattered)
        out = run(case, backend=backend)
        assert out.dtype == dtype
        assert out.shape == case.q.shape
        worst = (out.double() - reference(case)).abs().max().item()
        assert worst < TOLERANCE[dtype], f"{shapes}: off by {worst}"


def test_a_few_long_contexts_are_cut_in_pieces() -> None:
    heads = Heads(4, 1, 8)
    for shapes in ([(1500, 1)], [(3000, 1), (1, 1)], [(2000, 2), (600, 1)]):
        case = make_case(shapes, heads, torch.float32, "cpu", seed=5, scattered=True)
        out = run(case, backend="direct")
        assert (out.double() - reference(case)).abs().max().item() < 2e-6, shapes


def test_new_tokens_are_written_before_they_are_read() -> None:
    case = make_case([(3, 2)], Heads(2, 1, 4), torch.float32, "cpu", seed=1, scattered=True)
    run(case)
    assert torch.equal(case.pool.keys[1][case.slots], case.k)
    assert torch.equal(case.pool.values[1][case.slots], case.v)


def test_a_row_does_not_hang_on_its_neighbours() -> None:
    heads = Heads(4, 2, 8)
    shapes = [(40, 1), (60, 1), (55, 1), (10, 6)]
    case = make_case(shapes, heads, torch.float32, "cpu", seed=3, scattered=True)
    together = run(case)
    alone = case._replace(rows=case.rows[1:2], slots=case.slots[1:2])
    alone = alone._replace(q=case.q[1:2], k=case.k[1:2], v=case.v[1:2])
    torch.testing.assert_close(run(alone)[0], together[1], atol=1e-6, rtol=0)
