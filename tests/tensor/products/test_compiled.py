"""The compiled operations between products, against what they replace, in float64."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from radixlm.layers.linear import Gate, RMSNorm
from radixlm.products.compiled import GATES, GateKind, TensorOptions

TYPES = [(torch.float32, 1e-5), (torch.bfloat16, 1e-2)]
ROWS = [1, 3, 4, 5, 33]
CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def _only_where_it_is_known() -> None:
    if not TensorOptions(torch.bfloat16, CPU).known(16):
        pytest.skip("this machine has no such products")


def test_rows_that_are_not_whole_vectors_are_left_to_torch() -> None:
    assert not TensorOptions(torch.float32, CPU).known(24)
    assert not TensorOptions(torch.float64, CPU).known(32)
    assert not TensorOptions(torch.float32, torch.device("meta")).known(32)


@pytest.mark.parametrize(("dtype", "near"), TYPES)
@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("adds", [False, True])
def test_norm(dtype: torch.dtype, near: float, rows: int, adds: bool) -> None:
    torch.manual_seed(rows)
    norm = RMSNorm(48, 1e-5, TensorOptions(dtype, CPU))
    norm.weight.copy_(torch.randn(48))
    x, added = (torch.randn(rows, 48).to(dtype) for _ in range(2))
    total = x + added if adds else x.clone()
    made = norm(x, added if adds else None)
    assert torch.equal(x, total)
    wanted = functional.rms_norm(total.double(), (48,), norm.weight.double(), 1e-5)
    torch.testing.assert_close(made.double(), wanted, rtol=near, atol=near)


def test_a_norm_of_nothing_is_its_own_rows_affair() -> None:
    """Without an epsilon it divides by zero; the other rows must not notice."""
    x = torch.zeros(6, 32)
    x[5] = 1
    norm = RMSNorm(32, 0.0, TensorOptions(torch.float32, CPU))
    norm.weight.fill_(1)
    made = norm(x)
    assert bool(made[:5].isnan().all())
    torch.testing.assert_close(made[5], torch.ones(32))  # how roots are rounded is the processor's


@pytest.mark.parametrize(("dtype", "near"), TYPES)
@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("kind", GATES)
def test_gate(kind: GateKind, dtype: torch.dtype, near: float, rows: int) -> None:
    torch.manual_seed(rows)
    both = (torch.randn(rows, 64) * 20).to(dtype)
    both[0, :4] = torch.tensor([0.0, 100.0, -100.0, -89.0])
    gate, up = both.double().chunk(2, dim=-1)
    made = Gate(TensorOptions(dtype, CPU), kind)(both)
    torch.testing.assert_close(made.double(), GATES[kind](gate) * up, rtol=near, atol=near)
