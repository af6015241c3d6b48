"""Products of keys and values that are kept as signed bytes, codes, with 16 bits of queries and
weights, added up exactly in 32: so sums do not depend on their order.

scores   a unit is four codes, which are turned as one number and then widened to two pairs:

             c0 c1 c2 c3   ->   c0 c2  x  q0 q2,   c1 c3  x  q1 q3

mix      codes of two tokens' values are widened and brought side by side, as in `dots`
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils

from radixlm.kernels.bytes import has_byte_products
from radixlm.kernels.dots import fetch_token_ahead, value_at
from radixlm.kernels.strips import VECTOR_LANES, turned
from radixlm.kernels.vectors import (
    MOST_LANES,
    Lanes,
    call,
    emitted,
    offset,
    order_of,
    vectors_and_rest,
)

UNIT_CODES = 4
_PRODUCTS = {4: "sse2.pmadd.wd", 8: "avx2.pmadd.wd", 16: "avx512.pmaddw.d.512"}
_REGISTERS = 24 if VECTOR_LANES == MOST_LANES else 12
# Codes of the narrowest vector of pairs; and of the widest head whose sums fit 32 bits.
_LEAST_CODES, _MOST_CODES = 8, 512
_INT8, _INT16, _INT32, _INT64 = (ir.IntType(bits) for bits in (8, 16, 32, 64))


def has_code_dots(head_dim: int) -> bool:
    """Whether heads of this size are multiplied here."""
    return has_byte_products() and head_dim % _LEAST_CODES == 0 and head_dim <= _MOST_CODES


def units_of_codes(
    builder: ir.IRBuilder, lanes: int, rows: Sequence[Any], count: int
) -> Iterator[tuple[int, Any]]:
    """Each unit of these rows of `count` codes, an even number: a vector of int32, a lane for each
    row. The last unit may end in two zeros.
    """
    ops = Lanes(builder, lanes)
    whole = count // UNIT_CODES // lanes * lanes
    for first in range(0, whole, lanes):
        for index, vector in enumerate(turned(builder, [ops.load(row, first) for row in rows])):
            yield first + index, builder.bitcast(vector, ops.integers)
    for unit in range(whole, -(-count // UNIT_CODES)):
        kind = _INT32 if UNIT_CODES * (unit + 1) <= count else _INT16
        vector = ir.Constant(ops.integers, ir.Undefined)
        for lane, row in enumerate(rows):
            at = builder.add(row, ir.Constant(_INT64, UNIT_CODES * unit))
            codes = builder.load(builder.inttoptr(at, kind.as_pointer()))
            codes.align = 1
            codes = codes if kind is _INT32 else builder.zext(codes, _INT32)
            vector = builder.insert_element(vector, codes, ir.Constant(_INT32, lane))
        yield unit, vector


def make_code_scores(queries: int, head_dim: int) -> Any:
    """scores(q, pool, size, slots, into, stride, t, ahead): as `dots.make_scores`, sums of int32.
    q: address of (queries, head_dim) int16, as `turn_codes` leaves them.
    """

    @emitted(types.void, *[types.int64] * 7, types.UniTuple(types.int64, 3))
    def scores(builder: ir.IRBuilder, *given: Any) -> None:
        q, pool, size, slots, into, stride, t, ahead = given
        ops = Lanes(builder, VECTOR_LANES)
        keys = [value_at(builder, pool, size, slots, lane) for lane in range(VECTOR_LANES)]
        sums, fetched, units = [ops.all_integer(0)] * queries, 0, head_dim // UNIT_CODES
        for unit, codes in units_of_codes(builder, VECTOR_LANES, keys, head_dim):
            for half, pairs in enumerate(_pairs_of_unit(builder, codes)):
                for i in range(queries):
                    pair = ops.load_one(q, (i * head_dim + UNIT_CODES * unit) // 2 + half)
                    sums[i] = _add_products(builder, sums[i], pair, pairs)
            wanted = -(-(unit + 1) * VECTOR_LANES // units)
            for index in range(fetched, wanted):
                token = builder.add(t, ir.Constant(_INT64, index))
                fetch_token_ahead(builder, ahead, size, token, length=head_dim)
            fetched = wanted
        for i, total in enumerate(sums):
            ops.store(total, offset(builder, into, stride, 4 * i), 0)

    return scores


def _pairs_of_unit(builder: ir.IRBuilder, codes: Any) -> tuple[Any, Any]:
    """The first and third code of each unit, and the second and fourth, in 16 bits each."""
    kind = ir.VectorType(_INT16, 2 * codes.type.count)
    eight = ir.Constant(kind, [8] * kind.count)
    odd = builder.bitcast(codes, kind)
    return builder.ashr(builder.shl(odd, eight), eight), builder.ashr(odd, eight)


def _add_products(builder: ir.IRBuilder, total: Any, x: Any, y: Any) -> Any:
    """Both products of pairs in 16 bits and a vector of int32, by lane."""
    kind = ir.VectorType(_INT16, 2 * total.type.count)
    operands = [builder.bitcast(each, kind) for each in (x, y)]
    name = f"llvm.x86.{_PRODUCTS[total.type.count]}"
    return builder.add(total, call(builder, name, total.type, operands))


@emitted(types.void, types.int64, types.int64)
def turn_codes(builder: ir.IRBuilder, codes: Any, size: Any) -> None:
    """The second and third of each four numbers in 16 bits change places."""
    kind, step = ir.VectorType(_INT16, UNIT_CODES), ir.Constant(_INT64, UNIT_CODES)
    with cgutils.for_range_slice(builder, ir.Constant(_INT64, 0), size, step, _INT64) as (at, _):
        here = builder.inttoptr(offset(builder, codes, at, 2), kind.as_pointer())
        found = builder.load(here)
        found.align = 2
        made = builder.shuffle_vector(found, found, order_of((0, 2, 1, 3)))
        builder.store(made, here).align = 2


def make_code_mix(queries: int, head_dim: int) -> Any:
    """mix(out, values, size, slots, n, weights, stride, ahead): as `dots.make_pair_mix`, of weights
    in 16 bits; sums of int32, in an order that `make_unscale` undoes.
    """
    at_once = max(1, _REGISTERS // (2 * queries))
    chunks = _chunks(head_dim)

    @emitted(types.void, *[types.int64] * 7, types.UniTuple(types.int64, 3))
    def mix(builder: ir.IRBuilder, *given: Any) -> None:
        out, values, size, slots, n, weights, stride, ahead = given
        rows = [offset(builder, weights, stride, 4 * i) for i in range(queries)]
        begin, step = ir.Constant(_INT64, 0), ir.Constant(_INT64, 2)
        for first in range(0, len(chunks), at_once):
            # Of each query and vector of codes, the low and the high half of the pairs.
            keys = list(product(range(queries), chunks[first : first + at_once], range(2)))
            places = {(i, c, half): i * head_dim + c[0] + half * c[1] for i, c, half in keys}
            sums = {
                key: cgutils.alloca_once_value(
                    builder, Lanes(builder, key[1][1]).load_integers(out, places[key])
                )
                for key in keys
            }
            with cgutils.for_range_slice(builder, begin, n, step, _INT64) as (t, _):
                here = offset(builder, slots, t, 4)
                pair = [value_at(builder, values, size, here, index) for index in range(2)]
                for index in (t, builder.add(t, ir.Constant(_INT64, 1))):
                    fetch_token_ahead(builder, ahead, size, index, length=head_dim)
                at = [offset(builder, row, t, 2) for row in rows]
                for chunk in chunks[first : first + at_once]:
                    for half, pairs in enumerate(_side_by_side(builder, pair, *chunk)):
                        for i in range(queries):
                            total = sums[i, chunk, half]
                            weight = Lanes(builder, chunk[1]).load_one(at[i], 0)
                            made = _add_products(builder, builder.load(total), weight, pairs)
                            builder.store(made, total)
            for key in keys:
                Lanes(builder, key[1][1]).store(builder.load(sums[key]), out, places[key])

    return mix


def _chunks(head_dim: int) -> list[tuple[int, int]]:
    """Vectors of a head: the first code, and half of how many."""
    chunks, start = [], 0
    while start < head_dim:
        lanes = VECTOR_LANES
        while start + 2 * lanes > head_dim:
            lanes //= 2
        chunks.append((start, lanes))
        start += 2 * lanes
    return chunks


def _side_by_side(
    builder: ir.IRBuilder, tokens: Sequence[Any], start: int, lanes: int
) -> Iterator[Any]:
    """Codes of two tokens in 16 bits, interleaved within each 128: an instruction for each half."""
    wide = []
    for token in tokens:
        at = builder.add(token, ir.Constant(_INT64, start))
        codes = builder.load(builder.inttoptr(at, ir.VectorType(_INT8, 2 * lanes).as_pointer()))
        codes.align = 1
        wide.append(builder.sext(codes, ir.VectorType(_INT16, 2 * lanes)))
    for half in range(2):
        order = [
            token * 2 * lanes + 8 * part + 4 * half + i
            for part, i, token in product(range(lanes // 4), range(4), range(2))
        ]
        yield builder.shuffle_vector(*wide, order_of(order))


def make_unscale(head_dim: int) -> Any:
    """unscale(sums, factor): what `make_code_mix` left of one query, as float32 numbers of a value,
    times a factor, in place.
    """

    @emitted(types.void, types.int64, types.float32)
    def unscale(builder: ir.IRBuilder, sums: Any, factor: Any) -> None:
        for start, lanes in _chunks(head_dim):
            ops = Lanes(builder, lanes)
            halves = [ops.load_integers(sums, start + half * lanes) for half in range(2)]
            order = [
                half * lanes + 4 * part + i
                for part, half, i in product(range(lanes // 4), range(2), range(4))
            ]
            for half in range(2):
                place = order_of(order[half * lanes : (half + 1) * lanes])
                number = builder.sitofp(builder.shuffle_vector(*halves, place), ops.vector)
                made = builder.fmul(number, ops.spread(factor))
                ops.store(made, sums, start + half * lanes)

    return unscale


@emitted(types.void, *[types.int64] * 3, types.float32)
def scale_scores(builder: ir.IRBuilder, row: Any, scales: Any, count: Any, factor: Any) -> None:
    """`count` int32 become float32 in place, times a scale each and a factor."""
    for ops, index in vectors_and_rest(builder, count):
        at = offset(builder, row, index, 4)
        scale = builder.fmul(ops.load(offset(builder, scales, index, 4), 0), ops.spread(factor))
        ops.store(builder.fmul(builder.sitofp(ops.load_integers(at, 0), ops.vector), scale), at, 0)


@emitted(types.void, *[types.int64] * 3)
def scale_weights(builder: ir.IRBuilder, row: Any, scales: Any, count: Any) -> None:
    """`count` float32 times a scale each, in place."""
    for ops, index in vectors_and_rest(builder, count):
        at = offset(builder, row, index, 4)
        ops.store(
            builder.fmul(ops.load(at, 0), ops.load(offset(builder, scales, index, 4), 0)), at, 0
        )
