"""Products of GPUs, by Triton's interpreter: what codes stand for, and a weight for each row."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from radixlm.kernels import gpu_launch
from radixlm.products.gpu_products import GpuProduct, Shared, knows
from radixlm.products.quantized import LEVELS, Numbers, QuantizedWeight
from radixlm.products.quantizing import quantize, quantize_e4m3

needs_triton = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None or "TRITON_INTERPRET" not in os.environ,
    reason="needs Triton's interpreter: make gpu-kernels",
)
CPU = torch.device("cpu")


def coded(bits: int, group: int, numbers: Numbers = "int", *, offsets: bool = False) -> Callable:
    """Makes any codes with any scales."""

    def make(weight: Tensor) -> QuantizedWeight:
        codes = torch.randint(0, 1 << bits, weight.shape, dtype=torch.uint8)
        scales = torch.rand(weight.shape[0], weight.shape[1] // group)
        more = torch.randn(scales.shape) if offsets else None
        return QuantizedWeight(codes, scales, more, bits, 3 if numbers == "int" else 0, numbers)

    return make


KINDS = {
    "int8": lambda weight: quantize(weight, bits=8),
    "int4/32": lambda weight: quantize(weight, bits=4, group=32),
    "int4/48 with offsets": coded(4, 48, offsets=True),
    "int6/16 with offsets": coded(6, 16, offsets=True),
    "fp8": quantize_e4m3,
    **{f"{numbers}/16": coded(4, 16, numbers) for numbers in LEVELS},
}


@pytest.fixture
def kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_launch, "DEVICES", ("cpu",))


@needs_triton
@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", KINDS)
def test_what_codes_stand_for(kind: str, dtype: torch.dtype) -> None:
    """In few, some and many rows; those of another type than the product."""
    torch.manual_seed(1)
    outputs, inputs = 70, 144 if "32" not in kind else 160
    weight, bias = KINDS[kind](torch.randn(outputs, inputs)), torch.randn(outputs).to(dtype)
    product = GpuProduct.coded(weight, bias, dtype, torch.float32, CPU)
    assert knows(weight)
    for rows in (1, 40, 70, 300):
        x = torch.randn(rows, 2 * inputs).to(dtype)[:, :inputs]  # rows that lie apart
        wanted = x.double() @ weight.dequantized().double().t() + bias.double()
        made = product(x)
        assert made.dtype == torch.float32
        size = 1e-5 if dtype == torch.float32 else 5e-2
        assert (made - wanted).abs().max() < size * wanted.std()


def shared_of(counts: list[int]) -> Shared:
    starts = torch.tensor([0, *counts]).cumsum(0, dtype=torch.int32)
    return Shared(starts, torch.arange(len(counts)).repeat_interleave(torch.tensor(counts)))


COUNTS = [[0, 1, 0, 2, 0], [90, 0, 200, 1, 70], [0, 0, 0, 0, 5], [1]]


@pytest.mark.parametrize("by", ["torch", pytest.param("kernels", marks=needs_triton)])
@pytest.mark.parametrize("counts", COUNTS, ids=str)
def test_a_weight_for_each_row(counts: list[int], by: str, request: pytest.FixtureRequest) -> None:
    if by == "kernels":
        request.getfixturevalue("kernels")
    torch.manual_seed(2)
    weights, bias = torch.randn(len(counts), 70, 88), torch.randn(len(counts), 70)
    x = torch.randn(sum(counts), 88)
    made = GpuProduct.plain(weights, bias, torch.float32)(x, shared_of(counts))
    parts = [part @ w.t() + b for part, w, b in zip(x.split(counts), weights, bias, strict=True)]
    torch.testing.assert_close(made, torch.cat(parts), atol=1e-4, rtol=1e-4)


@needs_triton
@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("kind", ["int4/32", "int4/48 with offsets", "nf4/16"])
def test_codes_for_each_row(kind: str) -> None:
    torch.manual_seed(3)
    counts, inputs = [3, 0, 40], 96
    weights = [KINDS[kind](torch.randn(70, inputs)) for _ in counts]
    each = [GpuProduct.coded(weight, None, *[torch.float32] * 2, CPU) for weight in weights]
    joined = GpuProduct.joined(each)
    x = torch.randn(43, inputs)
    assert joined is not None
    parts = [part @ w.dequantized().t() for part, w in zip(x.split(counts), weights, strict=True)]
    made = joined(x, shared_of(counts))
    torch.testing.assert_close(made, torch.cat(parts), atol=1e-4, rtol=1e-4)


def test_weights_of_several_kinds_are_not_joined() -> None:
    weights = [KINDS[kind](torch.randn(70, 96)) for kind in ("int4/32", "int8")]
    each = [GpuProduct.coded(weight, None, *[torch.float32] * 2, CPU) for weight in weights]
    assert GpuProduct.joined(each) is None
    assert GpuProduct.joined(each[:1]) is not None


def test_groups_of_few_inputs_are_not_known() -> None:
    assert not knows(coded(4, 8)(torch.randn(64, 96)))
    assert knows(coded(4, 96)(torch.randn(64, 96)))
