"""How states fade, and gates of what was read: compiled code against torch's in float64."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from radixlm.layers.state_gates import Decays, GateNorm, OutputGate
from radixlm.products.compiled import TensorOptions

CPU = torch.device("cpu")
DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])


@DTYPES
@pytest.mark.parametrize("heads", [3, 16, 21])
@pytest.mark.parametrize("betas", [False, True])
def test_decays(dtype: torch.dtype, heads: int, *, betas: bool) -> None:
    torch.manual_seed(1)
    rate, bias = torch.rand(heads) * 2.8, torch.randn(heads)
    made = (9 * torch.randn(40, 2 * heads + 5)).to(dtype)
    steps, others = made[:, 5:].split((heads, heads), dim=1)
    decays = Decays(rate, bias, TensorOptions(dtype, CPU), most=2.0 if betas else 0.0)
    decay, beta = decays(steps, others if betas else None)
    sizes = functional.softplus(steps.double() + bias)
    assert torch.allclose(decay.double(), -rate.double().exp() * sizes, 1e-5, 1e-7)
    assert torch.allclose(
        beta.double(), 2 * others.double().sigmoid() if betas else sizes, 1e-5, 1e-7
    )


def test_nothing_is_left_where_rates_exceed_float32() -> None:
    rate = torch.tensor([86.0, 89.0, 150.0, -150.0])
    decays = Decays(rate, torch.zeros(4), TensorOptions(torch.float32, CPU), most=1.0)
    decay, _ = decays(torch.ones(1, 4), torch.ones(1, 4))
    assert decay.exp().tolist() == [[0.0, 0.0, 0.0, 1.0]]


def test_numbers_that_are_not_finite_stay_so() -> None:
    decays = Decays(torch.zeros(2), torch.zeros(2), TensorOptions(torch.float32, CPU), most=1.0)
    decay, beta = decays(torch.tensor([[torch.nan, 1.0]]), torch.tensor([[1.0, torch.nan]]))
    assert decay.isnan().tolist() == [[True, False]]
    assert beta.isnan().tolist() == [[False, True]]


def gated(read: Tensor, gate: Tensor, weight: Tensor, groups: tuple[int, int], norm: str) -> Tensor:
    read, act = read.double(), functional.silu(gate.double())
    if norm == "after":
        read = read * act
    if norm:
        grouped = read.unflatten(1, groups)
        normed = functional.rms_norm(grouped, grouped.shape[2:], None, 1e-5)
        read = (normed * weight.double().view(-1, groups[1])).flatten(1)
    return read if norm == "after" else read * act


@DTYPES
@pytest.mark.parametrize("norm", ["before", "after", ""])
@pytest.mark.parametrize(("groups", "whole"), [((4, 20), False), ((2, 64), True), ((1, 33), True)])
def test_output_gates(
    dtype: torch.dtype, norm: GateNorm, groups: tuple[int, int], *, whole: bool
) -> None:
    torch.manual_seed(1)
    width = groups[0] * groups[1]
    weight = torch.randn(width if whole else groups[1]).to(dtype)
    read, gate = torch.randn(37, width), (3 * torch.randn(37, width + 9)).to(dtype)[:, 9:]
    expected = gated(read, gate, weight, groups, norm)
    made = OutputGate(groups, weight, norm, 1e-5, TensorOptions(dtype, CPU))(read, gate)
    assert made.dtype == dtype
    tolerance = 1e-2 if dtype == torch.bfloat16 else 1e-5
    assert torch.allclose(made.double(), expected, tolerance, tolerance)
