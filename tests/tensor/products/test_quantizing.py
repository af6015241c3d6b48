"""Codes that compiled code makes are those that torch would make, number by number."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import Tensor

from radixlm.layers.linear import Quantize
from radixlm.products.quantized import MIDDLE
from radixlm.products.quantizing import quantize, quantize_e4m3

DTYPES = [torch.float32, torch.bfloat16, torch.float16]


def weights(dtype: torch.dtype) -> Tensor:
    """Rows of random numbers, of zeros, and with two largest ones of either sign."""
    made = torch.randn(40, 96, generator=torch.Generator().manual_seed(0))
    made[3] = 0
    made[4, 5:7], made[5, 5:7] = torch.tensor([9.0, -9.0]), torch.tensor([-9.0, 9.0])
    return made.to(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("bits", "group"), [(8, 96), (8, 32), (4, 96), (4, 32)])
def test_integers(dtype: torch.dtype, bits: int, group: int) -> None:
    weight, middle = weights(dtype), MIDDLE[bits]
    parts = weight.float().view(40, -1, group)
    top = parts.gather(2, parts.abs().argmax(2, keepdim=True))
    steps = torch.where(top == 0, 1.0, top / -middle)
    codes = (parts / steps).round().clamp(-middle, middle - 1).add(middle)
    made = quantize(weight, bits=bits, group=group)
    assert torch.equal(made.codes, codes.to(torch.uint8).flatten(1))
    assert torch.equal(made.scales, steps.squeeze(2))


@pytest.mark.parametrize("dtype", DTYPES)
def test_floats(dtype: torch.dtype) -> None:
    weight = torch.cat([weights(dtype), (weights(torch.float32) * 1e-3).to(dtype)])
    weight[40:, 0] = 448  # so that the others are all below the smallest usual number
    top = weight.float().abs().amax(1, keepdim=True)
    scales = torch.where(top == 0, 1.0, top / 448)
    made = quantize_e4m3(weight)
    codes = (weight.float() / scales).to(torch.float8_e4m3fn).view(torch.uint8)
    assert torch.equal(made.scales, scales)
    assert torch.equal(made.codes, codes)


def test_what_is_no_number_is_seen() -> None:
    weight = weights(torch.bfloat16)
    weight[7, 40] = torch.nan
    assert quantize(weight, bits=4, group=32).scales.isnan().nonzero().tolist() == [[7, 1]]
    assert quantize_e4m3(weight).scales.isnan().nonzero().tolist() == [[7, 0]]


@pytest.mark.parametrize("made", [quantize_e4m3, partial(quantize, bits=8)])
def test_other_devices_are_refused(made: Quantize) -> None:
    with pytest.raises(ValueError, match="on the CPU, got one on meta"):
        made(torch.empty(8, 8, device="meta"))
