"""A strip of queries over a tile of tokens, where AMX multiplies: its scores are made weights while
AMX has the next ones, and never leave the nearest cache.

    AMX       scores of 32 tokens | of the next 32 | ..        weights x values, added to what
    vectors                       | weigh          | weigh     the strip has so far

Weights need the largest score only so that they do not overflow, and float32 and bfloat16 reach
2^127. So a row measures its scores from that of the first token that it sees, a *base*, and keeps
it: sums and mixed values of all tiles are added up as they are. Where a tile has much larger scores
its row gets a new base, and the tile is weighed again. (As in FlashAttention-4, which moves its
base only where it must.)
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils

from radixlm.attention.merge import STATE_BYTES, begin, make_fold
from radixlm.attention.tile_layout import SUM_BYTES, TileShape, places_of
from radixlm.kernels.amx import TILE_ROWS, TILE_UNITS, TileStrip, make_tile_product
from radixlm.kernels.dots import capped, row_largest
from radixlm.kernels.strips import UNIT_BYTES
from radixlm.kernels.vectors import (
    LOG2_E,
    MOST_EXACT,
    MOST_LANES,
    Lanes,
    clear,
    emitted,
    floats,
    inner,
    make_put,
    offset,
    vectors_and_rest,
)

# Tokens whose scores are computed together, in two vectors; a row of the room for them.
_TOKENS = 2 * MOST_LANES
_ROW_BYTES = _TOKENS * UNIT_BYTES
_ROOM_BYTES = 2 * TILE_ROWS * _ROW_BYTES
# A larger sum of a tile's weights has been measured from the wrong base.
_MOST = 2.0**60
_INT32, _INT64 = ir.IntType(32), ir.IntType(64)
# Scores that wait to be weighed, by addresses: of them, of their rows' bases and sums, and of where
# the weights go. Of the first row its number in the block, and what this block's first token sees
# of the scores' tokens; how many of these there are, and of rows.
_WAITING = types.UniTuple(types.int64, 8)


def make_tile_strip(shape: TileShape) -> tuple[Any, Any]:
    """strip(base, row, last, seen, count, begins): see `tiles.make_vector_strip`. begins: whether
    this is the first tile of what is read. close(base, rows): the states of a block's rows, when
    the last tile is done.

    Ordered, each tile has bases and sums of its own and is taken into what comes before.
    """
    places, queries, ordered, width = places_of(shape), shape.queries, shape.ordered, shape.width
    results = mixed_at, states_at = _make_results(shape)
    score, weigh, mix = _make_score(shape), _make_weigh(shape), _make_mix(shape, mixed_at)
    set_bases, rebase = _make_set_bases(shape, states_at), _make_rebase(shape, results, score)
    take_in = _make_take_in(shape, results)

    @inner
    def strip(base: int, row: int, last: int, seen: int, count: int, begins: bool) -> None:
        rows = min(2 * TILE_ROWS, last - row + 1)
        widest = min(count, seen + (row + rows - 1) // queries)
        if widest <= 0:
            return
        sums, tile_sums = base + places.sums + row * SUM_BYTES, base + places.tile_sums
        if ordered:
            begin(mixed_at(base, row), states_at(base, row), rows, width)
        score(base, row, rows, 0)
        if begins or ordered:
            set_bases(base, row, rows, seen)
        weigh(base, row, rows, seen, widest)
        if not _all_below(tile_sums, rows):
            rebase(base, row, rows, seen, widest)
            score(base, row, rows, 0)
            weigh(base, row, rows, seen, widest)
        mix(base, row, rows, widest)
        if ordered:
            _add_up(states_at(base, row), tile_sums, rows)
            take_in(base, row, rows)
        else:
            _add(sums, tile_sums, rows * MOST_LANES)

    @inner
    def close(base: int, rows: int) -> None:
        if not ordered:
            _add_up(base + places.states, base + places.sums, rows)

    return strip, close


def _make_set_bases(shape: TileShape, states_at: Any) -> Any:
    """set_bases(base, row, rows, seen): by the first token, whose scores are in the first room."""
    places, queries = places_of(shape), shape.queries
    scale, cap_one = np.float32(LOG2_E / math.sqrt(shape.head_dim)), _make_cap_one(shape)

    @inner
    def set_bases(base: int, row: int, rows: int, seen: int) -> None:
        for r in range(row, row + rows):
            if seen + r // queries > 0:
                top = cap_one(floats(base + places.scores + (r - row) * _ROW_BYTES)[0])
                floats(states_at(base, row) + (r - row) * STATE_BYTES)[0] = top
                floats(base + places.bases)[r] = top * scale

    return set_bases


def _make_results(shape: TileShape) -> tuple[Any, Any]:
    """mixed_at(base, row), states_at(base, row): where a strip's values and states are added up."""
    places, ordered, width = places_of(shape), shape.ordered, shape.width

    @inner
    def mixed_at(base: int, row: int) -> int:
        if ordered:
            return base + places.scores + 2 * _ROOM_BYTES
        return base + places.mixed + row * width * 4

    @inner
    def states_at(base: int, row: int) -> int:
        return base + (places.tile_states if ordered else places.states + row * STATE_BYTES)

    return mixed_at, states_at


def _make_take_in(shape: TileShape, results: tuple[Any, Any]) -> Any:
    """take_in(base, row, rows): what a tile gave, if it is ordered."""
    places, width, fold = places_of(shape), shape.width * 4, make_fold(shape.head_dim)
    mixed_at, states_at = results

    @inner
    def take_in(base: int, row: int, rows: int) -> None:
        for r in range(rows):
            state = states_at(base, row) + r * STATE_BYTES
            if floats(state)[1] != 0:
                into, at = base + places.mixed + (row + r) * width, base + places.states
                fold(into, at + (row + r) * STATE_BYTES, mixed_at(base, row) + r * width, state)

    return take_in


def _make_score(shape: TileShape) -> Any:
    """score(base, row, rows, c): the tile's tokens from c on, into the first room."""
    places, units = places_of(shape), shape.units
    product, q_bytes = make_tile_product(2), units * UNIT_BYTES

    @inner
    def score(base: int, row: int, rows: int, c: int) -> None:
        q, keys = base + places.queries + row * q_bytes, base + places.keys + c * q_bytes
        product(rows, q, q_bytes, keys, _ROW_BYTES, units, base + places.scores, _ROW_BYTES)

    return score


def _make_weigh(shape: TileShape) -> Any:
    """weigh(base, row, rows, seen, count): weights of a tile, and their sums. The first scores are
    in the first room.
    """
    places, q_bytes = places_of(shape), shape.units * UNIT_BYTES
    whole, half = (_make_panel(shape, groups) for groups in (2, 1))
    weigh_waiting = _make_weigh_waiting(shape)

    @inner
    def weigh(base: int, row: int, rows: int, seen: int, count: int) -> None:
        clear(base + places.tile_sums, rows * MOST_LANES)
        q, room = base + places.queries + row * q_bytes, base + places.scores
        other, bases = room + _ROOM_BYTES, base + places.bases + 4 * row
        for c in range(0, count, _TOKENS):
            weights = base + places.weights + 2 * c
            sums = base + places.tile_sums
            waiting = (room, bases, sums, weights, row, seen - c, count - c, rows)
            keys = base + places.keys + (c + _TOKENS) * q_bytes
            if c + _TOKENS >= count:
                weigh_waiting(waiting)
            elif rows > TILE_ROWS:
                whole(q, keys, other, waiting)
            else:
                half(q, keys, other, waiting)
            room, other = other, room

    return weigh


def _make_panel(shape: TileShape, groups: int) -> Any:
    """panel(q, keys, room, waiting): scores, while others that wait are weighed."""
    units, q_bytes = shape.units, shape.units * UNIT_BYTES
    steps = units // TILE_UNITS

    @emitted(types.void, *[types.int64] * 3, _WAITING)
    def panel(builder: ir.IRBuilder, q: Any, keys: Any, room: Any, waiting: Any) -> None:
        rows = builder.extract_value(waiting, 7)
        each = builder.udiv(builder.add(rows, _number(steps - 1)), _number(steps))

        def beside(step: Any) -> None:
            first = builder.mul(step, each)
            last = builder.add(first, each)
            last = builder.select(builder.icmp_signed("<", last, rows), last, rows)
            _weigh_rows(builder, shape, waiting, first, last)

        sums = TileStrip(builder, groups, 2)
        sums.clear()
        row_bytes = _number(_ROW_BYTES)
        sums.add(q, _number(q_bytes), keys, row_bytes, _number(units), beside)
        sums.store(room, row_bytes)

    return panel


def _make_weigh_waiting(shape: TileShape) -> Any:
    """weigh_waiting(waiting): the same with no scores to compute."""

    @emitted(types.void, _WAITING)
    def weigh_waiting(builder: ir.IRBuilder, waiting: Any) -> None:
        _weigh_rows(builder, shape, waiting, _number(0), builder.extract_value(waiting, 7))

    return weigh_waiting


def _weigh_rows(
    builder: ir.IRBuilder, shape: TileShape, waiting: Any, first: Any, last: Any
) -> None:
    """Rows from first to last. Most of a long context all rows see whole."""
    *_, row, seen, count, _rows = (builder.extract_value(waiting, place) for place in range(8))
    whole = builder.icmp_signed(">=", _least(builder, seen, count, row, shape), _number(_TOKENS))
    with builder.if_else(whole) as (then, otherwise):
        for branch, masked in ((then, False), (otherwise, True)):
            with branch:
                one = _number(1)
                with cgutils.for_range_slice(builder, first, last, one, _INT64) as (r, _):
                    _weigh_row(builder, shape, waiting, r, masked=masked)


def _least(builder: ir.IRBuilder, seen: Any, count: Any, row: Any, shape: TileShape) -> Any:
    """The number of `count` tokens that a block's row sees."""
    sees = builder.add(seen, builder.udiv(row, _number(shape.queries)))
    return builder.select(builder.icmp_signed("<", sees, count), sees, count)


def _weigh_row(
    builder: ir.IRBuilder, shape: TileShape, waiting: Any, r: Any, *, masked: bool
) -> None:
    ops, scale = Lanes(builder, MOST_LANES), LOG2_E / math.sqrt(shape.head_dim)
    room, bases, sums, weights, row, seen, count, _ = (
        builder.extract_value(waiting, place) for place in range(8)
    )
    read, total_at = offset(builder, room, r, _ROW_BYTES), offset(builder, sums, r, SUM_BYTES)
    base = ops.load_one(offset(builder, bases, r, 4), 0)
    total = ops.load(total_at, 0)
    for v in range(2):
        x = ops.load(read, v * MOST_LANES)
        if shape.cap:
            x = capped(ops, builder, x, shape.head_dim**-0.5, shape.cap)
        exponent = ops.multiply_add(x, ops.all(scale), builder.fneg(base))
        power = ops.exp2_coarse(exponent)
        if masked:
            sees = _least(builder, seen, count, builder.add(row, r), shape)
            seen_lanes = _lanes_below(builder, builder.sub(sees, _number(v * MOST_LANES)))
            power = builder.select(seen_lanes, power, ops.all(0))
        total = builder.fadd(total, power)
        at = builder.add(offset(builder, weights, r, shape.weight_bytes), _number(32 * v))
        ops.put(power, at, bfloat16=True)
    ops.store(total, total_at, 0)


def _lanes_below(builder: ir.IRBuilder, count: Any) -> Any:
    numbers = ir.VectorType(_INT32, MOST_LANES)
    spread = builder.insert_element(
        ir.Constant(numbers, ir.Undefined), builder.trunc(count, _INT32), ir.Constant(_INT32, 0)
    )
    spread = builder.shuffle_vector(spread, spread, ir.Constant(numbers, [0] * MOST_LANES))
    return builder.icmp_signed("<", ir.Constant(numbers, list(range(MOST_LANES))), spread)


def _make_mix(shape: TileShape, mixed_at: Any) -> Any:
    """mix(base, row, rows, count): weights times values are added to what the rows have."""
    places, width, step = places_of(shape), shape.width, shape.step
    product, weight_bytes = make_tile_product(2, onto=True), shape.weight_bytes
    width_bytes = width * UNIT_BYTES

    @inner
    def mix(base: int, row: int, rows: int, count: int) -> None:
        units = -(-count // _TOKENS) * TILE_UNITS
        weights, mixed = base + places.weights, mixed_at(base, row)
        for d in range(0, width, step):
            values, into = base + places.values + UNIT_BYTES * d, mixed + UNIT_BYTES * d
            product(rows, weights, weight_bytes, values, width_bytes, units, into, width_bytes)

    return mix


def _make_rebase(shape: TileShape, results: tuple[Any, Any], score: Any) -> Any:
    """rebase(base, row, rows, seen, count): rows with too large sums measure from their largest
    score so far; others stay, so that a row's bits do not depend on its neighbours.
    """
    places, queries, width = places_of(shape), shape.queries, shape.width
    scale = np.float32(LOG2_E / math.sqrt(shape.head_dim))
    put, (mixed_at, states_at) = make_put(bfloat16=False), results
    cap_one = _make_cap_one(shape)

    @inner
    def move(base: int, row: int, r: int, top: float) -> None:
        state = floats(states_at(base, row) + r * STATE_BYTES)
        bases = floats(base + places.bases)
        if top > state[0]:
            factor = _power(bases[row + r] - top * scale)
            mixed = mixed_at(base, row) + r * width * 4
            sums = base + places.sums + (row + r) * SUM_BYTES
            put(mixed, factor, width, mixed)
            put(sums, factor, MOST_LANES, sums)
            state[0], bases[row + r] = top, top * scale

    @inner
    def rebase(base: int, row: int, rows: int, seen: int, count: int) -> None:
        found = base + places.tile_sums
        for r in range(rows):
            at = found + r * SUM_BYTES
            stays = np.float32(_all_below(at, 1))
            floats(at)[0] = np.float32(-np.inf)
            floats(at)[1] = stays
        for c in range(0, count, _TOKENS):
            score(base, row, rows, c)
            for r in range(rows):
                sees = min(count, seen + (row + r) // queries)
                scores, top = base + places.scores + r * _ROW_BYTES, floats(found + r * SUM_BYTES)
                largest = row_largest(scores, max(0, min(sees - c, _TOKENS)))
                top[0] = max(largest, top[0])
        for r in range(rows):
            top = floats(found + r * SUM_BYTES)
            if top[1] == 0:
                move(base, row, r, cap_one(top[0]))

    return rebase


@emitted(types.boolean, types.int64, types.int64)
def _all_below(builder: ir.IRBuilder, sums: Any, rows: Any) -> Any:
    """Whether sums are at most `_MOST`; those that are no numbers do not count."""
    ops = Lanes(builder, MOST_LANES)
    largest = cgutils.alloca_once_value(builder, ops.all(0))
    with cgutils.for_range(builder, rows) as loop:
        x = ops.load(offset(builder, sums, loop.index, SUM_BYTES), 0)
        builder.store(ops.larger(x, builder.load(largest)), largest)
    most = ir.Constant(ir.FloatType(), _MOST)
    return builder.fcmp_ordered("<=", ops.largest(builder.load(largest)), most)


@emitted(types.void, *[types.int64] * 3)
def _add(builder: ir.IRBuilder, into: Any, more: Any, size: Any) -> None:
    """`size` float32 numbers to others."""
    for ops, index in vectors_and_rest(builder, size):
        here, there = (offset(builder, at, index, 4) for at in (into, more))
        ops.store(builder.fadd(ops.load(here, 0), ops.load(there, 0)), here, 0)


@emitted(types.float32, types.int64)
def _sum_of(builder: ir.IRBuilder, at: Any) -> Any:
    ops = Lanes(builder, MOST_LANES)
    return ops.sum(ops.load(at, 0))


@inner
def _add_up(states: int, sums: int, rows: int) -> None:
    """States get the sums of their rows' weights."""
    for r in range(rows):
        floats(states + r * STATE_BYTES)[1] = _sum_of(sums + r * SUM_BYTES)


@emitted(types.float32, types.float32)
def _power(builder: ir.IRBuilder, x: Any) -> Any:
    """2^x of a number <= 0."""
    ops = Lanes(builder, MOST_LANES)
    return builder.extract_element(ops.exp2(ops.spread(x), MOST_EXACT), ir.Constant(_INT32, 0))


def _make_cap_one(shape: TileShape) -> Any:
    """cap_one(x): one score as `capped` has it."""

    @emitted(types.float32, types.float32)
    def cap_one(builder: ir.IRBuilder, x: Any) -> Any:
        if not shape.cap:
            return x
        ops = Lanes(builder, MOST_LANES)
        made = capped(ops, builder, ops.spread(x), shape.head_dim**-0.5, shape.cap)
        return builder.extract_element(made, ir.Constant(_INT32, 0))

    return cap_one


def _number(value: int) -> Any:
    return ir.Constant(_INT64, value)
