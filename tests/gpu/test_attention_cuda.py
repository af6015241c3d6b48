from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.tensor.attention_cases import (
    KINDS,
    Heads,
    make_case,
    random_shapes,
    reference,
    run,
    worst_in_trees,
)

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU"),
]
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 2e-2}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("heads", [Heads(4, 4, 64), Heads(9, 3, 64), Heads(6, 1, 16)])
@pytest.mark.parametrize("scattered", [False, True])
def test_any_mixture_equals_the_dense_reference(
    dtype: torch.dtype, heads: Heads, scattered: bool
) -> None:
    for seed in range(6):
        shapes = random_shapes(np.random.default_rng(seed))
        case = make_case(shapes, heads, dtype, "cuda", seed=seed, scattered=scattered)
        worst = (run(case).double() - reference(case)).abs().max().item()
        assert worst < TOLERANCE[dtype], f"{shapes}: off by {worst}"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", KINDS)
def test_steps_over_trees_equal_it_too(dtype: torch.dtype, kind: str) -> None:
    # What is not written must not be read: new memory holds no number.
    torch.full((1 << 28,), float("nan"), device="cuda")
    worst = worst_in_trees(kind, dtype, "cuda")
    assert worst < 2 * TOLERANCE[dtype]


def test_cudnn_s_attention_is_off() -> None:
    case = make_case([(9, 1)], Heads(4, 4, 64), torch.float32, "cuda", seed=0, scattered=False)
    run(case)
    assert not torch.backends.cuda.cudnn_sdp_enabled()
