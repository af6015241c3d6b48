from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.tensor.attention_cases import Heads, make_case, random_shapes, reference, run

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
