"""What adapters add to a product, in each layout of its weight, and what a gate takes."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from radixlm.layers.linear import Linear
from radixlm.layers.lora import Adapted, AdaptedRows, Addition
from radixlm.products.compiled import GATES, GateKind, TensorOptions
from radixlm.products.gemm_choice import LAYOUTS, GemmChoice, Way, one_way, ways_of
from radixlm.products.low_rank import LowRank

CPU = torch.device("cpu")
SIZES = {"a": 104, "b": 104}


def low_rank(start: int, size: int, rank: int) -> LowRank:
    return LowRank(start, torch.randn(rank, 64), torch.randn(size, rank))


def expected(x: Tensor, weight: Tensor, rows: list[tuple[int, int, list[LowRank]]]) -> Tensor:
    made = functional.linear(x, weight)
    for first, last, parts in rows:
        for start, a, b in parts:
            made[first:last, start : start + b.shape[0]] += x[first:last] @ a.t() @ b.t()
    return made


@pytest.mark.parametrize("way", LAYOUTS)
@pytest.mark.parametrize("gate", [None, *GATES])
def test_each_adapter_adds_to_its_own_rows(way: Way, gate: GateKind | None) -> None:
    torch.manual_seed(0)
    linear = Linear(64, SIZES, TensorOptions(torch.float32, CPU), bias=False, gate=gate)
    if way not in ways_of(linear.weight, gated=gate is not None):
        pytest.skip(f"this machine has no {way}")
    linear.weight.normal_()
    weight, x = linear.weight.clone(), torch.randn(9, 64)
    linear.pack(lambda *_: GemmChoice([(1, way)]))
    both = [low_rank(0, 104, 3), low_rank(104, 104, 5)]
    second, all_of_it = [low_rank(104, 104, 4)], [low_rank(0, 208, 2)]
    rows = [(1, 4, both), (4, 5, second), (5, 8, all_of_it)]
    adapted = Adapted(
        [AdaptedRows({linear: Addition(linear, parts)}, first, last) for first, last, parts in rows]
    )
    wanted = expected(x, weight, rows)
    if gate is not None:
        wanted = GATES[gate](wanted[:, :104]) * wanted[:, 104:]
    with torch.inference_mode():
        torch.testing.assert_close(adapted(linear, x), wanted, atol=1e-3, rtol=1e-4)


def test_other_products_are_left_alone() -> None:
    linear, other = (
        Linear(64, SIZES, TensorOptions(torch.float32, CPU), bias=False) for _ in range(2)
    )
    linear.weight.normal_()
    x = torch.randn(3, 64)
    adapted = Adapted([AdaptedRows({other: Addition(other, [low_rank(0, 104, 3)])}, 0, 3)])
    assert torch.equal(adapted(linear, x), linear(x))


UNEVEN = {"a": 70, "b": 21}
ROWS = 150
WRONG = {torch.float32: 1e-5, torch.bfloat16: 1e-2, torch.float16: 2e-3}


def uneven(dtype: torch.dtype, inputs: int) -> tuple[Linear, list[tuple[int, int, list[LowRank]]]]:
    """A product that is no whole number of vectors, and adapters of any rank on all rows but one;
    one of them adapts a part alone, and the first one is there twice.
    """
    torch.manual_seed(0)
    linear = Linear(inputs, UNEVEN, TensorOptions(dtype, CPU), bias=False)
    linear.weight.normal_()

    def part(start: int, size: int, rank: int) -> LowRank:
        a, b = torch.randn(rank, inputs), torch.randn(size, rank)
        return LowRank(start, a.to(dtype), b.to(dtype))

    first = [part(0, 70, 16), part(70, 21, 1)]
    return linear, [
        (0, 70, first),
        (71, 72, [part(70, 21, 19)]),
        (72, 149, [part(0, 70, 7), part(70, 21, 12)]),
        (149, ROWS, first),
    ]


def adapting(linear: Linear, rows: list[tuple[int, int, list[LowRank]]]) -> Adapted:
    made = {id(parts): Addition(linear, parts) for *_, parts in rows}
    return Adapted(
        [AdaptedRows({linear: made[id(parts)]}, first, last) for first, last, parts in rows]
    )


@pytest.mark.parametrize("inputs", [64, 37])
@pytest.mark.parametrize("dtype", WRONG)
def test_any_sizes_and_many_rows(dtype: torch.dtype, inputs: int) -> None:
    linear, rows = uneven(dtype, inputs)
    x = torch.randn(ROWS, inputs).to(dtype)
    exact = [
        (first, last, [LowRank(start, a.double(), b.double()) for start, a, b in parts])
        for first, last, parts in rows
    ]
    wanted = expected(x.double(), linear.weight.double(), exact)
    with torch.inference_mode():
        found = adapting(linear, rows)(linear, x)
        assert found.dtype == dtype
        error = (found.double() - wanted).abs().max() / wanted.abs().max()
    assert error < WRONG[dtype]
    assert not torch.equal(found[71:72], linear(x)[71:72])
    assert torch.equal(found[70], linear(x)[70])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_row_has_the_same_bits_in_any_company(dtype: torch.dtype) -> None:
    linear, rows = uneven(dtype, 64)
    linear.pack(one_way)
    x = torch.randn(ROWS, 64).to(dtype)
    with torch.inference_mode():
        together = adapting(linear, rows)(linear, x)
        for first, last, parts in rows:
            for row in (first, last - 1):
                alone = adapting(linear, [(0, 1, parts)])(linear, x[row : row + 1])
                assert torch.equal(alone[0], together[row])
