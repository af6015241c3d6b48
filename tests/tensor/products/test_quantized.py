"""Quantized weights: what codes stand for, and products that are exact but for rounding rows."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.nn import functional
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

from radixlm.core.errors import CheckpointError
from radixlm.layers.linear import Linear
from radixlm.layers.mlps import MLP
from radixlm.products.compiled import TensorOptions
from radixlm.products.gemm_choice import GemmChoice, ProductTable, one_way
from radixlm.products.quantized import FP4_ZERO, QuantizedWeight, from_mxfp4, quantize, stacked
from radixlm.products.quantized_products import QuantizedProduct, forms_of

CPU = torch.device("cpu")
KINDS = ["8", "8/16+", "8/32", "4", "4/32+", "4/64", "4/32 fp4"]
# Each is compiled: of which type rows are is one part of a kernel, of what kind weights another.
KINDS_AND_TYPES = [
    *((kind, torch.float32) for kind in KINDS),
    *((kind, torch.bfloat16) for kind in ("8", "4/32+")),
]


def random_weight(outputs: int, inputs: int, kind: str) -> QuantizedWeight:
    """kind: bits/group, and + for offsets."""
    bits, _, group = kind.removesuffix(" fp4").removesuffix("+").partition("/")
    made = quantize(torch.randn(outputs, inputs) / 10, bits=int(bits), group=int(group or 0))
    if kind.endswith("fp4"):
        return replace(made, fp4=True, zero=FP4_ZERO)
    return replace(made, offsets=torch.randn_like(made.scales) / 100) if "+" in kind else made


def rounded(x: Tensor, group: int) -> Tensor:
    """Rows as they are multiplied: signed bytes with a scale for each group."""
    parts = x.float().view(x.shape[0], -1, group)
    top = parts.abs().amax(2, keepdim=True)
    # torch makes a number over a tensor its inverse times the number.
    factors = torch.where(top == 0, 0.0, torch.full_like(top, 127).div(top))
    codes = (parts * factors).round()
    return (codes * (top / 127)).view(x.shape)


@pytest.mark.parametrize(("bits", "group"), [(8, 0), (8, 32), (4, 0), (4, 32)])
def test_the_nearest_codes(bits: int, group: int) -> None:
    weight = torch.randn(7, 96)
    weight[3] = 0
    made = quantize(weight, bits=bits, group=group)
    assert int(made.codes.max()) < 1 << bits
    # Half a step, or a whole one where the largest weight's opposite has no code.
    steps = made.scales.abs().repeat_interleave(group or 96, 1)
    assert ((made.dequantized() - weight).abs() <= steps * 1.001).all()
    assert ((made.dequantized() - weight).abs() <= steps / 2 * 1.001).float().mean() > 0.95
    assert torch.equal(made.dequantized()[3], weight[3])


def test_weights_of_one_kind_are_stacked() -> None:
    one, two = (random_weight(8, 64, "4/32+") for _ in range(2))
    both = torch.cat([one.dequantized(), two.dequantized()])
    assert torch.equal(stacked([one, two]).dequantized(), both)
    other = stacked([one, two.with_zero(0)])
    assert torch.allclose(other.dequantized(), both, atol=1e-6)
    order = torch.randperm(16)
    assert torch.equal(stacked([one, two]).rows(order).dequantized(), both[order])


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
def test_scales_that_are_no_numbers(number: float) -> None:
    weight = random_weight(8, 64, "8")
    weight.scales[3] = number
    with pytest.raises(CheckpointError, match=r"'a\.weight' are not all finite"):
        weight.check("a.weight")
    weight.scales.zero_()
    with pytest.raises(CheckpointError, match=r"scales of tensor 'a\.weight' are all 0"):
        weight.check("a.weight")


@pytest.mark.parametrize(("kind", "dtype"), KINDS_AND_TYPES)
@pytest.mark.parametrize(("outputs", "inputs"), [(32, 64), (100, 192), (40, 80), (256, 128)])
def test_products(outputs: int, inputs: int, kind: str, dtype: torch.dtype) -> None:
    weight, bias = random_weight(outputs, inputs, kind), torch.randn(outputs)
    x = torch.randn(40, inputs).to(dtype)
    wanted = functional.linear(rounded(x, weight.group), weight.dequantized(), bias)
    for form in forms_of(weight):
        made = QuantizedProduct(weight, bias, dtype, torch.float32, lambda _, form=form: form)
        # Scales are float16 in groups.
        largest = float(wanted.abs().max())
        torch.testing.assert_close(made(x), wanted, rtol=1e-3, atol=1e-3 * largest)


@pytest.mark.parametrize("kind", KINDS)
def test_a_row_has_the_same_bits_in_any_company_and_form(kind: str) -> None:
    weight, x = random_weight(100, 192, kind), torch.randn(333, 192)
    found = []
    for form in forms_of(weight):
        made = QuantizedProduct(weight, None, x.dtype, x.dtype, lambda _, form=form: form)
        found.append(made(x))
        assert torch.equal(torch.cat([made(row) for row in x[:40].split(1)]), found[-1][:40])
        assert torch.equal(torch.cat([made(rows) for rows in x.split(50)]), found[-1])
    assert all(torch.equal(found[0], other) for other in found[1:])


@pytest.mark.parametrize("number", [float("nan"), float("inf"), float("-inf")])
def test_what_is_no_number_is_seen_in_its_row_alone(number: float) -> None:
    weight, x = random_weight(64, 64, "4/32"), torch.randn(4, 64)
    x[2, 40] = number
    x[3] = 0
    for form in forms_of(weight):
        made = QuantizedProduct(weight, None, x.dtype, x.dtype, lambda _, form=form: form)(x)
        assert made[2].isnan().all()
        assert made[[0, 1, 3]].isfinite().all()
        assert not made[3].any()


def test_scales_far_apart_keep_their_ratio() -> None:
    """A row's float16 scales are relative to its own largest."""
    weight = random_weight(64, 64, "8/32")
    weight.scales[::2] *= 1e-9
    weight.scales[1::2] *= 1e9
    x = torch.randn(40, 64)
    for form in forms_of(weight):
        made = QuantizedProduct(weight, None, x.dtype, x.dtype, lambda _, form=form: form)(x)
        wanted = functional.linear(rounded(x, 32), weight.dequantized())
        largest = wanted.abs().amax(0)
        torch.testing.assert_close(made / largest, wanted / largest, rtol=1e-3, atol=1e-3)


def test_mxfp4() -> None:
    """As transformers unpacks gpt-oss."""
    numbers = torch.Generator().manual_seed(0)
    blocks = torch.randint(0, 256, (64, 3, 16), generator=numbers, dtype=torch.uint8)
    scales = torch.randint(110, 140, (64, 3), generator=numbers, dtype=torch.uint8)
    wanted = convert_moe_packed_tensors(blocks[None], scales[None], dtype=torch.float32)[0].T
    weight = from_mxfp4(blocks, scales)
    assert torch.equal(weight.dequantized(), wanted)
    x = torch.randn(5, 96)
    for form in forms_of(weight):
        made = QuantizedProduct(weight, None, x.dtype, x.dtype, lambda _, form=form: form)(x)
        exact = functional.linear(rounded(x, 32), wanted)
        torch.testing.assert_close(made, exact, rtol=1e-4, atol=1e-4 * float(exact.abs().max()))


def filled(linear: Linear) -> Linear:
    for _, weight in linear.named_weights():
        weight.normal_()
    return linear


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_parts_of_several_kinds_lie_side_by_side(dtype: torch.dtype) -> None:
    linear = filled(Linear(64, {"q": 64, "k": 32, "v": 48}, TensorOptions(dtype, CPU), bias=True))
    stored = {name: weight.clone() for name, weight in linear.named_weights()}
    parts = {"q": random_weight(64, 64, "4/32+"), "k": random_weight(32, 64, "4/32+")}
    for name, part in parts.items():
        linear.put(name, part)
        stored[f"{name}.weight"] = part.dequantized()
    x = torch.randn(5, 64).to(dtype)
    linear.pack(one_way)
    weight = torch.cat([stored[f"{name}.weight"].float() for name in "qkv"])
    bias = torch.cat([stored[f"{name}.bias"] for name in "qkv"]).float()
    wanted = functional.linear(x.float(), weight, bias)
    torch.testing.assert_close(linear(x).float(), wanted, rtol=0.05, atol=0.1)


@pytest.mark.parametrize("bits", [8, 4])
def test_what_is_quantized_when_it_is_packed(bits: int) -> None:
    mlp = MLP(64, 96, TensorOptions(torch.float32, CPU), bias=False)
    for _, weight in mlp.named_weights():
        weight.normal_(std=0.1)
    parts = dict(mlp.named_weights())
    gate, up, down = (
        quantize(parts[f"{name}_proj.weight"], bits=bits, group=32).dequantized()
        for name in ("gate", "up", "down")
    )
    for linear in (mlp.gate_up, mlp.down):
        linear.pack(one_way, lambda weight: quantize(weight, bits=bits, group=32))
    x = torch.randn(9, 64)
    hidden = functional.silu(functional.linear(rounded(x, 32), gate))
    hidden *= functional.linear(rounded(x, 32), up)
    wanted = functional.linear(rounded(hidden, 32), down)
    torch.testing.assert_close(mlp(x), wanted, rtol=0.02, atol=0.02)


def test_without_code_for_it_a_weight_is_taken_out_of_its_codes() -> None:
    linear = filled(Linear(20, {"a": 12}, TensorOptions(torch.float32, CPU), bias=False))
    weight = random_weight(12, 20, "8")
    assert forms_of(weight) == ()
    linear.put("a", weight)
    linear.pack(lambda *_: GemmChoice([(1, "torch")]))
    x = torch.randn(3, 20)
    assert torch.equal(linear(x), functional.linear(x, weight.dequantized()))


def test_what_no_form_knows_is_multiplied_in_blocks_when_bits_matter() -> None:
    weight = random_weight(12, 20, "8")
    table = ProductTable(None)
    assert one_way(weight, torch.float32, None, quantized=table.choice).block
    known = random_weight(64, 64, "8")
    if forms_of(known):
        assert not one_way(known, torch.float32, None, quantized=table.choice).block


@pytest.mark.parametrize("inputs", [80, 16, 12])
def test_rows_that_are_no_whole_groups_have_one_scale(inputs: int) -> None:
    weight = torch.randn(10, inputs)
    assert quantize(weight, bits=4, group=32).group == inputs


def test_types_of_rows_that_no_kernel_reads_are_refused() -> None:
    weight = random_weight(64, 64, "8")
    with pytest.raises(ValueError, match="float16"):
        QuantizedProduct(weight, None, torch.float16, torch.float16, lambda _: "vectors")
