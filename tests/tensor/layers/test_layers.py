from __future__ import annotations

import math
from functools import partial

import pytest
import torch
from torch.nn import functional

from radixlm.layers.linear import (
    Linear,
    LMHead,
    QueryKeyNorm,
    RMSNorm,
    TokenEmbedding,
    add_norm,
)
from radixlm.layers.mlps import ACTIVATIONS, MLP, sigmoid
from radixlm.layers.rotary import LinearScaling, QueryFactors, RopeConfig, Rotary, YarnScaling
from radixlm.products.compiled import TensorOptions

CPU = torch.device("cpu")
F32 = torch.float32


@pytest.mark.parametrize("bias", [False, True])
def test_a_fused_projection_equals_its_parts(bias: bool) -> None:
    fused = Linear(8, {"a": 3, "b": 5}, TensorOptions(F32, CPU), bias=bias)
    own = {name: torch.randn(view.shape) for name, view in fused.named_weights()}
    for name, view in fused.named_weights():
        view.copy_(own[name])
    assert set(own) == (
        {"a.weight", "a.bias", "b.weight", "b.bias"} if bias else {"a.weight", "b.weight"}
    )
    x = torch.randn(4, 8)
    parts = [functional.linear(x, own[f"{n}.weight"], own.get(f"{n}.bias")) for n in ("a", "b")]
    torch.testing.assert_close(fused(x), torch.cat(parts, dim=-1))


def test_gated_mlp() -> None:
    mlp = MLP(8, 6, TensorOptions(F32, CPU), bias=False)
    weights = dict(mlp.named_weights())
    for view in weights.values():
        view.normal_()
    x = torch.randn(4, 8)
    gate, up = x @ weights["gate_proj.weight"].T, x @ weights["up_proj.weight"].T
    expected = (functional.silu(gate) * up) @ weights["down_proj.weight"].T
    torch.testing.assert_close(mlp(x), expected)


@pytest.mark.parametrize("dtype", [F32, torch.bfloat16])
def test_rms_norm_takes_the_mean_in_float32(dtype: torch.dtype) -> None:
    norm = RMSNorm(64, 1e-6, TensorOptions(dtype, CPU))
    norm.weight.normal_(1.0, 0.3)
    x = (torch.randn(5, 64) * 300).to(dtype)  # squares of it overflow nothing but lose bits
    wide = x.double()
    expected = wide / (wide.square().mean(-1, keepdim=True) + 1e-6).sqrt() * norm.weight.double()
    tolerance = 1e-5 if dtype == F32 else 2**-8
    torch.testing.assert_close(norm(x).double(), expected, rtol=tolerance, atol=tolerance)


def test_a_norm_s_kernel_is_of_the_places_of_both_its_arguments() -> None:
    """Compiled for numbers at multiples of 16 bytes it is not for others."""
    keys = set()
    for places in ((0, 0), (1, 0), (0, 1), (1, 1)):
        x, added = (torch.zeros(40)[at : at + 36].view(1, 36) for at in places)
        add_norm(lambda key, *_, **__: keys.add(key), x, added, torch.ones(36), 1e-5)
    assert len(keys) == 4


def test_query_key_norm_works_on_each_head() -> None:
    norm = QueryKeyNorm(3, 16, 1e-6, TensorOptions(F32, CPU))
    for _, view in norm.named_weights():
        view.normal_(1.0, 0.3)
    qk = torch.randn(5, 4, 16)
    before = qk.clone()
    q = functional.rms_norm(qk[:, :3], (16,), norm.q_weight, 1e-6)
    k = functional.rms_norm(qk[:, 3:], (16,), norm.k_weight, 1e-6)
    torch.testing.assert_close(norm(qk), torch.cat((q, k), dim=1))
    assert torch.equal(qk, before)


def _turned(x: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
    """x (tokens, heads, dim) as complex pairs (i, i + dim / 2), turned by (tokens, dim / 2)."""
    first, second = x.double().chunk(2, dim=-1)
    turned = torch.complex(first, second) * torch.polar(torch.ones_like(angles), angles)[:, None]
    return torch.cat((turned.real, turned.imag), dim=-1)


@pytest.mark.parametrize("head_dim", [8, 64])
def test_rotary_turns_pairs_by_position(head_dim: int) -> None:
    rotary = Rotary(RopeConfig(100.0), head_dim, 64, TensorOptions(F32, CPU))
    positions = torch.tensor([0, 63, 5, 5, 1, 2])
    x = torch.randn(6, 3, head_dim)
    rates = 100.0 ** (-torch.arange(0, head_dim, 2, dtype=torch.float64) / head_dim)
    made = rotary.at(positions).turned(x)
    expected = _turned(x, positions[:, None] * rates)
    torch.testing.assert_close(made.double(), expected, rtol=1e-5, atol=1e-5)
    assert torch.equal(made[0], x[0])


def test_rotary_refuses_positions_past_the_context() -> None:
    rotary = Rotary(RopeConfig(100.0), 8, 64, TensorOptions(F32, CPU))
    with pytest.raises(IndexError):
        rotary.at(torch.tensor([64]))


def test_scaling_slows_turns() -> None:
    plain = RopeConfig(10_000.0).frequencies(64)
    assert torch.equal(RopeConfig(10_000.0, LinearScaling(4.0)).frequencies(64), plain / 4)
    yarn = RopeConfig(10_000.0, YarnScaling(4.0, 2048, 1.1)).frequencies(64)
    assert torch.equal(yarn[:4], plain[:4])
    torch.testing.assert_close(yarn[-4:], plain[-4:] / 4)
    assert bool((yarn.diff() < 0).all())


def test_tied_head_reads_the_embedding() -> None:
    embedding = TokenEmbedding(10, 4, TensorOptions(torch.bfloat16, CPU))
    embedding.weight.normal_()
    tied = LMHead(embedding, tied=True)
    own = LMHead(embedding, tied=False)
    assert tied.weight is embedding.weight
    assert list(tied.named_weights()) == []
    assert own.weight is not embedding.weight
    assert [name for name, _ in own.named_weights()] == ["lm_head.weight"]
    logits = tied(embedding(torch.tensor([3, 1])))
    assert logits.dtype == F32
    assert logits.shape == (2, 10)


def test_queries_grow_with_their_position() -> None:
    rope = RopeConfig(100.0, queries=QueryFactors(0.5, 10))
    rotary = Rotary(rope, 8, 64, TensorOptions(F32, CPU))
    factors = rotary.at(torch.tensor([0, 9, 10, 63])).factors
    assert factors is not None
    wanted = [1.0, 1.0, 1 + 0.5 * math.log(2), 1 + 0.5 * math.log(7)]
    torch.testing.assert_close(factors, torch.tensor(wanted))
    # Recorded calls find those of later steps in the same place.
    memory = torch.empty(2, 8)
    first = rotary.at(torch.tensor([3, 12]), memory).factors
    later = rotary.at(torch.tensor([40, 5]), memory).factors
    assert first is not None
    assert later is not None
    assert first.data_ptr() == later.data_ptr()


def test_short_contexts_have_queries_as_they_are() -> None:
    rope = RopeConfig(100.0, queries=QueryFactors(0.5, 10))
    assert rope.within(10).queries is None
    assert rope.within(11) == rope
    ahead = RopeConfig(100.0, queries=QueryFactors(0.5, 10, ahead=1))
    assert ahead.within(9).queries is None
    assert ahead.within(10) == ahead


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", [*ACTIVATIONS])
def test_activations_have_the_same_bits_in_any_company(name: str, dtype: torch.dtype) -> None:
    """Rows of sizes that fill no whole vector, and that lie apart, as in a product's memory."""
    theirs = {
        "silu": functional.silu,
        "gelu_tanh": partial(functional.gelu, approximate="tanh"),
        "gelu": functional.gelu,
        "relu2": lambda x: functional.relu(x) ** 2,
    }
    memory = (4 * torch.randn(37, 120, generator=torch.Generator().manual_seed(0))).to(dtype)
    for width in (33, 100, 112):
        x = memory[:, :width]
        made = ACTIVATIONS[name](x)
        for rows in (x, x.contiguous()):
            assert torch.equal(made, ACTIVATIONS[name](rows))
            assert torch.equal(made, torch.cat([ACTIVATIONS[name](row) for row in rows.split(1)]))
        near = {"rtol": 1e-6, "atol": 1e-6} if dtype == F32 else {"rtol": 1e-2, "atol": 1e-3}
        assert torch.allclose(made, theirs[name](x), **near)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_sigmoids_have_the_same_bits_in_any_company(dtype: torch.dtype) -> None:
    x = torch.cat((torch.linspace(-99, 99, 1001), torch.tensor([torch.inf, -torch.inf]))).to(dtype)
    made = sigmoid(x)
    assert torch.equal(made, torch.cat([sigmoid(one) for one in x.split(1)]))
    assert torch.allclose(made, x.sigmoid())
    assert sigmoid(torch.tensor([torch.nan])).isnan().all()
