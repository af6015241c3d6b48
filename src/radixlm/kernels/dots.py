"""Single tokens' products with keys and values, in float32 or in pairs of bfloat16.

Where processors multiply pairs of bfloat16:

scores   64 numbers of a key and of a query are 2 vectors of 16 pairs: nothing is widened
mix      numbers of two tokens' values are brought side by side, in whatever order costs least,
         and put in order once, when the sums of a tile are complete:

         token t    a0 a1 a2 ..        a0 b0 a1 b1 ..   x   (weight of t, weight of t + 1)
         token t+1  b0 b1 b2 ..   ->
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils

from radixlm.kernels.vectors import (
    MOST_LANES,
    Lanes,
    emitted,
    has_bfloat16,
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
_LOW = [half * NUMBERS + 8 * part + i for part in range(4) for i in range(4) for half in range(2)]
_HIGH = [place + 4 for place in _LOW]
# Sums of the two that result, back in the order of the numbers.
_ORDER = [
    half * MOST_LANES + 4 * part + i for part in range(4) for half in range(2) for i in range(4)
]


def has_pairs(head_dim: int, *, bfloat16: bool) -> bool:
    """Whether products are of pairs of bfloat16 numbers."""
    return bfloat16 and has_bfloat16() and head_dim % NUMBERS == 0


def make_dots(queries: int, head_dim: int, tokens: int, *, bfloat16: bool, pairs: bool) -> Any:
    """dots(q, keys, scores, stride): scores[i * stride + t] = q[i] . keys[t].

    q: address of (queries, head_dim) float32, with `pairs` bfloat16; keys: addresses of `tokens`
    keys. pairs: only where `has_pairs`.
    """
    addresses = types.UniTuple(types.int64, tokens)

    @emitted(types.void, types.int64, addresses, types.int64, types.int64)
    def dots(builder: ir.IRBuilder, q: Any, keys: Any, scores: Any, stride: Any) -> None:
        ops = Lanes(builder, lanes_of(head_dim))
        at = [builder.extract_value(keys, t) for t in range(tokens)]
        sums = [[ops.all(0)] * tokens for _ in range(queries)]
        product = ops.multiply_add_pairs if pairs else ops.multiply_add
        for d in range(0, head_dim, NUMBERS if pairs else ops.lanes):
            if pairs:
                part = [ops.load_pairs(q, i * head_dim + d) for i in range(queries)]
                key = [ops.load_pairs(address, d) for address in at]
            else:
                part = [ops.load(q, i * head_dim + d) for i in range(queries)]
                key = [ops.load(address, d, bfloat16=bfloat16) for address in at]
            for t in range(tokens):
                for i in range(queries):
                    sums[i][t] = product(part[i], key[t], sums[i][t])
        for i in range(queries):
            row = offset(builder, scores, stride, 4 * i)
            if tokens <= ops.lanes:
                ops.store(ops.sums(sums[i]), row, 0)
            else:
                for t in range(tokens):
                    ops.store(ops.sum(sums[i][t]), row, t)

    return dots


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
    weights[i][t] values[slots[t]].

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
            mixed = _Mixed(ops, builder, queries, numbers)
            with cgutils.for_range_slice(builder, begin, n, step, _INT64) as (t, _):
                here = offset(builder, slots, t, 4)
                pair = [_value(builder, values, size, here, index) for index in range(2)]
                _fetch_ahead(builder, ahead, size, t, 2 * head_dim)
                weight = [ops.load_pair(offset(builder, row, t, 2)) for row in rows]
                mixed.add(weight, *pair)
            mixed.add_to(out, head_dim)

    return mix


class _Mixed:
    """Sums of some numbers of the values, of each query, as variables that become registers."""

    def __init__(self, ops: Lanes, builder: ir.IRBuilder, queries: int, numbers: range) -> None:
        self._ops = ops
        self._builder = builder
        self._numbers = numbers
        # Of each query and vector of numbers, the low and the high half of the pairs.
        self._sums = [
            [[cgutils.alloca_once(builder, ops.vector) for _ in range(2)] for _ in numbers]
            for _ in range(queries)
        ]
        for sums in self._sums:
            for place in sums:
                for half in place:
                    builder.store(ops.all(0), half)

    def add(self, weights: Sequence[Any], one: Any, other: Any) -> None:
        """The values at two addresses, times a pair of weights for each query."""
        b = self._builder
        for place, d in enumerate(self._numbers):
            vectors = [self._ops.load_pairs(address, d) for address in (one, other)]
            for half, order in enumerate((_LOW, _HIGH)):
                pairs = b.shuffle_vector(*vectors, order_of(order))
                for weight, sums in zip(weights, self._sums, strict=True):
                    total = b.load(sums[place][half])
                    made = self._ops.multiply_add_pairs(weight, pairs, total)
                    b.store(made, sums[place][half])

    def add_to(self, out: Any, head_dim: int) -> None:
        """Onto (queries, head_dim) float32 at an address."""
        b = self._builder
        for i, sums in enumerate(self._sums):
            for place, d in enumerate(self._numbers):
                low, high = (b.load(half) for half in sums[place])
                for part in range(2):
                    order = _ORDER[part * MOST_LANES : (part + 1) * MOST_LANES]
                    at = i * head_dim + d + part * MOST_LANES
                    made = b.shuffle_vector(low, high, order_of(order))
                    self._ops.store(b.fadd(made, self._ops.load(out, at)), out, at)


def _fetch_ahead(builder: ir.IRBuilder, ahead: Any, size: Any, t: Any, length: int) -> None:
    """Have `length` bytes of tokens t and t + 1 that are ahead fetched, or of the last one."""
    pool, slots, count = (builder.extract_value(ahead, index) for index in range(3))
    last = builder.sub(count, ir.Constant(_INT64, 1))
    for index in range(2):
        place = builder.add(t, ir.Constant(_INT64, index))
        place = builder.select(builder.icmp_signed("<", place, last), place, last)
        address = _value(builder, pool, size, offset(builder, slots, place, 4), 0)
        for line in range(0, length, 64):
            prefetch_line(builder, builder.add(address, ir.Constant(_INT64, line)))


def _value(builder: ir.IRBuilder, values: Any, size: Any, slots: Any, index: int) -> Any:
    """The address of the values in the slot that stands at slots + index."""
    at = builder.inttoptr(builder.add(slots, ir.Constant(_INT64, 4 * index)), _INT32.as_pointer())
    slot = builder.sext(builder.load(at), _INT64)
    return builder.add(values, builder.mul(slot, size))
