"""What adapters add to a product, in each layout of its weight, and what a gate takes."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from radixlm.layers.compiled import TensorOptions
from radixlm.layers.linear import Linear
from radixlm.layers.lora import Adapted, AdaptedRows, Addition, LowRank
from radixlm.layers.ways import LAYOUTS, Choice, Way, ways_of

CPU = torch.device("cpu")
SIZES = {"a": 96, "b": 96}


def low_rank(start: int, size: int, rank: int) -> LowRank:
    return LowRank(start, torch.randn(rank, 64), torch.randn(size, rank))


def expected(x: Tensor, weight: Tensor, rows: list[tuple[int, int, list[LowRank]]]) -> Tensor:
    made = functional.linear(x, weight)
    for first, last, parts in rows:
        for start, a, b in parts:
            made[first:last, start : start + b.shape[0]] += x[first:last] @ a.t() @ b.t()
    return made


@pytest.mark.parametrize("way", LAYOUTS)
@pytest.mark.parametrize("gated", [False, True])
def test_each_adapter_adds_to_its_own_rows(way: Way, gated: bool) -> None:
    torch.manual_seed(0)
    linear = Linear(64, SIZES, TensorOptions(torch.float32, CPU), bias=False, gated=gated)
    if way not in ways_of(linear.weight, gated=gated):
        pytest.skip(f"this machine has no {way}")
    linear.weight.normal_()
    weight, x = linear.weight.clone(), torch.randn(9, 64)
    linear.pack(lambda *_: Choice([(1, way)]))
    both = [low_rank(0, 96, 3), low_rank(96, 96, 5)]
    second, all_of_it = [low_rank(96, 96, 4)], [low_rank(0, 192, 2)]
    rows = [(1, 4, both), (4, 5, second), (5, 8, all_of_it)]
    adapted = Adapted(
        [AdaptedRows({linear: Addition(parts)}, first, last) for first, last, parts in rows]
    )
    wanted = expected(x, weight, rows)
    if gated:
        wanted = functional.silu(wanted[:, :96]) * wanted[:, 96:]
    with torch.inference_mode():
        torch.testing.assert_close(adapted(linear, x), wanted, atol=1e-3, rtol=1e-4)


def test_other_products_are_left_alone() -> None:
    linear, other = (
        Linear(64, SIZES, TensorOptions(torch.float32, CPU), bias=False) for _ in range(2)
    )
    linear.weight.normal_()
    x = torch.randn(3, 64)
    adapted = Adapted([AdaptedRows({other: Addition([low_rank(0, 96, 3)])}, 0, 3)])
    assert torch.equal(adapted(linear, x), linear(x))
