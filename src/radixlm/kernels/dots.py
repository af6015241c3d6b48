"""Single tokens' products with keys and values, in float32 or in pairs of bfloat16; and the softmax
of a row of scores in two vector loops: its largest, then powers and their sum.

Sums are in the order that `strips` has: of a score over the numbers of a key, of a mixed value over
tokens. So a token's bits are the same whichever computes it.

scores   as many keys as a vector has lanes are turned in registers: a vector per unit
mix      where processors multiply pairs of bfloat16, numbers of two tokens' values are brought side
         by side in whatever order costs least, and put in order when a tile is complete:

         token t    a0 a1 a2 ..        a0 b0 a1 b1 ..   x   (weight of t, weight of t + 1)
         token t+1  b0 b1 b2 ..   ->
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Sequence
from itertools import product
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils

from radixlm.kernels.strips import VECTOR_LANES, turned
from radixlm.kernels.vectors import (
    LOG2_E,
    MOST_EXACT,
    MOST_LANES,
    Lanes,
    emitted,
    floats,
    has_bfloat16,
    inner,
    lanes_of,
    offset,
    order_of,
    prefetch_line,
)

_INT64, _INT32 = ir.IntType(64), ir.IntType(32)
# Numbers of a vector of pairs.
NUMBERS = 2 * MOST_LANES
_REGISTERS = 24
# Where numbers of two vectors go that are interleaved within each 128 bits: one instruction.
_LOW = tuple(
    half * NUMBERS + 8 * part + i for part in range(4) for i in range(4) for half in range(2)
)
_HIGH = tuple(place + 4 for place in _LOW)
# Sums of the two that result, back in the order of the numbers.
_ORDER = [
    half * MOST_LANES + 4 * part + i for part in range(4) for half in range(2) for i in range(4)
]
_AT_ONCE = 4


def has_pairs(head_dim: int, *, bfloat16: bool) -> bool:
    """Whether products are of pairs of bfloat16 numbers."""
    return bfloat16 and has_bfloat16() and head_dim % NUMBERS == 0


def make_scores(queries: int, head_dim: int, *, bfloat16: bool, pairs: bool) -> Any:
    """scores(q, pool, size, slots, into, stride, t, ahead): of each query with `VECTOR_LANES` keys.

    q: address of (queries, head_dim) float32, with `pairs` bfloat16; slots: of the keys' int32,
    size: bytes from slot to slot; into: of the first query's scores, the next one's `stride` x 4
    bytes on. t, ahead: tokens from t on of what is read next, see `attention.direct`.
    pairs: only where `has_pairs`.
    """
    units, per_unit = (head_dim // 2, 2) if pairs else (head_dim, 1)
    length = head_dim * (2 if bfloat16 else 4)

    @emitted(types.void, *[types.int64] * 7, types.UniTuple(types.int64, 3))
    def scores(builder: ir.IRBuilder, *given: Any) -> None:
        q, pool, size, slots, into, stride, t, ahead = given
        ops = Lanes(builder, VECTOR_LANES)
        keys = [value_at(builder, pool, size, slots, lane) for lane in range(VECTOR_LANES)]
        sums, fetched = [ops.all(0)] * queries, 0
        for unit, vector in _turned_units(ops, builder, keys, units, bfloat16, pairs):
            for i in range(queries):
                place = i * head_dim + per_unit * unit
                if pairs:
                    sums[i] = ops.multiply_add_pairs(ops.load_pair(q, place), vector, sums[i])
                else:
                    sums[i] = ops.multiply_add(ops.load_one(q, place), vector, sums[i])
            wanted = -(-(unit + 1) * VECTOR_LANES // units)
            for index in range(fetched, wanted):
                fetch_token_ahead(
                    builder, ahead, size, builder.add(t, ir.Constant(_INT64, index)), length=length
                )
            fetched = wanted
        for i, total in enumerate(sums):
            ops.store(total, offset(builder, into, stride, 4 * i), 0)

    return scores


def _turned_units(
    ops: Lanes, builder: ir.IRBuilder, keys: Sequence[Any], units: int, bfloat16: bool, pairs: bool
) -> Iterator[tuple[int, Any]]:
    """Each unit of these keys, one of each in a vector."""
    whole = units // VECTOR_LANES * VECTOR_LANES
    widened = bfloat16 and not pairs
    for first in range(0, whole, VECTOR_LANES):
        start = ir.Constant(_INT64, first * (2 if widened else 4))
        rows = [ops.load(builder.add(key, start), 0, bfloat16=widened) for key in keys]
        for index, vector in enumerate(turned(builder, rows)):
            yield first + index, builder.bitcast(vector, ops.pairs) if pairs else vector
    for unit in range(whole, units):
        vector = ops.all(0)
        for lane, key in enumerate(keys):
            one = Lanes(builder, 1).load(key, unit, bfloat16=bfloat16)
            number = builder.extract_element(one, ir.Constant(_INT32, 0))
            vector = builder.insert_element(vector, number, ir.Constant(_INT32, lane))
        yield unit, vector


def make_mix(queries: int, head_dim: int, tokens: int, *, bfloat16: bool) -> Any:
    """mix(out, values, weights, stride): out[i] += sum over t of weights[i * stride + t] values[t].

    out: address of (queries, head_dim) float32; values: addresses of `tokens` values.
    """
    addresses = types.UniTuple(types.int64, tokens)

    @emitted(types.void, types.int64, addresses, types.int64, types.int64)
    def mix(builder: ir.IRBuilder, out: Any, values: Any, weights: Any, stride: Any) -> None:
        ops = Lanes(builder, lanes_of(head_dim))
        at = [builder.extract_value(values, t) for t in range(tokens)]
        rows = [offset(builder, weights, stride, 4 * i) for i in range(queries)]
        factors = [[ops.load_one(row, t) for t in range(tokens)] for row in rows]
        for d in range(0, head_dim, ops.lanes):
            sums = [ops.load(out, i * head_dim + d) for i in range(queries)]
            for t in range(tokens):
                value = ops.load(at[t], d, bfloat16=bfloat16)
                sums = [ops.multiply_add(factors[i][t], value, sums[i]) for i in range(queries)]
            for i in range(queries):
                ops.store(sums[i], out, i * head_dim + d)

    return mix


def make_pair_mix(queries: int, head_dim: int) -> Any:
    """mix(out, values, size, slots, n, weights, stride, ahead): out[i] += the sum over t < n of
    weights[i][t] values[slots[t]], in an order of numbers that `put_in_order` undoes.

    out: address of (queries, head_dim) float32; size: bytes from slot to slot; slots: address of
    int32. Where n is odd there is one more slot, whose weight is 0. weights: address of rows of
    bfloat16, `stride` x 4 bytes apart; ahead: what is read next, see `attention.direct`.
    """
    at_once = max(1, _REGISTERS // (2 * queries)) * NUMBERS

    @emitted(types.void, *[types.int64] * 7, types.UniTuple(types.int64, 3))
    def mix(builder: ir.IRBuilder, *given: Any) -> None:
        out, values, size, slots, n, weights, stride, ahead = given
        ops = Lanes(builder, MOST_LANES)
        rows = [offset(builder, weights, stride, 4 * i) for i in range(queries)]
        begin, step = ir.Constant(_INT64, 0), ir.Constant(_INT64, 2)
        for first in range(0, head_dim, at_once):
            numbers = range(first, min(first + at_once, head_dim), NUMBERS)
            # Of each query and vector of numbers, the low and the high half of the pairs.
            keys = list(product(range(queries), numbers, enumerate((_LOW, _HIGH))))
            places = {key: key[0] * head_dim + key[1] + key[2][0] * MOST_LANES for key in keys}
            sums = {
                key: cgutils.alloca_once_value(builder, ops.load(out, places[key])) for key in keys
            }
            with cgutils.for_range_slice(builder, begin, n, step, _INT64) as (t, _):
                here = offset(builder, slots, t, 4)
                pair = [value_at(builder, values, size, here, index) for index in range(2)]
                for index in (t, builder.add(t, ir.Constant(_INT64, 1))):
                    fetch_token_ahead(builder, ahead, size, index, length=2 * head_dim)
                weight = [ops.load_pair(offset(builder, row, t, 2), 0) for row in rows]
                for d, half in product(numbers, enumerate((_LOW, _HIGH))):
                    vectors = [ops.load_pairs(address, d) for address in pair]
                    pairs = builder.shuffle_vector(*vectors, order_of(half[1]))
                    for i in range(queries):
                        total = sums[i, d, half]
                        made = ops.multiply_add_pairs(weight[i], pairs, builder.load(total))
                        builder.store(made, total)
            for key in keys:
                ops.store(builder.load(sums[key]), out, places[key])

    return mix


@emitted(types.void, types.int64, types.int64)
def put_in_order(builder: ir.IRBuilder, mixed: Any, size: Any) -> None:
    """Put the `size` numbers that `make_pair_mix` left in the order of values."""
    ops = Lanes(builder, MOST_LANES)
    step = ir.Constant(_INT64, NUMBERS)
    with cgutils.for_range_slice(builder, ir.Constant(_INT64, 0), size, step, _INT64) as (d, _):
        at = offset(builder, mixed, d, 4)
        low, high = (ops.load(at, part * MOST_LANES) for part in range(2))
        for part in range(2):
            order = _ORDER[part * MOST_LANES : (part + 1) * MOST_LANES]
            made = builder.shuffle_vector(low, high, order_of(order))
            ops.store(made, at, part * MOST_LANES)


def make_fetch_ahead(length: int) -> Any:
    """fetch_ahead(ahead, size, t): have `length` bytes of the token t that is ahead fetched, or of
    the last one. ahead: see `attention.direct`.
    """
    return emitted(types.void, types.UniTuple(types.int64, 3), types.int64, types.int64)(
        functools.partial(fetch_token_ahead, length=length)
    )


def fetch_token_ahead(builder: ir.IRBuilder, ahead: Any, size: Any, t: Any, *, length: int) -> None:
    """See `make_fetch_ahead`."""
    pool, slots, count = (builder.extract_value(ahead, index) for index in range(3))
    last = builder.sub(count, ir.Constant(_INT64, 1))
    place = builder.select(builder.icmp_signed("<", t, last), t, last)
    address = value_at(builder, pool, size, offset(builder, slots, place, 4), 0)
    for line in range(0, length, 64):
        prefetch_line(builder, builder.add(address, ir.Constant(_INT64, line)))


def value_at(builder: ir.IRBuilder, values: Any, size: Any, slots: Any, index: int) -> Any:
    """The address of the values in the slot that stands at slots + index."""
    at = builder.inttoptr(builder.add(slots, ir.Constant(_INT64, 4 * index)), _INT32.as_pointer())
    slot = builder.sext(builder.load(at), _INT64)
    return builder.add(values, builder.mul(slot, size))


@emitted(types.float32, types.int64, types.int64)
def row_largest(builder: ir.IRBuilder, row: Any, count: Any) -> Any:
    """The largest of `count` float32 at an address. -inf of none; NaN do not count."""
    ops = Lanes(builder, MOST_LANES)
    # Several at once: each waits for its own last one only.
    tops = [cgutils.alloca_once_value(builder, ops.all(-math.inf)) for _ in range(_AT_ONCE)]
    start, by = ir.Constant(_INT64, 0), _AT_ONCE * MOST_LANES
    many = builder.and_(count, ir.Constant(_INT64, -by))
    step = ir.Constant(_INT64, by)
    with cgutils.for_range_slice(builder, start, many, step, _INT64) as (index, _):
        for place, top in enumerate(tops):
            x = ops.load(offset(builder, row, index, 4), place * MOST_LANES)
            builder.store(ops.larger(x, builder.load(top)), top)
    for index, seen in _vectors(builder, many, count, count):
        x = ops.load(offset(builder, row, index, 4), 0)
        if seen is not None:
            x = builder.select(seen, x, ops.all(-math.inf))
        builder.store(ops.larger(x, builder.load(tops[0])), tops[0])
    largest = functools.reduce(ops.larger, [builder.load(top) for top in tops])
    return ops.largest(largest)


def make_row_weights(*, bfloat16: bool) -> Any:
    """row_weights(row, count, scale, top, weights, width): 2^(scale (x - top)), 0 from `count` to
    `width`, a whole number of vectors or `count` itself; returns their sum.

    No x is above the top. weights: an address, bfloat16 or float32, may be `row` then.
    """
    element, number = 2 if bfloat16 else 4, types.float32

    @emitted(number, types.int64, types.int64, number, number, types.int64, types.int64)
    def row_weights(
        builder: ir.IRBuilder, row: Any, count: Any, scale: Any, top: Any, weights: Any, width: Any
    ) -> Any:
        ops = Lanes(builder, MOST_LANES)
        scales, tops = ops.spread(scale), ops.spread(top)
        total = cgutils.alloca_once_value(builder, ops.all(0))
        for index, seen in _vectors(builder, ir.Constant(_INT64, 0), count, width):
            x = ops.load(offset(builder, row, index, 4), 0)
            # Not as one multiplication and addition: large scores would lose their differences.
            exponent = builder.fmul(builder.fsub(x, tops), scales)
            # Weights that are rounded to bfloat16 have an error of 4e-3 anyway.
            power = ops.exp2_coarse(exponent) if bfloat16 else ops.exp2(exponent, MOST_EXACT)
            if seen is not None:
                power = builder.select(seen, power, ops.all(0))
            builder.store(builder.fadd(builder.load(total), power), total)
            ops.put(power, offset(builder, weights, index, element), bfloat16=bfloat16)
        return ops.sum(builder.load(total))

    return row_weights


def capped(ops: Lanes, builder: ir.IRBuilder, x: Any, scale: float, cap: float) -> Any:
    """cap tanh(scale x / cap) / scale: scores that are scaled later, none of them above the cap. Of
    e^-2|y|, which never overflows; NaN stays NaN.
    """
    y = builder.fmul(x, ops.all(scale / cap))
    minus = builder.fsub(ops.all(0), y)
    least = builder.select(builder.fcmp_ordered("<", y, minus), y, minus)
    power = ops.exp(builder.fmul(least, ops.all(2)))
    size = builder.fdiv(builder.fsub(ops.all(1), power), builder.fadd(ops.all(1), power))
    below = builder.fcmp_ordered("<", y, ops.all(0))
    signed = builder.select(below, builder.fsub(ops.all(0), size), size)
    return builder.fmul(signed, ops.all(cap / scale))


def make_cap_row(scale: float, cap: float) -> Any:
    """cap_row(row, count): see `capped`, in place, of whole vectors. cap: 0: they stay."""

    @emitted(types.void, types.int64, types.int64)
    def cap_row(builder: ir.IRBuilder, row: Any, count: Any) -> None:
        if not cap:
            return
        ops = Lanes(builder, MOST_LANES)
        for index, _ in _vectors(builder, ir.Constant(_INT64, 0), count, count):
            here = offset(builder, row, index, 4)
            ops.store(capped(ops, builder, ops.load(here, 0), scale, cap), here, 0)

    return cap_row


def make_weigh(scale: float, *, bfloat16: bool, cap: float = 0.0) -> Any:
    """weigh(row, count, weights, width, state): scores become weights, see `make_row_weights`; of
    them the largest score and the weights' sum are written at `state`, two float32. scale: of
    scores, whose exponents are powers of e. cap: of scaled ones; 0: none.
    """
    row_weights, factor = make_row_weights(bfloat16=bfloat16), np.float32(LOG2_E * scale)
    cap_row = make_cap_row(scale, cap)

    @inner
    def weigh(row: int, count: int, weights: int, width: int, state: int) -> None:
        cap_row(row, count)
        top, made = row_largest(row, count), floats(state)
        made[0] = top
        made[1] = row_weights(row, count, factor, top, weights, width)

    return weigh


def _vectors(
    builder: ir.IRBuilder, start: Any, count: Any, width: Any
) -> Iterator[tuple[Any, Any]]:
    """Loops over a row from `start`, for the caller to fill: index of each vector's first number,
    and which of its numbers are among the first `count`, None when all are.
    """
    lanes = ir.Constant(_INT64, MOST_LANES)
    whole = builder.and_(count, ir.Constant(_INT64, -MOST_LANES))
    with cgutils.for_range_slice(builder, start, whole, lanes, _INT64) as (index, _):
        yield index, None
    numbered = ir.Constant(ir.VectorType(_INT32, MOST_LANES), list(range(MOST_LANES)))
    with cgutils.for_range_slice(builder, whole, width, lanes, _INT64) as (index, _):
        left = builder.trunc(builder.sub(count, index), _INT32)
        left = builder.bitcast(left, ir.FloatType())
        spread = Lanes(builder, MOST_LANES).spread(left)
        yield index, builder.icmp_signed("<", numbered, builder.bitcast(spread, numbered.type))
