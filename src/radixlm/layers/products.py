"""Products with packed weights on the CPU, compiled: for one token as for thousands.

    outputs    0 .. 47  48 .. 95  ...     a panel: what 48 outputs read, in the order in which they
              +--------+--------+--       read it, unit after unit (see `attention.strips`)
    unit 0    | panel  | panel  |
         1    |        |        |         8 rows of x meet a panel; their 8 x 48 sums stay in
         ...  +--------+--------+--       registers, a panel (55 KB at 576 inputs) in the cache

A unit of work is one panel and up to 256 rows; threads take one after the other from a counter.
Where the last panel overlaps the one before, two of them write the same numbers.
With few rows the weights' way from memory is the floor, with many the processor's multiplications;
docs/adr/0012-cpu-kernels.md has both beside oneDNN's.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any

import torch
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic
from torch import Tensor

from radixlm.kernels.jit import compiled
from radixlm.kernels.openmp import team
from radixlm.kernels.strips import UNIT_BYTES, Strip
from radixlm.kernels.vectors import (
    MOST_LANES,
    fetch_add,
    has_bfloat16,
    prefetch_line,
    processor_has,
    words,
)

# The worker's arguments, int64 each; strides in bytes.
_TAKEN, _ROWS, _UNITS, _OUTPUTS, _X, _X_STRIDE, _PANELS, _BIAS, _INTO, _HEIGHT, _SIZE = range(11)
# Sums of a strip, such that they stay in registers.
_STRIP_ROWS, _STRIP_VECTORS = 8, 3
_LANES = _STRIP_VECTORS * MOST_LANES
# Rows of a unit, a multiple of a strip's; fewer where threads would have less than so many units.
_ROWS_PER_UNIT = 256
_UNITS_PER_THREAD = 4
# So far ahead of where a panel is read it is fetched.
_AHEAD_BYTES = 2048
_INT64 = ir.IntType(64)


def knows(weight: Tensor) -> bool:
    """Whether there is compiled code for products with a weight (out, in) that is worth it here:
    it was measured with AVX-512; where AMX multiplies bfloat16, torch's own products are faster.
    """
    outputs, inputs = weight.shape
    if weight.device.type != "cpu" or not team().is_whole or not processor_has("avx512f"):
        return False
    if outputs < _LANES:
        return False
    if weight.dtype == torch.bfloat16:
        return has_bfloat16() and not processor_has("amx-bf16") and inputs % 2 == 0
    return weight.dtype == torch.float32


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
        self._panels, self._bias = _packed(weight, bias, 2 if pairs else 1)
        halves = dtype == torch.bfloat16
        self._worker = _make_worker(pairs=pairs, halves=halves)
        self._address = self._worker.address
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
            self._height(x.shape[0]),
        ]
        self._team.run(self._address, self._at, self._team.size)
        return made

    def _height(self, rows: int) -> int:
        """Rows of a unit."""
        height = _ROWS_PER_UNIT
        wanted = _UNITS_PER_THREAD * self._team.size
        while height > _STRIP_ROWS and self._panels.shape[0] * -(-rows // height) < wanted:
            height //= 2
        return height


def _packed(weight: Tensor, bias: Tensor | None, numbers: int) -> tuple[Tensor, Tensor]:
    """Panels (panels, units, lanes, numbers of a unit) and each one's bias, float32. The last one
    ends with the last output, and so may begin within the one before it.
    """
    outputs, inputs = weight.shape
    count, whole = -(-outputs // _LANES), outputs // _LANES
    panels = weight.new_empty((count, inputs // numbers, _LANES, numbers))
    biases = torch.zeros((count, _LANES), dtype=torch.float32, device="cpu")
    last = slice(-1, None), slice(-_LANES, None)
    for part, rows in ((slice(whole), slice(whole * _LANES)), last):
        cut = weight[rows].view(-1, _LANES, inputs // numbers, numbers)
        panels[part].copy_(cut.transpose(1, 2))
        if bias is not None:
            biases[part].copy_(bias[rows].view(-1, _LANES))
    return panels, biases


def _make_strip(*, pairs: bool, halves: bool) -> Any:
    """strip(x, x_stride, last, panel, units, bias, into, stride): eight rows at x times a panel;
    rows beyond the `last` one are that one again, and leave the same result in the same place.

    pairs: units are pairs of bfloat16 numbers; halves: results are bfloat16.
    """
    panel_row = _LANES * UNIT_BYTES

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
            sums = Strip(builder, _STRIP_ROWS, _STRIP_VECTORS, pairs=pairs)
            sums.take_one(bias)
            x_rows = _rows_until(builder, x, x_stride, last)
            step = ir.Constant(_INT64, panel_row)
            with cgutils.for_range(builder, units) as loop:
                ahead = builder.add(panel, builder.mul(loop.index, step))
                for line in range(0, panel_row, 64):
                    offset = ir.Constant(_INT64, _AHEAD_BYTES + line)
                    prefetch_line(builder, builder.add(ahead, offset))
                sums.add(x_rows, panel, step, loop.index)
            sums.store(_rows_until(builder, into, stride, last), bfloat16=halves)
            return target.get_dummy_value()

        return types.void(*[types.int64] * 8), build

    return strip


def _rows_until(builder: ir.IRBuilder, address: Any, stride: Any, last: Any) -> list[Any]:
    made = []
    for row in range(_STRIP_ROWS):
        number = ir.Constant(_INT64, row)
        place = builder.select(builder.icmp_signed("<", number, last), number, last)
        made.append(builder.add(address, builder.mul(stride, place)))
    return made


@compiled
def _make_worker(*, pairs: bool, halves: bool) -> Callable[[int], None]:
    strip = _make_strip(pairs=pairs, halves=halves)
    element = 2 if halves else 4

    def worker(arguments: int) -> None:
        args = words(arguments)
        count, units, outputs, height = args[_ROWS], args[_UNITS], args[_OUTPUTS], args[_HEIGHT]
        panels = -(-outputs // _LANES)
        while True:
            unit = fetch_add(arguments)
            if unit >= panels * -(-count // height):
                break
            begin, panel = unit // panels * height, unit % panels
            column = min(panel * _LANES, outputs - _LANES)
            weights = args[_PANELS] + panel * units * _LANES * UNIT_BYTES
            bias = args[_BIAS] + panel * _LANES * 4
            for row in range(begin, min(begin + height, count), _STRIP_ROWS):
                x = args[_X] + row * args[_X_STRIDE]
                into = args[_INTO] + (row * outputs + column) * element
                last = count - 1 - row
                strip(x, args[_X_STRIDE], last, weights, units, bias, into, outputs * element)

    return worker
