"""Weights in floats made codes on the CPU, compiled: a row is read once and its codes written."""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from llvmlite import ir
from numba import types
from torch import Tensor

from radixlm.kernels.jit import compiled
from radixlm.kernels.openmp import Worker
from radixlm.kernels.vectors import (
    emitted,
    float_of_bits,
    floats,
    halves,
    inner,
    integers,
    octets,
    over_rows,
)
from radixlm.products.quantized import Numbers, QuantizedWeight

_MOST_E4M3 = 448.0
_ROWS_PER_UNIT = 8
# Of weights in other types than the kernels read, made float32 first.
_NUMBERS_AT_ONCE = 1 << 20
_READ = torch.float32, torch.bfloat16


def quantize(weight: Tensor, *, bits: int, group: int = 0) -> QuantizedWeight:
    """The nearest codes of (out, in), symmetric. group: inputs of a scale; 0, or where rows are no
    whole groups: all of a row.

    The largest weight of a group gets the lowest code, as in llama.cpp's Q4_0: of 2^bits codes none
    is wasted.
    """
    inputs = weight.shape[1]
    size = group if group and inputs % group == 0 else max(inputs, 1)
    codes, scales = _encoded(weight, size, bits, "int")
    return QuantizedWeight(codes, scales, None, bits, 1 << (bits - 1))


def quantize_e4m3(weight: Tensor) -> QuantizedWeight:
    """The nearest E4M3 numbers of (out, in), with one scale per output."""
    codes, scales = _encoded(weight, max(weight.shape[1], 1), 8, "e4m3")
    return QuantizedWeight(codes, scales, None, 8, 0, "e4m3")


def _encoded(weight: Tensor, group: int, bits: int, numbers: Numbers) -> tuple[Tensor, Tensor]:
    if weight.device.type != "cpu":
        raise ValueError(f"weights are quantized on the CPU, got one on {weight.device}")
    outputs, inputs = weight.shape
    codes = torch.empty((outputs, inputs), dtype=torch.uint8)
    scales = torch.empty((outputs, inputs // group))
    at_once = outputs if weight.dtype in _READ else max(_NUMBERS_AT_ONCE // max(inputs, 1), 1)
    for first in range(0, outputs, max(at_once, 1)):
        some = slice(first, first + at_once)
        rows = (weight[some] if weight.dtype in _READ else weight[some].float()).contiguous()
        worker = Worker(
            quantize_kernel(bits, numbers, bfloat16=rows.dtype == torch.bfloat16),
            rows=rows.shape[0],
            inputs=inputs,
            group=group,
            x=rows.data_ptr(),
            codes=codes[some].data_ptr(),
            scales=scales[some].data_ptr(),
        )
        worker()
    return codes, scales


_Arguments = namedtuple("_Arguments", "counters rows inputs group x codes scales")


@emitted(types.int32, types.float32)
def _bits_of(builder: ir.IRBuilder, number: Any) -> Any:
    return builder.bitcast(number, ir.IntType(32))


@compiled(_Arguments)
def quantize_kernel(bits: int, numbers: Numbers, *, bfloat16: bool) -> Callable[[Any], None]:
    """x: (rows, inputs). What is no number makes its group's scale none."""
    element, middle = 2 if bfloat16 else 4, np.float32(1 << (bits - 1))
    encode = _e4m3_of if numbers == "e4m3" else _make_code_of(middle)
    over = np.float32(_MOST_E4M3) if numbers == "e4m3" else -middle
    signed = numbers != "e4m3"

    @inner
    def bits_at(at: int, i: int) -> Any:
        return np.int32(halves(at)[i] << 16) if bfloat16 else integers(at)[i]

    @inner
    def largest(at: int, size: int) -> Any:
        """The first of the numbers whose size is the largest, or its size."""
        top = np.int32(0)
        for i in range(size):
            top = max(top, np.int32(bits_at(at, i) & 0x7FFFFFFF))
        i = 0
        while signed and np.int32(bits_at(at, i) & 0x7FFFFFFF) != top:
            i += 1
        return float_of_bits(bits_at(at, i) if signed else top)

    @inner
    def row(args: Any, index: int) -> None:
        groups = args.inputs // args.group
        for g in range(groups):
            place = index * args.inputs + g * args.group
            at, top = args.x + place * element, largest(args.x + place * element, args.group)
            step = np.float32(1) if top == 0 else top / over
            floats(args.scales)[index * groups + g] = step
            for i in range(args.group):
                octets(args.codes + place)[i] = encode(float_of_bits(bits_at(at, i)) / step)

    return over_rows(row, _ROWS_PER_UNIT)


def _make_code_of(middle: Any) -> Any:
    @inner
    def code_of(number: Any) -> Any:
        nearest = min(max(np.rint(number), -middle), middle - np.float32(1))
        return np.uint8(np.int32(nearest + middle))

    return code_of


@inner
def _e4m3_of(number: Any) -> Any:
    """The nearest code, ties to even; below 2^-6 steps are 2^-9, which adding 2^14 rounds to."""
    bits = _bits_of(number)
    size = bits & 0x7FFFFFFF
    small = _bits_of(float_of_bits(np.int32(size)) + np.float32(16384)) - 0x46800000
    usual = (size + 0x7FFFF + (size >> 20 & 1) >> 20) - (120 << 3)
    code = small if size < 0x3C800000 else min(usual, 0x7E)
    return np.uint8(code | (bits >> 24 & 0x80))
