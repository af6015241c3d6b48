"""The form `tiles` of products with weights in panels: AMX.

    32 rows of x, in the nearest cache          16 panels of 32 outputs, from the second one
    +---------------------+                     +------+------+------
    | a0 a0 a0 ...        |  16 rows        x   |  b   |  b   |  ...      2 x 2 sums of 16 x 16
    | a1 a1 a1 ...        |  16 or fewer        +------+------+------

Rows stay while panels pass by: the weights are loaded with the hint that they are not read again
soon, else they would drive the rows out of the nearest cache. While later rows are computed the
next panels are fetched from memory.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils

from radixlm.kernels.amx import (
    TILE_ROWS,
    TILE_UNITS,
    TileStrip,
    configure,
    release,
)
from radixlm.kernels.strips import UNIT_BYTES
from radixlm.kernels.vectors import MOST_LANES, Lanes, emitted, inner, offset, prefetch_line
from radixlm.layers.compiled import silu_product

# Of a panel.
TILE_VECTORS = 2
_LANES = TILE_VECTORS * MOST_LANES
_PANEL_ROW = _LANES * UNIT_BYTES
_HEIGHT = 2 * TILE_ROWS
# Of the next panels a strip fetches a seventh: a unit has up to eight strips, and the first one
# waits for memory itself.
_LINES_PER_STEP = 5
_INT64 = ir.IntType(64)


def make_tile_rows(*, halves: bool, gated: bool) -> Any:
    """rows(args, begin, count, first, last, ahead): see `products.product_kernel`.

    halves: results are bfloat16.
    """
    large = _make_strip(2, halves=halves, gated=gated, fetch=False)
    later = _make_strip(2, halves=halves, gated=gated, fetch=True)
    small = _make_strip(1, halves=halves, gated=gated, fetch=False)
    element, columns = 2 if halves else 4, _LANES // 2 if gated else _LANES

    @inner
    def rows(args: Any, begin: int, count: int, first: int, last: int, ahead: int) -> None:
        stride, panel_bytes = args.outputs * element, args.units * _PANEL_ROW
        fetched = panel_bytes * _LINES_PER_STEP * 64 // (TILE_UNITS * _PANEL_ROW)
        for row in range(begin, begin + count, _HEIGHT):
            height = min(_HEIGHT, begin + count - row)
            configure(min(height, TILE_ROWS), max(height - TILE_ROWS, 1))
            x = args.x + row * args.x_stride
            for panel in range(first, last):
                column = min(panel * columns, args.outputs - columns)
                into = args.into + row * stride + column * element
                weights, bias = args.panels + panel * panel_bytes, args.bias + panel * _PANEL_ROW
                if height <= TILE_ROWS:
                    small(x, args.x_stride, height, weights, args.units, bias, into, stride, ahead)
                elif row == begin:
                    large(x, args.x_stride, height, weights, args.units, bias, into, stride, ahead)
                else:
                    later(x, args.x_stride, height, weights, args.units, bias, into, stride, ahead)
                    ahead += fetched
        release()

    return rows


def _make_strip(groups: int, *, halves: bool, gated: bool, fetch: bool) -> Any:
    """strip(x, x_stride, rows, panel, units, bias, into, stride, ahead): `rows` rows at x times a
    panel. fetch: have some of what is ahead fetched.
    """

    @emitted(types.void, *[types.int64] * 9)
    def strip(builder: ir.IRBuilder, *values: Any) -> None:
        def fetch_ahead(step: Any) -> None:
            lines = offset(builder, ahead, step, _LINES_PER_STEP * 64)
            for line in range(_LINES_PER_STEP):
                address = builder.add(lines, ir.Constant(_INT64, 64 * line))
                prefetch_line(builder, address, level=2)

        x, x_stride, rows, panel, units, bias, into, stride, ahead = values
        panel_row = ir.Constant(_INT64, _PANEL_ROW)
        sums = TileStrip(builder, groups, TILE_VECTORS)
        sums.take(bias, ir.Constant(_INT64, 0))
        sums.add(x, x_stride, panel, panel_row, units, fetch_ahead if fetch else None)
        if not halves and not gated:
            sums.store(into, stride)
            return
        room = _room(builder, groups)
        sums.store(room, panel_row)
        ops = Lanes(builder, MOST_LANES)
        with cgutils.for_range(builder, rows) as loop:
            read = offset(builder, room, loop.index, _PANEL_ROW)
            write = builder.add(into, builder.mul(stride, loop.index))
            made = [ops.load(read, v * MOST_LANES) for v in range(TILE_VECTORS)]
            if gated:
                made = [silu_product(builder, ops, *made, coarse=halves)]
            for v, value in enumerate(made):
                at = builder.add(write, ir.Constant(_INT64, (2 if halves else 4) * v * MOST_LANES))
                ops.put(value, at, bfloat16=halves)

    return strip


def _room(builder: ir.IRBuilder, groups: int) -> Any:
    """The address of room for a strip's sums."""
    numbers = ir.ArrayType(ir.FloatType(), groups * TILE_ROWS * _LANES)
    room = cgutils.alloca_once(builder, numbers)
    room.align = 64
    return builder.ptrtoint(room, _INT64)
