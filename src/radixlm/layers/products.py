"""Products with packed weights on the CPU, compiled: for one token as for thousands.

    outputs    0 .. 47  48 .. 95  ...     a panel: what 48 outputs read, in the order in which they
              +--------+--------+--       read it, unit after unit (see `attention.strips`)
    unit 0    | panel  | panel  |
         1    |        |        |         8 rows of x meet a panel; their 8 x 48 sums stay in
         ...  +--------+--------+--       registers, a panel (55 KB at 576 inputs) in the cache

A unit of work is one panel and up to 256 rows; threads take one after the other from a counter.
With few rows the weights' way from memory is the floor, with many the processor's multiplications;
docs/adr/0015-own-products.md has both beside oneDNN's.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Sequence
from typing import Any

import torch
from llvmlite import ir
from numba import cfunc, types
from numba.core import cgutils
from numba.extending import intrinsic
from torch import Tensor

from radixlm.attention.processor import has_bfloat16, processor_has
from radixlm.attention.strips import UNIT_BYTES, Strip
from radixlm.attention.team import team
from radixlm.attention.vectors import FAST, MOST_LANES, fetch_add, prefetch_line, words

# The worker's arguments, int64 each; strides in bytes.
_TAKEN, _ROWS, _UNITS, _OUTPUTS, _X, _X_STRIDE, _PANELS, _BIAS, _INTO, _SIZE = range(10)
_ROWS_PER_UNIT = 256
# So far ahead of where a panel is read it is fetched.
_AHEAD_BYTES = 2048
_INT64 = ir.IntType(64)


def _strip() -> tuple[int, int]:
    """Rows and vectors whose sums stay in registers."""
    return (8, 3) if processor_has("avx512f") else (6, 1)


def knows(weight: Tensor) -> bool:
    """Whether there is compiled code for products with a weight (out, in)."""
    outputs, inputs = weight.shape
    if weight.device.type != "cpu" or not team().is_whole:
        return False
    if outputs < _strip()[1] * MOST_LANES:
        return False
    pairs = weight.dtype == torch.bfloat16 and has_bfloat16() and inputs % 2 == 0
    return pairs or weight.dtype == torch.float32


class PackedProduct:
    """x times the transposed weight, plus the bias. One call at a time.

    weight: (out, in), one that this module `knows`; bias: (out,). dtype: of the result, the
    weight's or float32, which sums are in any case.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None, dtype: torch.dtype) -> None:
        self._outputs, inputs = weight.shape
        self._dtype = dtype
        pairs = weight.dtype == torch.bfloat16
        self._units = inputs // 2 if pairs else inputs
        lanes = _strip()[1] * MOST_LANES
        self._panels, self._bias = _packed(weight, bias, lanes, 2 if pairs else 1)
        halves = dtype == torch.bfloat16
        self._worker = _make_worker(*_strip(), pairs=pairs, halves=halves)
        self._address: int = self._worker.address
        self._team = team()
        self._arguments = (ctypes.c_int64 * _SIZE)()
        self._at = ctypes.addressof(self._arguments)

    def __call__(self, x: Tensor) -> Tensor:
        """(tokens, in) -> (tokens, out). x: strided over tokens."""
        made = x.new_empty((x.shape[0], self._outputs), dtype=self._dtype)
        if x.stride(1) != 1:
            x = x.contiguous()
        self._arguments[:] = [
            0,
            x.shape[0],
            self._units,
            self._outputs,
            x.data_ptr(),
            x.stride(0) * x.element_size(),
            self._panels.data_ptr(),
            self._bias.data_ptr(),
            made.data_ptr(),
        ]
        self._team.run(self._address, self._at, self._team.size)
        return made


def _packed(weight: Tensor, bias: Tensor | None, lanes: int, numbers: int) -> tuple[Tensor, Tensor]:
    """Panels (panels, units, lanes, numbers of a unit) and each one's bias, float32. The last one
    ends with the last output, and so may begin within the one before it.
    """
    outputs, inputs = weight.shape
    first = torch.arange(0, outputs, lanes).clamp_(max=outputs - lanes)
    rows = first[:, None] + torch.arange(lanes)
    if outputs % lanes == 0:
        panels = weight.view(-1, lanes, inputs // numbers, numbers)
    else:
        panels = weight[rows].view(-1, lanes, inputs // numbers, numbers)
    biases = torch.zeros(rows.shape, dtype=torch.float32)
    if bias is not None:
        biases.copy_(bias[rows])
    return panels.transpose(1, 2).contiguous(), biases


def _make_strip(rows: int, vectors: int, *, pairs: bool, halves: bool) -> Any:
    """strip(x, x_stride, last, panel, units, bias, into, stride): `rows` rows at x times a panel;
    rows beyond the `last` one are that one again, and leave the same result in the same place.

    pairs: units are pairs of bfloat16 numbers; halves: results are bfloat16.
    """
    panel_row = vectors * MOST_LANES * UNIT_BYTES

    @intrinsic  # type: ignore[untyped-decorator]
    def strip(
        _context: Any,
        _x: Any,
        _x_stride: Any,
        _last: Any,
        _panel: Any,
        _units: Any,
        _bias: Any,
        _into: Any,
        _stride: Any,
    ) -> Any:
        def build(target: Any, builder: ir.IRBuilder, _signature: Any, args: Sequence[Any]) -> Any:
            x, x_stride, last, panel, units, bias, into, stride = args
            sums = Strip(builder, rows, vectors, pairs=pairs)
            sums.take_one(bias)
            x_rows = _rows_until(builder, x, x_stride, last, rows)
            step = ir.Constant(_INT64, panel_row)
            with cgutils.for_range(builder, units) as loop:
                ahead = builder.add(panel, builder.mul(loop.index, step))
                for line in range(0, panel_row, 64):
                    offset = ir.Constant(_INT64, _AHEAD_BYTES + line)
                    prefetch_line(builder, builder.add(ahead, offset))
                sums.add(x_rows, panel, step, loop.index)
            sums.store(_rows_until(builder, into, stride, last, rows), bfloat16=halves)
            return target.get_dummy_value()

        return types.void(*[types.int64] * 8), build

    return strip


def _rows_until(
    builder: ir.IRBuilder, address: Any, stride: Any, last: Any, count: int
) -> list[Any]:
    made = []
    for row in range(count):
        number = ir.Constant(_INT64, row)
        place = builder.select(builder.icmp_signed("<", number, last), number, last)
        made.append(builder.add(address, builder.mul(stride, place)))
    return made


@functools.cache
def _make_worker(rows: int, vectors: int, *, pairs: bool, halves: bool) -> Any:
    strip = _make_strip(rows, vectors, pairs=pairs, halves=halves)
    lanes, element = vectors * MOST_LANES, 2 if halves else 4

    @cfunc(types.void(types.int64), **FAST)  # type: ignore[untyped-decorator]
    def worker(arguments: int) -> None:
        args = words(arguments)
        count, units, outputs = args[_ROWS], args[_UNITS], args[_OUTPUTS]
        panels = -(-outputs // lanes)
        while True:
            unit = fetch_add(arguments)
            if unit >= panels * -(-count // _ROWS_PER_UNIT):
                break
            begin, panel = unit // panels * _ROWS_PER_UNIT, unit % panels
            column = min(panel * lanes, outputs - lanes)
            weights = args[_PANELS] + panel * units * lanes * UNIT_BYTES
            bias = args[_BIAS] + panel * lanes * 4
            for row in range(begin, min(begin + _ROWS_PER_UNIT, count), rows):
                x = args[_X] + row * args[_X_STRIDE]
                into = args[_INTO] + (row * outputs + column) * element
                last = count - 1 - row
                strip(x, args[_X_STRIDE], last, weights, units, bias, into, outputs * element)

    return worker
