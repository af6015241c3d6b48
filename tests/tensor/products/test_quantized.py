"""Quantized weights: what codes stand for, and products that are exact but for rounding rows."""

from __future__ import annotations

import itertools
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
from radixlm.products.gemm_choice import GemmChoice, one_way
from radixlm.products.product_table import ProductTable
from radixlm.products.quantized import (
    LEVELS,
    Numbers,
    QuantizedWeight,
    e4m3,
    from_mxfp4,
    stacked,
)
from radixlm.products.quantized_products import DTYPES, QuantizedProduct, forms_of
from radixlm.products.quantized_rows import has_rows, quantized_rows
from radixlm.products.quantizing import quantize, quantize_e4m3

CPU = torch.device("cpu")
FLOATS = ["8 e4m3", "8/64 e4m3", "4/16 e2m1", "4/32 e2m1", "4/64 nf4", "4/32 fp4"]
# As GGUF's types have them: Q5_0, Q5_K, Q6_K, Q2_K, IQ4_NL, IQ4_XS; Q3_K and Q4_K are like others.
FILES = ["5/32", "5/32+*", "6/16*", "2/16+*", "4/32 iq4", "4/32* iq4"]
KINDS = ["8", "8/16+", "8/32", "4", "4/32+", "4/64", *FILES, *FLOATS]
# Each is compiled: of which type rows are is one part of a kernel, of what kind weights another.
KINDS_AND_TYPES = [
    *((kind, torch.float32) for kind in KINDS),
    *((kind, torch.bfloat16) for kind in ("8", "4/32+", "6/16*", "8/64 e4m3", "4/16 e2m1")),
]


def random_weight(outputs: int, inputs: int, kind: str) -> QuantizedWeight:
    """kind: bits/group, + for offsets, * for steps, and what codes are, if no integers."""
    kind, _, numbers = kind.partition(" ")
    bits, _, group = kind.rstrip("+*").partition("/")
    made = quantize(torch.randn(outputs, inputs) / 10, bits=int(bits), group=int(group or 0))
    if numbers == "e4m3":  # all but the two that are no numbers
        codes = torch.arange(outputs * inputs).view(outputs, inputs) % 254
        codes += codes >= 127
        return replace(made, codes=codes.to(torch.uint8), zero=0, numbers="e4m3")
    if numbers:
        made = replace(made, zero=0, numbers=numbers)
    if "*" in kind:
        return with_steps(made, offsets="+" in kind)
    return replace(made, offsets=torch.randn_like(made.scales) / 100) if "+" in kind else made


def with_steps(weight: QuantizedWeight, *, offsets: bool) -> QuantizedWeight:
    """Other scales, and offsets, that are multiples of steps by any signed bytes."""
    outputs, groups = weight.scales.shape
    blocks = 2 if groups % 2 == 0 else 1
    steps = (torch.rand(outputs, blocks, 1 + offsets) / 1000).half().float()
    numbers = torch.randint(-128, 128, (outputs, blocks, groups // blocks, 1 + offsets))
    made = (numbers * steps.unsqueeze(2)).flatten(1, 2)
    return replace(
        weight, scales=made[..., 0], offsets=made[..., 1] if offsets else None, steps=steps
    )


def as_multiplied(x: Tensor, weight: QuantizedWeight) -> Tensor:
    """Floats are multiplied with rows as they are."""
    return rounded(x, weight.group) if weight.are_bytes else x.float()


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


def test_the_nearest_floats() -> None:
    weight = torch.randn(7, 96, generator=torch.Generator().manual_seed(0))
    weight[3] = 0
    made = quantize_e4m3(weight)
    made.check("a.weight")
    assert torch.equal(made.dequantized()[3], weight[3])
    # Half of a step: of the last of three bits, or of the smallest number.
    most = torch.maximum(weight.abs() / 16, made.scales * 2.0**-10) * 1.001
    assert ((made.dequantized() - weight).abs() <= most).all()


def test_weights_of_one_kind_are_stacked() -> None:
    one, two = (random_weight(8, 64, "4/32+") for _ in range(2))
    both = torch.cat([one.dequantized(), two.dequantized()])
    assert torch.equal(stacked([one, two]).dequantized(), both)
    other = stacked([one, two.with_zero(0)])
    assert torch.allclose(other.dequantized(), both, atol=1e-6)
    order = torch.randperm(16)
    assert torch.equal(stacked([one, two]).rows(order).dequantized(), both[order])


def test_all_codes_of_floats() -> None:
    """What they stand for, and that products have exactly that."""
    codes = torch.arange(256, dtype=torch.uint8)
    codes[[127, 255]] = 0  # no numbers
    numbers = e4m3(codes)
    assert torch.equal(numbers, codes.view(torch.float8_e4m3fn).float())
    levels = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])
    levels = torch.cat([levels, -levels])
    assert torch.equal(levels, torch.tensor(LEVELS["e2m1"]))
    of_four = codes % 16
    eight = QuantizedWeight(codes.repeat(64, 1).T, torch.ones(256, 1), None, 8, 0, "e4m3")
    four = QuantizedWeight(of_four.repeat(64, 1).T, torch.ones(256, 1), None, 4, 0, "e2m1")
    x = torch.eye(64)
    for weight, wanted in ((eight, numbers), (four, levels[of_four.long()])):
        for dtype, form in itertools.product(DTYPES, forms_of(weight)):
            made = QuantizedProduct(weight, None, dtype, torch.float32, lambda _, form=form: form)
            assert torch.equal(made(x.to(dtype)), wanted.repeat(64, 1))


@pytest.mark.parametrize("numbers", ["nf4", "fp4"])
def test_levels_that_bfloat16_does_not_hold(numbers: Numbers) -> None:
    """Rows in float32 meet nearly all of them, rows in bfloat16 the nearest in bfloat16."""
    codes = (torch.arange(64) % 16).to(torch.uint8).repeat(64, 1).T.contiguous()
    weight = QuantizedWeight(codes, torch.full((64, 1), 3.0), None, 4, 0, numbers)
    levels = torch.tensor(LEVELS[numbers])[codes.long()]
    assert torch.equal(weight.dequantized(), levels * 3)
    x = torch.eye(64)
    for form in forms_of(weight):
        made = QuantizedProduct(weight, None, x.dtype, x.dtype, lambda _, form=form: form)(x)
        torch.testing.assert_close(made, levels.T * 3, rtol=1e-5, atol=0)
        rows = x.bfloat16()
        half = QuantizedProduct(weight, None, rows.dtype, x.dtype, lambda _, form=form: form)(rows)
        assert torch.equal(half, levels.T.bfloat16().float() * 3)


def test_codes_that_are_no_numbers() -> None:
    weight = random_weight(8, 64, "8 e4m3")
    weight.check("a.weight")
    weight.codes[3, 5] = 255
    with pytest.raises(CheckpointError, match=r"'a\.weight' holds codes that are no numbers"):
        weight.check("a.weight")


def test_scales_of_large_groups_of_floats_are_not_rounded() -> None:
    weight, x = random_weight(64, 128, "8/64 e4m3"), torch.randn(5, 128)
    wanted = functional.linear(x.double(), weight.dequantized().double()).float()
    for form in forms_of(weight):
        made = QuantizedProduct(weight, None, x.dtype, x.dtype, lambda _, form=form: form)(x)
        torch.testing.assert_close(made, wanted, rtol=1e-6, atol=1e-6 * float(wanted.abs().max()))


@pytest.mark.parametrize("kind", ["6/16*", "4/32+*"])
def test_scales_of_two_levels_are_not_rounded(kind: str) -> None:
    """A file's 16 bits times 6 or 8 have more than float16."""
    weight, x = random_weight(64, 256, kind), torch.randint(-127, 128, (5, 256)).float()
    x.view(5, -1, weight.group)[:, :, 0] = 127  # so that rows are bytes as they are
    wanted = functional.linear(x.double(), weight.dequantized().double()).float()
    for form in forms_of(weight):
        made = QuantizedProduct(weight, None, x.dtype, x.dtype, lambda _, form=form: form)(x)
        torch.testing.assert_close(made, wanted, rtol=1e-6, atol=1e-6 * float(wanted.abs().max()))


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
    wanted = functional.linear(as_multiplied(x, weight), weight.dequantized(), bias)
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
@pytest.mark.parametrize("kind", ["4/32", "4/32 e2m1"])
def test_what_is_no_number_is_seen_in_its_row_alone(kind: str, number: float) -> None:
    weight, x = random_weight(64, 64, kind), torch.randn(4, 64)
    x[2, 40] = number
    x[3] = 0
    for form in forms_of(weight):
        made = QuantizedProduct(weight, None, x.dtype, x.dtype, lambda _, form=form: form)(x)
        assert not made[2].isfinite().any()
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
        exact = functional.linear(x, wanted)
        torch.testing.assert_close(made, exact, rtol=1e-6, atol=1e-6 * float(exact.abs().max()))


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
    made = linear(x)
    torch.testing.assert_close(made.float(), wanted, rtol=0.05, atol=0.1)
    if linear.is_compiled:
        out = torch.empty_like(made)
        assert linear(x, out) is out
        assert torch.equal(out, made)


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


@pytest.mark.parametrize(("kind", "dtype"), KINDS_AND_TYPES)
def test_rows_are_what_the_codes_stand_for(kind: str, dtype: torch.dtype) -> None:
    weight = random_weight(77, 512, kind)
    if not weight.are_bytes:
        assert not has_rows(weight)
        return
    if weight.steps is None and not weight.is_whole:  # as files have them
        offsets = None if weight.offsets is None else weight.offsets.half().float()
        weight = replace(weight, scales=weight.scales.half().float(), offsets=offsets)
    assert has_rows(weight)
    wanted = weight.dequantized().to(dtype)
    rows = quantized_rows(weight, dtype)
    for ids in ([0], [76, 3, 3, 45, 64, 31, 32], list(range(77)), []):
        picked = torch.tensor(ids, dtype=torch.int64)
        torch.testing.assert_close(rows(picked), wanted[picked], rtol=1e-6, atol=1e-7)
    out = torch.empty(2, 512, dtype=dtype)
    assert rows(torch.tensor([9, 8]), out) is out
    assert torch.equal(out, rows(torch.tensor([9, 8])))
