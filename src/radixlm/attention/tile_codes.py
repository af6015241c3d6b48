"""A tile of a coded pool, laid out as `tile_layout` does it: the numbers that codes stand for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types

from radixlm.attention.tile_layout import TileShape, places_of
from radixlm.kernels.code_dots import UNIT_CODES, units_of_codes
from radixlm.kernels.strips import UNIT_BYTES
from radixlm.kernels.vectors import MOST_LANES, Lanes, emitted, floats, inner, integers, words

_ADDRESS_BYTES = 8
_INT8, _INT32, _INT64 = ir.IntType(8), ir.IntType(32), ir.IntType(64)


def make_pack_codes(shape: TileShape) -> Any:
    """pack(keys, values, scales, heads, slots, count, base): see `tile_layout.make_pack`."""
    places, kept, step = places_of(shape), shape.kept_bytes, shape.step
    pack_keys, pack_values = _make_pack_key_codes(shape), _make_pack_value_codes(shape)

    @inner
    def pack(
        keys: int, values: int, scales: int, heads: int, at: int, count: int, base: int
    ) -> None:
        slots, token_bytes, scale_bytes = integers(at), heads * kept, 8 * heads
        rows, of_rows = (
            words(base + places.rows),
            floats(base + places.rows + _ADDRESS_BYTES * MOST_LANES),
        )
        for t in range(0, count, MOST_LANES):
            for index in range(MOST_LANES):
                slot = np.int64(slots[min(t + index, count - 1)])
                rows[index] = keys + slot * token_bytes
                of_rows[index] = floats(scales + slot * scale_bytes)[0]
            pack_keys(base, t)
        for t in range(0, -(-count // step) * step, 2):
            one = np.int64(slots[min(t, count - 1)])
            other = np.int64(slots[min(t + 1, count - 1)])
            pack_values(
                values + one * token_bytes,
                values + other * token_bytes,
                floats(scales + one * scale_bytes)[heads],
                floats(scales + other * scale_bytes)[heads],
                base,
                t,
            )

    return pack


def _make_pack_key_codes(shape: TileShape) -> Any:
    """pack_keys(base, t): 16 keys, at the addresses in scratch, as the tile's columns from t on.
    Four codes at a time are turned as one, as `code_dots` does it; then a lane is a key's.
    """
    places, units, pairs = places_of(shape), shape.units, shape.pairs
    panel, each = shape.vectors * MOST_LANES, UNIT_CODES // (2 if shape.pairs else 1)

    @emitted(types.void, types.int64, types.int64)
    def put(builder: ir.IRBuilder, rows: Any, into: Any) -> None:
        ops = Lanes(builder, MOST_LANES)
        scale = ops.load(rows, _ADDRESS_BYTES // 4 * MOST_LANES)
        keys = [_address(builder, rows, index) for index in range(MOST_LANES)]
        place = 0
        for unit, codes in units_of_codes(builder, MOST_LANES, keys, shape.head_dim):
            numbers = [builder.fmul(x, scale) for x in _four(ops, builder, codes)]
            made = _paired(ops, builder, numbers) if pairs else numbers
            for place, vector in enumerate(made[: units - each * unit], each * unit):
                ops.store(vector, into, place * panel)
        for rest in range(place + 1, units):
            ops.store(ops.all(0), into, rest * panel)

    @inner
    def pack_keys(base: int, t: int) -> None:
        place = t // panel * units * panel + t % panel
        put(base + places.rows, base + places.keys + place * UNIT_BYTES)

    return pack_keys


def _address(builder: ir.IRBuilder, rows: Any, index: int) -> Any:
    at = builder.add(rows, ir.Constant(_INT64, _ADDRESS_BYTES * index))
    return builder.load(builder.inttoptr(at, _INT64.as_pointer()))


def _four(ops: Lanes, builder: ir.IRBuilder, codes: Any) -> list[Any]:
    """The codes of each lane, the first ones and so on, as float32."""
    made = []
    for place in range(UNIT_CODES):
        highest = builder.shl(codes, ops.all_integer(24 - 8 * place))
        made.append(builder.sitofp(builder.ashr(highest, ops.all_integer(24)), ops.vector))
    return made


def _paired(ops: Lanes, builder: ir.IRBuilder, numbers: Sequence[Any]) -> list[Any]:
    """Each two vectors of float32 as one of pairs of bfloat16, rounded to the nearest."""
    half, upper = ops.all_integer(1 << 15), ops.all_integer(-1 << 16)
    bits = [builder.add(builder.bitcast(x, ops.integers), half) for x in numbers]
    return [
        builder.or_(builder.lshr(one, ops.all_integer(16)), builder.and_(other, upper))
        for one, other in zip(bits[::2], bits[1::2], strict=True)
    ]


def _make_pack_value_codes(shape: TileShape) -> Any:
    """pack_values(one, other, scale, other_scale, base, t): the values of tokens t and t + 1 of a
    tile.
    """
    places, width, pairs = places_of(shape), shape.width, shape.pairs
    row_bytes = width * UNIT_BYTES // (2 if pairs else 1)

    @emitted(types.void, *[types.int64] * 2, *[types.float32] * 2, types.int64)
    def put(
        builder: ir.IRBuilder, one: Any, other: Any, scale: Any, other_scale: Any, into: Any
    ) -> None:
        ops = Lanes(builder, MOST_LANES)
        for d in range(0, width, MOST_LANES):
            numbers = []
            for token, by in ((one, scale), (other, other_scale)):
                codes = _sixteen(ops, builder, token, d, shape.head_dim)
                numbers.append(builder.fmul(builder.sitofp(codes, ops.vector), ops.spread(by)))
            made = _paired(ops, builder, numbers) if pairs else numbers
            for row, vector in enumerate(made):
                ops.store(vector, into, row * width + d)

    @inner
    def pack_values(
        one: int, other: int, scale: float, other_scale: float, base: int, t: int
    ) -> None:
        put(one, other, scale, other_scale, base + places.values + t * row_bytes)

    return pack_values


def _sixteen(ops: Lanes, builder: ir.IRBuilder, token: Any, start: int, count: int) -> Any:
    """Codes of a token from `start` on, of `count` in all, as int32; zeros beyond."""
    at = builder.add(token, ir.Constant(_INT64, start))
    if start + MOST_LANES <= count:
        kind = ir.VectorType(_INT8, MOST_LANES)
        codes = builder.load(builder.inttoptr(at, kind.as_pointer()))
        codes.align = 1
        return builder.sext(codes, ops.integers)
    made = ops.all_integer(0)
    for lane in range(max(count - start, 0)):
        here = builder.inttoptr(builder.add(at, ir.Constant(_INT64, lane)), _INT8.as_pointer())
        number = builder.sext(builder.load(here), _INT32)
        made = builder.insert_element(made, number, ir.Constant(_INT32, lane))
    return made
