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
from radixlm.products.compiled import GateKind, gate_product

# Of a panel.
TILE_VECTORS = 2
_LANES = TILE_VECTORS * MOST_LANES
_PANEL_ROW = _LANES * UNIT_BYTES
_HEIGHT = 2 * TILE_ROWS
# Of the next panels a strip fetches a seventh: a unit has up to eight strips, and the first one
# waits for memory itself.
_LINES_PER_STEP = 5
_ROOM_BYTES = _HEIGHT * _PANEL_ROW
# A strip whose sums are complete: their address, where results go, and how many rows.
_DONE = types.UniTuple(types.int64, 3)
_INT64 = ir.IntType(64)


def make_tile_rows(*, halves: bool, gate: GateKind | None) -> Any:
    """rows(args, begin, count, first, last, ahead, scratch): see `products.product_kernel`.

    halves: results are bfloat16.
    """
    large = _make_strip(2, halves=halves, gate=gate, fetch=False)
    later = _make_strip(2, halves=halves, gate=gate, fetch=True)
    small = _make_strip(1, halves=halves, gate=gate, fetch=False)
    finish = _make_finish(halves=halves, gate=gate)
    element, columns = 2 if halves else 4, _LANES // 2 if gate else _LANES

    @inner
    def rows(
        args: Any, begin: int, count: int, first: int, last: int, ahead: int, _scratch: int
    ) -> None:
        stride, panel_bytes = args.stride, args.units * _PANEL_ROW
        fetched = panel_bytes * _LINES_PER_STEP * 64 // (TILE_UNITS * _PANEL_ROW)
        room = two_rooms()
        other, nothing = room + _ROOM_BYTES, room - room
        done = room, nothing, nothing
        for row in range(begin, begin + count, _HEIGHT):
            height = min(_HEIGHT, begin + count - row)
            if row == begin or height < _HEIGHT:
                configure(min(height, TILE_ROWS), max(height - TILE_ROWS, 1), TILE_UNITS)
            x = args.x + row * args.x_stride
            for panel in range(first, last):
                column = min(panel * columns, args.outputs - columns)
                into = args.into + row * stride + column * element
                weights, bias = args.panels + panel * panel_bytes, args.bias + panel * _PANEL_ROW
                if height <= TILE_ROWS:
                    small(x, args.x_stride, weights, args.units, bias, room, done, stride, ahead)
                elif row == begin:
                    large(x, args.x_stride, weights, args.units, bias, room, done, stride, ahead)
                else:
                    later(x, args.x_stride, weights, args.units, bias, room, done, stride, ahead)
                    ahead += fetched
                done = (room, into, height)
                room, other = other, room
        finish(done, stride)
        release()

    return rows


def _make_strip(groups: int, *, halves: bool, gate: GateKind | None, fetch: bool) -> Any:
    """strip(x, x_stride, panel, units, bias, room, done, stride, ahead): rows at x times a panel,
    into a room. done: the strip before, of which some rows are finished beside each step. fetch:
    have some of what is ahead fetched, too.
    """

    @emitted(types.void, *[types.int64] * 6, _DONE, *[types.int64] * 2)
    def strip(builder: ir.IRBuilder, *values: Any) -> None:
        x, x_stride, panel, units, bias, room, done, stride, ahead = values
        before, into, count = (builder.extract_value(done, place) for place in range(3))
        steps = builder.udiv(units, ir.Constant(_INT64, TILE_UNITS))
        each = builder.udiv(builder.add(count, builder.sub(steps, ir.Constant(_INT64, 1))), steps)

        def beside(step: Any) -> None:
            if fetch:
                lines = offset(builder, ahead, step, _LINES_PER_STEP * 64)
                for line in range(_LINES_PER_STEP):
                    address = builder.add(lines, ir.Constant(_INT64, 64 * line))
                    prefetch_line(builder, address, level=2)
            first = builder.mul(step, each)
            last = builder.add(first, each)
            last = builder.select(builder.icmp_signed("<", last, count), last, count)
            _finish(builder, before, into, stride, (first, last), halves=halves, gate=gate)

        sums = TileStrip(builder, groups, TILE_VECTORS)
        sums.take(bias, ir.Constant(_INT64, 0))
        sums.add(x, x_stride, panel, ir.Constant(_INT64, _PANEL_ROW), units, beside)
        sums.store(room, ir.Constant(_INT64, _PANEL_ROW))

    return strip


def _make_finish(*, halves: bool, gate: GateKind | None) -> Any:
    """finish(done, stride): all rows of the last strip."""

    @emitted(types.void, _DONE, types.int64)
    def finish(builder: ir.IRBuilder, done: Any, stride: Any) -> None:
        before, into, count = (builder.extract_value(done, place) for place in range(3))
        rows = ir.Constant(_INT64, 0), count
        _finish(builder, before, into, stride, rows, halves=halves, gate=gate)

    return finish


def _finish(
    builder: ir.IRBuilder,
    room: Any,
    into: Any,
    stride: Any,
    rows: tuple[Any, Any],
    *,
    halves: bool,
    gate: GateKind | None,
) -> None:
    """Write these rows of a strip's sums."""
    ops = Lanes(builder, MOST_LANES)
    with cgutils.for_range_slice(builder, *rows, ir.Constant(_INT64, 1), _INT64) as (row, _):
        read = offset(builder, room, row, _PANEL_ROW)
        write = builder.add(into, builder.mul(stride, row))
        made = [ops.load(read, v * MOST_LANES) for v in range(TILE_VECTORS)]
        if gate:
            made = [gate_product(builder, ops, gate, *made, coarse=halves)]
        for v, value in enumerate(made):
            at = builder.add(write, ir.Constant(_INT64, (2 if halves else 4) * v * MOST_LANES))
            ops.put(value, at, bfloat16=halves)


@emitted(types.int64)
def two_rooms(builder: ir.IRBuilder) -> Any:
    """The address of room for the sums of two strips, in the calling function's frame."""
    rooms = cgutils.alloca_once(builder, ir.ArrayType(ir.FloatType(), 2 * _ROOM_BYTES // 4))
    rooms.align = 64
    return builder.ptrtoint(rooms, _INT64)
