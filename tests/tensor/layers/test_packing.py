"""Packed weights: the same products, and no names any more."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Literal

import pytest
import torch
from torch.nn import functional

from radixlm.core.errors import ModelError
from radixlm.kernels.jit import KernelStore
from radixlm.layers.linear import Linear, LMHead, TokenEmbedding
from radixlm.layers.mlps import MLP
from radixlm.products.compiled import GATES, GateKind, TensorOptions
from radixlm.products.gemm_choice import LAYOUTS, GemmChoice, Way, one_way, ways_of
from radixlm.products.product_table import ProductTable
from tests.pairs import pairs

CPU = torch.device("cpu")


PACKED = [way for way in LAYOUTS if way != "torch"]
TYPES = [(torch.float32, 1e-4), (torch.bfloat16, 0.05)]


def pack(layer: Linear | LMHead, way: Way = "vectors") -> None:
    if way not in ways_of(layer.weight):
        pytest.skip(f"this machine has no {way} for {layer.weight.dtype}")
    layer.pack(lambda *_: GemmChoice([(1, way)]))


@pytest.mark.parametrize(("dtype", "close"), TYPES)
@pytest.mark.parametrize(
    ("way", "tokens", "outputs", "bias"),
    pairs(PACKED, [0, 1, 7, 8, 9, 31, 33, 48, 300], [48, 80, 96, 1000], [False, True]),
)
def test_the_same_product(
    tokens: int, outputs: int, dtype: torch.dtype, close: float, bias: bool, way: Way
) -> None:
    torch.manual_seed(0)
    linear = Linear(96, {"a": outputs - 16, "b": 16}, TensorOptions(dtype, CPU), bias=bias)
    for _, weight in linear.named_weights():
        weight.normal_()
    x = torch.randn(tokens, 96).to(dtype)
    with torch.inference_mode():
        plain = linear(x)
        pack(linear, way)
        packed = linear(x)
        strided = linear(torch.cat((x, x), dim=1)[:, :96])
    assert packed.shape == plain.shape
    assert torch.allclose(packed, plain, atol=close, rtol=close)
    assert torch.equal(packed, strided)


@pytest.mark.parametrize("way", PACKED)
@pytest.mark.parametrize(("dtype", "close"), TYPES)
def test_a_tied_head_is_packed_beside_the_embedding(
    dtype: torch.dtype, close: float, way: Way
) -> None:
    torch.manual_seed(0)
    embedding = TokenEmbedding(50, 32, TensorOptions(dtype, CPU))
    embedding.weight.normal_()
    head = LMHead(embedding, tied=True)
    rows = embedding(torch.tensor([3, 49]))
    plain = head(rows)
    pack(head, way)
    assert torch.allclose(head(rows), plain, atol=close, rtol=close)
    assert torch.equal(embedding(torch.tensor([3, 49])), rows)
    assert head(rows[:0]).shape == (0, 50)
    with pytest.raises(ModelError, match="packed"):
        list(head.named_weights())


def test_packed_weights_are_not_handed_out() -> None:
    linear = Linear(16, {"a": 48}, TensorOptions(torch.float32, CPU), bias=False)
    pack(linear)
    with pytest.raises(ModelError, match="packed"):
        list(linear.named_weights())


@pytest.mark.parametrize(
    ("inputs", "outputs", "dtype"),
    [(16, 48, torch.float64), (16, 15, torch.float32), (15, 48, torch.bfloat16)],
)
def test_what_the_kernels_do_not_know_is_left_to_others(
    inputs: int, outputs: int, dtype: torch.dtype
) -> None:
    assert not {"tiles", "vectors"} & {*ways_of(torch.empty(outputs, inputs, dtype=dtype))}


def test_what_has_one_way_stays_as_it_is(tmp_path: Path) -> None:
    linear = Linear(16, {"a": 48}, TensorOptions(torch.float64, CPU), bias=False)
    linear.pack(ProductTable(KernelStore(tmp_path)).choice)
    assert [name for name, _ in linear.named_weights()] == ["a.weight"]
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("way", PACKED)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_broken_numbers_stay_in_their_rows(dtype: torch.dtype, way: Way) -> None:
    linear = Linear(64, {"a": 96}, TensorOptions(dtype, CPU), bias=False)
    linear.weight.normal_()
    pack(linear, way)
    x = torch.randn(11, 64).to(dtype)
    x[3, 5] = float("nan")
    assert linear(x).isnan().any(dim=1).nonzero().flatten().tolist() == [3]


def test_packing_keeps_no_second_copy() -> None:
    linear = Linear(64, {"a": 96}, TensorOptions(torch.float32, CPU), bias=True)
    pack(linear)
    assert linear.weight.untyped_storage().nbytes() == 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("way", "outputs", "gate"),
    pairs(["tiles", "vectors", "one way"], [128, 20], [None, *GATES]),
)
def test_a_row_does_not_depend_on_the_rows_beside_it(
    dtype: torch.dtype, gate: GateKind | None, outputs: int, way: Way | Literal["one way"]
) -> None:
    linear = Linear(96, {"a": outputs}, TensorOptions(dtype, CPU), bias=True, gate=gate)
    for _, weight in linear.named_weights():
        weight.normal_()
    if way == "one way":
        linear.pack(one_way)
    else:
        pack(linear, way)
    x = torch.randn(70, 96).to(dtype)
    together = linear(x)
    assert linear(x[:0]).shape == (0, together.shape[1])
    for first, last in ((0, 1), (3, 20), (17, 70), (69, 70)):
        assert torch.equal(linear(x[first:last]), together[first:last])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("size", [333, 1000])
def test_nor_does_its_gate(dtype: torch.dtype, size: int) -> None:
    """Of a width that is no whole number of vectors: torch's own would have other bits."""
    linear = Linear(32, {"a": 2 * size}, TensorOptions(dtype, CPU), bias=True, gate="silu")
    for _, weight in linear.named_weights():
        weight.normal_()
    linear.pack(one_way)
    x = torch.randn(600, 32).to(dtype)
    together = linear(x)
    for row in (0, 299, 300, 301, 599):
        assert torch.equal(linear(x[row : row + 1]), together[row : row + 1])
    assert torch.equal(linear(x[:290]), together[:290])


@pytest.mark.parametrize(("dtype", "close"), TYPES)
@pytest.mark.parametrize(
    ("way", "size", "kind", "bias"), pairs(PACKED, [16, 80, 200], [*GATES], [False, True])
)
def test_a_gated_product(
    kind: GateKind, size: int, dtype: torch.dtype, close: float, bias: bool, way: Way
) -> None:
    torch.manual_seed(0)
    mlp = MLP(96, size, TensorOptions(dtype, CPU), bias=bias, activation=kind)
    for _, weight in mlp.named_weights():
        weight.normal_(std=0.3)
    if way not in ways_of(mlp.gate_up.weight, gated=True):
        pytest.skip(f"this machine has no {way} for {size} gates in {dtype}")
    for tokens in (0, 1, 13, 40, 300):
        x = torch.randn(tokens, 96).to(dtype)
        linear = copy.copy(mlp.gate_up)
        gate, up = functional.linear(
            x.double(), linear.weight.double(), linear.bias.double() if bias else None
        ).chunk(2, -1)
        wanted = GATES[kind](gate) * up
        linear.pack(lambda *_: GemmChoice([(1, way)]))
        made = linear(x)
        assert made.shape == (tokens, size)
        assert made.dtype == dtype
        assert torch.allclose(made.double(), wanted, atol=close, rtol=close)
