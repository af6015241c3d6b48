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

TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 2e-2}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("heads", [Heads(4, 4, 64), Heads(9, 3, 64), Heads(6, 1, 16)])
@pytest.mark.parametrize("scattered", [False, True])
def test_any_mixture_equals_the_dense_reference(
    device: torch.device, dtype: torch.dtype, heads: Heads, scattered: bool
) -> None:
    for seed in range(6):
        shapes = random_shapes(np.random.default_rng(seed))
        case = make_case(shapes, heads, dtype, device, seed=seed, scattered=scattered)
        worst = (run(case).double() - reference(case)).abs().max().item()
        assert worst < TOLERANCE[dtype], f"{shapes}: off by {worst}"
    # It builds a plan for each length of a context, if torch may take it.
    assert device.type == "cpu" or not torch.backends.cuda.cudnn_sdp_enabled()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", KINDS)
def test_steps_over_trees_equal_it_too(device: torch.device, dtype: torch.dtype, kind: str) -> None:
    # What is not written must not be read: new memory of a GPU holds no number.
    torch.full((1 << (28 if device.type == "cuda" else 10),), float("nan"), device=device)
    worst = worst_in_trees(kind, dtype, device)
    assert worst < 2 * TOLERANCE[dtype]
