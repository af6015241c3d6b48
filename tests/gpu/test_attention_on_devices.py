from __future__ import annotations

import numpy as np
import pytest
import torch

from radixlm.layers.expansion import LatentSizes
from tests.tensor.attention.test_latents import check, make_step
from tests.tensor.attention_cases import (
    HEADS,
    KINDS,
    Heads,
    Path,
    make_case,
    random_shapes,
    random_tree,
    reference,
    run,
    worst_in_trees,
)

TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 2e-2, torch.float16: 3e-3}


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


def backends_of(device: torch.device) -> list[str]:
    return ["torch", "gpu"] if device.type == "cuda" else ["torch"]


@pytest.mark.parametrize(
    ("kind", "dtype", "heads"),
    [
        *((kind, dtype, HEADS) for kind in KINDS for dtype in (torch.bfloat16, torch.float32)),
        ("plain", torch.bfloat16, Heads(32, 8, 128)),
        ("coded", torch.bfloat16, Heads(32, 8, 128)),
        ("plain", torch.bfloat16, Heads(8, 2, 256)),
        ("plain", torch.bfloat16, Heads(8, 1, 512)),
        ("plain", torch.float16, Heads(9, 3, 80)),
        ("plain", torch.bfloat16, Heads(71, 1, 64)),
        ("plain", torch.float32, Heads(4, 1, 256)),
    ],
    ids=str,
)
def test_steps_over_trees_equal_it_too(
    device: torch.device, kind: str, dtype: torch.dtype, heads: Heads
) -> None:
    # What is not written must not be read: new memory of a GPU holds no number.
    torch.full((1 << (28 if device.type == "cuda" else 10),), float("nan"), device=device)
    for backend in backends_of(device):
        worst = worst_in_trees(kind, dtype, device, heads, backend)
        assert worst < 2 * TOLERANCE[dtype], backend


@pytest.mark.parametrize("n_heads", [4, 20, 128])
def test_latents_over_trees(device: torch.device, n_heads: int) -> None:
    """Of DeepSeek's sizes; a prompt is expanded, other rows are absorbed."""
    sizes = LatentSizes(rank=512, turned=64, plain=128, values=128)
    for seed in range(2):
        paths = random_tree(np.random.default_rng(seed), depth=3, page=seed)[:8]
        paths += [Path((), 9, 60)]
        step = make_step(
            paths, torch.bfloat16, seed=seed, page=seed, device=device, sizes=sizes, n_heads=n_heads
        )
        check(step, "compiled", 5e-2)
