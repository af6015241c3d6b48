"""The form `tiles` of products with quantized weights: AMX multiplies bytes.

    AMX       32 encoded rows x 32 outputs | the next panel, or the next group    int32
    vectors                                | scales of the one before             float32

The sums are those of `quantized_strips` to the last bit: integers are exact, and groups are added
up by the same code in the same order. Units in fewer bits become bytes, a group at a time.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils

from radixlm.kernels.amx import BYTES, TILE_ROWS, TILE_UNITS, TileStrip, configure, release
from radixlm.kernels.strips import UNIT_BYTES
from radixlm.kernels.vectors import MOST_LANES, Lanes, emitted, inner, offset
from radixlm.products.quantized_strips import GroupEnds, of_one_group, put_row
from radixlm.products.quantized_units import (
    LANES,
    UNIT,
    VECTORS,
    StripKind,
    place_of,
    unpack_units,
)

_HEIGHT = 2 * TILE_ROWS
_UNIT_ROW = LANES * UNIT_BYTES
_ROOM_BYTES = _HEIGHT * _UNIT_ROW
# Inputs of one step of the products.
STEP = TILE_UNITS * UNIT
_INT64 = ir.IntType(64)
# A strip whose products are complete: addresses of them, of the panel's ends, of the first row and
# of its results; how many rows.
_DONE = types.UniTuple(types.int64, 5)
# Bytes of an encoded row, inputs, groups, bytes from result to result.
_SIZES = types.UniTuple(types.int64, 4)


# Groups in fewer bits become bytes here, so they have this many inputs at most.
_MOST_INPUTS = 256
_FRAME_BYTES = 3 * _ROOM_BYTES + _MOST_INPUTS * LANES


def knows_tiles(bits: int, group: int) -> bool:
    """Whether a group is one step or whole steps, and all inputs (0) are bytes. See `StripKind`."""
    if not group:
        return bits == 8
    return (group <= STEP or group % STEP == 0) and (bits == 8 or group <= _MOST_INPUTS)


def make_tile_rows(kind: StripKind) -> Any:
    """multiply(args, begin, rows, first, last, codes, row_bytes): see `quantized_products`."""
    make_strip = _make_grouped_strip if kind.group else _make_whole_strip
    many, few = (make_strip(kind, tiles) for tiles in (2, 1))
    finish, whole = _make_finish(kind), not kind.group
    element, columns = 2 if kind.halves else 4, LANES // 2 if kind.gate else LANES
    units = min(kind.group or STEP, STEP) // UNIT

    @inner
    def multiply(
        args: Any, begin: int, rows: int, first: int, last: int, codes: int, row_bytes: int
    ) -> None:
        stride, room = args.stride, _frame()
        sizes = row_bytes, args.inputs, args.groups, stride
        other, nothing = room + _ROOM_BYTES, room - room
        done = room, args.ends, codes, args.into, nothing
        for row in range(0, rows, _HEIGHT):
            height = min(_HEIGHT, rows - row)
            if row == 0 or height < _HEIGHT:
                configure(min(height, TILE_ROWS), max(height - TILE_ROWS, 1), units)
            x = codes + row * row_bytes
            for number in range(first, last):
                column = min(number * columns, args.outputs - columns)
                into = args.into + (begin + row) * stride + column * element
                panel = args.panels + number * args.panel_bytes
                now = room, args.ends + number * 2 * LANES * 4, x, into, height
                if height > TILE_ROWS:
                    many(panel, now, done, sizes)
                else:
                    few(panel, now, done, sizes)
                if whole:
                    done = now
                    room, other = other, room
        finish(done, sizes)
        release()

    return multiply


def _make_whole_strip(kind: StripKind, tiles: int) -> Any:
    """strip(panel, now, done, sizes): rows times a panel; beside each step some rows of the strip
    before are finished.
    """

    @emitted(types.void, types.int64, _DONE, _DONE, _SIZES)
    def strip(builder: ir.IRBuilder, panel: Any, now: Any, done: Any, sizes: Any) -> None:
        inputs, count = builder.extract_value(sizes, 1), builder.extract_value(done, 4)
        steps = builder.udiv(builder.add(inputs, _number(STEP - 1)), _number(STEP))
        each = builder.udiv(builder.add(count, builder.sub(steps, _number(1))), steps)

        def beside(step: Any) -> None:
            first = builder.mul(step, each)
            last = builder.add(first, each)
            last = builder.select(builder.icmp_signed("<", last, count), last, count)
            _finish_rows(builder, kind, done, sizes, first, last)

        room, x = _part(builder, now, 0), _part(builder, now, 2)
        sums = TileStrip(builder, tiles, VECTORS, BYTES)
        sums.clear()
        units = builder.mul(steps, _number(TILE_UNITS))
        sums.add(x, _part(builder, sizes, 0), panel, _number(_UNIT_ROW), units, beside)
        sums.store(room, _number(_UNIT_ROW))

    return strip


def _finish_rows(
    builder: ir.IRBuilder, kind: StripKind, done: Any, sizes: Any, first: Any, last: Any
) -> None:
    """Write these rows of a strip's results, where a weight has one group."""
    ops = Lanes(builder, MOST_LANES)
    room, ends, x, into, _ = (_part(builder, done, place) for place in range(5))
    row_bytes, inputs, _, stride = (_part(builder, sizes, place) for place in range(4))
    with cgutils.for_range_slice(builder, first, last, _number(1), _INT64) as (row, _):
        counts = _vectors(ops, offset(builder, room, row, _UNIT_ROW))
        stats = builder.add(builder.add(x, builder.mul(row, row_bytes)), inputs)
        made = of_one_group(ops, builder, kind, counts, stats)
        put_row(ops, builder, kind, made, ends, builder.add(into, builder.mul(row, stride)))


def _make_finish(kind: StripKind) -> Any:
    """finish(done, sizes): all rows of the last strip."""

    @emitted(types.void, _DONE, _SIZES)
    def finish(builder: ir.IRBuilder, done: Any, sizes: Any) -> None:
        _finish_rows(builder, kind, done, sizes, _number(0), _part(builder, done, 4))

    return finish


def _make_grouped_strip(kind: StripKind, tiles: int) -> Any:
    """strip(panel, now, _done, sizes): rows times a panel, group after group; each one's products
    go to one of two rooms, and are added up while the next ones are computed.
    """
    units = max(kind.group // UNIT, TILE_UNITS)

    @emitted(types.void, types.int64, _DONE, _DONE, _SIZES)
    def strip(builder: ir.IRBuilder, panel: Any, now: Any, _done: Any, sizes: Any) -> None:
        room, x = _part(builder, now, 0), _part(builder, now, 2)
        row_bytes, groups = _part(builder, sizes, 0), _part(builder, sizes, 2)
        sums = builder.add(room, _number(2 * _ROOM_BYTES))
        cgutils.memset(builder, _pointer(builder, sums), _number(_ROOM_BYTES), 0)
        with cgutils.for_range(builder, groups) as loop:
            codes = place_of(builder, kind, panel, loop.index).units
            if kind.bits < 8:
                packed, codes = codes, builder.add(sums, _number(_ROOM_BYTES))
                unpack_units(builder, kind, packed, _number(kind.group), codes)
            at = offset(builder, room, builder.and_(loop.index, _number(1)), _ROOM_BYTES)
            products = TileStrip(builder, tiles, VECTORS, BYTES)
            products.clear()
            here = offset(builder, x, loop.index, kind.group)
            products.add(here, row_bytes, codes, _number(_UNIT_ROW), _number(units))
            products.store(at, _number(_UNIT_ROW))
            with builder.if_then(builder.icmp_signed(">", loop.index, _number(0))):
                before = builder.sub(loop.index, _number(1))
                _add_group(builder, kind, panel, now, sizes, before)
        _add_group(builder, kind, panel, now, sizes, builder.sub(groups, _number(1)))
        _put_rows(builder, kind, now, sizes)

    return strip


def _add_group(
    builder: ir.IRBuilder, kind: StripKind, panel: Any, now: Any, sizes: Any, group: Any
) -> None:
    """Products of a group, times its scales, to the sums of all rows."""
    ops = Lanes(builder, MOST_LANES)
    room, _, x, _, height = (_part(builder, now, place) for place in range(5))
    row_bytes, inputs, groups, _ = (_part(builder, sizes, place) for place in range(4))
    products = offset(builder, room, builder.and_(group, _number(1)), _ROOM_BYTES)
    all_sums = builder.add(room, _number(2 * _ROOM_BYTES))
    ends = GroupEnds(ops, builder, kind, place_of(builder, kind, panel, group))
    with cgutils.for_range(builder, height) as loop:
        row = builder.add(x, builder.mul(loop.index, row_bytes))
        scale = offset(builder, builder.add(row, inputs), group, 4)
        counts = _vectors(ops, offset(builder, products, loop.index, _UNIT_ROW))
        at = offset(builder, all_sums, loop.index, _UNIT_ROW)
        sums = [ops.load(at, v * MOST_LANES) for v in range(VECTORS)]
        made = ends.added(counts, sums, scale, offset(builder, scale, groups, 4))
        for v, value in enumerate(made):
            ops.store(value, at, v * MOST_LANES)


def _put_rows(builder: ir.IRBuilder, kind: StripKind, now: Any, sizes: Any) -> None:
    ops, stride = Lanes(builder, MOST_LANES), _part(builder, sizes, 3)
    room, ends, _, into, height = (_part(builder, now, place) for place in range(5))
    all_sums = builder.add(room, _number(2 * _ROOM_BYTES))
    with cgutils.for_range(builder, height) as loop:
        at = offset(builder, all_sums, loop.index, _UNIT_ROW)
        sums = [ops.load(at, v * MOST_LANES) for v in range(VECTORS)]
        here = builder.add(into, builder.mul(loop.index, stride))
        put_row(ops, builder, kind, sums, ends, here)


def _vectors(ops: Lanes, at: Any) -> list[Any]:
    return [ops.load_integers(at, v * MOST_LANES) for v in range(VECTORS)]


def _part(builder: ir.IRBuilder, values: Any, place: int) -> Any:
    return builder.extract_value(values, place)


def _number(value: int) -> Any:
    return ir.Constant(_INT64, value)


def _pointer(builder: ir.IRBuilder, address: Any) -> Any:
    return builder.inttoptr(address, ir.IntType(8).as_pointer())


@emitted(types.int64)
def _frame(builder: ir.IRBuilder) -> Any:
    """The address of rooms for two strips' products, for sums and for bytes, in the calling
    function's frame.
    """
    frame = cgutils.alloca_once(builder, ir.ArrayType(ir.FloatType(), _FRAME_BYTES // 4))
    frame.align = 64
    return builder.ptrtoint(frame, _INT64)
