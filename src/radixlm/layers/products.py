"""Products with packed weights on the CPU, compiled: for one token as for thousands.

    outputs    0 .. 47  48 .. 95  ...     a panel: what 48 outputs read, in the order in which they
              +--------+--------+--       read it, unit after unit (see `kernels.strips`)
    unit 0    | panel  | panel  |
         1    |        |        |         8 rows of x meet a panel; their 8 x 48 sums stay in
         ...  +--------+--------+--       registers, a panel (55 KB at 576 inputs) in the cache

A unit of work is one panel and up to 256 rows; threads take one after the other from a counter.
Where the last panel overlaps the one before, two of them write the same numbers.
With few rows the weights' way from memory is the floor, with many the processor's multiplications;
docs/adr/0012-cpu-kernels.md has both beside oneDNN's.
"""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable
from typing import Any

import torch
from llvmlite import ir
from numba import types
from numba.core import cgutils
from torch import Tensor

from radixlm.kernels.jit import compiled
from radixlm.kernels.openmp import Worker, team
from radixlm.kernels.strips import UNIT_BYTES, Strip
from radixlm.kernels.vectors import (
    MOST_LANES,
    emitted,
    has_bfloat16,
    offset,
    prefetch_line,
    processor_has,
    take_unit,
)

# Sums of a strip, such that they stay in registers.
_STRIP_ROWS, _STRIP_VECTORS = 8, 3
_LANES = _STRIP_VECTORS * MOST_LANES
# Rows of a unit, a multiple of a strip's; fewer where threads would have fewer units than this.
_ROWS_PER_UNIT = 256
_UNITS_PER_THREAD = 4
# A panel is fetched this far ahead of where it is read.
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
        self._panels, self._bias = _packed(weight, bias, 2 if pairs else 1)
        self._worker = Worker(
            product_kernel(pairs=pairs, halves=dtype == torch.bfloat16),
            units=inputs // 2 if pairs else inputs,
            outputs=self._outputs,
            panels=self._panels.data_ptr(),
            bias=self._bias.data_ptr(),
        )

    def __call__(self, x: Tensor) -> Tensor:
        """(tokens, in) -> (tokens, out). x: strided over tokens."""
        made = x.new_empty((x.shape[0], self._outputs), dtype=self._dtype)
        if x.stride(1) != 1:
            x = x.contiguous()
        arguments = self._worker.arguments
        arguments.rows, arguments.height = x.shape[0], self._height(x.shape[0])
        arguments.x, arguments.x_stride = x.data_ptr(), x.stride(0) * x.element_size()
        arguments.into = made.data_ptr()
        self._worker()
        return made

    def _height(self, rows: int) -> int:
        """Rows of a unit."""
        height = _ROWS_PER_UNIT
        wanted = _UNITS_PER_THREAD * team().size
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

    @emitted(types.void, *[types.int64] * 8)
    def strip(builder: ir.IRBuilder, *values: Any) -> None:
        x, x_stride, last, panel, units, bias, into, stride = values
        sums = Strip(builder, _STRIP_ROWS, _STRIP_VECTORS, pairs=pairs)
        sums.take_one(bias)
        x_rows = _rows_until(builder, x, x_stride, last)
        with cgutils.for_range(builder, units) as loop:
            ahead = offset(builder, panel, loop.index, panel_row)
            for line in range(0, panel_row, 64):
                prefetch_line(builder, builder.add(ahead, ir.Constant(_INT64, _AHEAD_BYTES + line)))
            sums.add(x_rows, panel, ir.Constant(_INT64, panel_row), loop.index)
        sums.store(_rows_until(builder, into, stride, last), bfloat16=halves)

    return strip


def _rows_until(builder: ir.IRBuilder, address: Any, stride: Any, last: Any) -> list[Any]:
    made = []
    for row in range(_STRIP_ROWS):
        number = ir.Constant(_INT64, row)
        place = builder.select(builder.icmp_signed("<", number, last), number, last)
        made.append(builder.add(address, builder.mul(stride, place)))
    return made


_Arguments = namedtuple(
    "_Arguments", "counters rows units outputs x x_stride panels bias into height"
)


@compiled(_Arguments)
def product_kernel(*, pairs: bool, halves: bool) -> Callable[[Any], None]:
    """See `_make_strip`. height: rows of a unit."""
    strip = _make_strip(pairs=pairs, halves=halves)
    element = 2 if halves else 4

    def product(args: _Arguments) -> None:
        units, outputs, height = args.units, args.outputs, args.height
        panels = -(-outputs // _LANES)
        unit = take_unit(args.counters)
        while unit < panels * -(-args.rows // height):
            begin, panel = unit // panels * height, unit % panels
            column = min(panel * _LANES, outputs - _LANES)
            weights = args.panels + panel * units * _LANES * UNIT_BYTES
            bias = args.bias + panel * _LANES * 4
            for row in range(begin, min(begin + height, args.rows), _STRIP_ROWS):
                x = args.x + row * args.x_stride
                into = args.into + (row * outputs + column) * element
                last = args.rows - 1 - row
                strip(x, args.x_stride, last, weights, units, bias, into, outputs * element)
            unit = take_unit(args.counters)

    return product
