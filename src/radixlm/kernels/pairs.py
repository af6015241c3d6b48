"""Single tokens' products in pairs of bfloat16, for processors that multiply pairs.

scores   64 numbers of a key and of a query are 2 vectors of 16 pairs: nothing is widened
mix      numbers of two tokens' values are brought side by side, in whatever order costs least,
         and put in order once, when the sums of a tile are complete:

         token t    a0 a1 a2 ..        a0 b0 a1 b1 ..   x   (weight of t, weight of t + 1)
         token t+1  b0 b1 b2 ..   ->
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from radixlm.kernels.vectors import MOST_LANES, Lanes, order_of, prefetch_line

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


def make_pair_dots(queries: int, head_dim: int, tokens: int) -> Callable[..., Any]:
    """dots(q, keys, scores, stride): scores[i * stride + t] = q[i] . keys[t].

    q: address of (queries, head_dim) bfloat16; keys: addresses of `tokens` keys, 1 or 4.
    """
    addresses = types.UniTuple(types.int64, tokens)

    @intrinsic  # type: ignore[untyped-decorator]
    def dots(_context: Any, _q: Any, _keys: Any, _scores: Any, _stride: Any) -> Any:
        def build(target: Any, builder: ir.IRBuilder, _signature: Any, args: Sequence[Any]) -> Any:
            q, keys, scores, stride = args
            ops = Lanes(builder, MOST_LANES)
            at = [builder.extract_value(keys, t) for t in range(tokens)]
            sums = [[ops.all(0)] * tokens for _ in range(queries)]
            for d in range(0, head_dim, NUMBERS):
                key = [ops.load_pairs(address, d) for address in at]
                for i in range(queries):
                    part = ops.load_pairs(q, i * head_dim + d)
                    sums[i] = [
                        ops.multiply_add_pairs(part, key[t], sums[i][t]) for t in range(tokens)
                    ]
            for i in range(queries):
                ops.store(ops.sums(sums[i]), ops.moved(scores, stride, i), 0)
            return target.get_dummy_value()

        return types.void(types.int64, addresses, types.int64, types.int64), build

    return dots  # type: ignore[no-any-return]


def make_pair_mix(queries: int, head_dim: int) -> Callable[..., Any]:
    """mix(weights, stride, values, size, slots, n, out, ahead): out[i] += the sum over t < n of
    weights[i][t] values[slots[t]].

    weights: address of rows of bfloat16, `stride` x 4 bytes apart; slots: address of int32. Where n
    is odd there is one more slot, whose weight is 0. size: bytes from slot to slot; out: address of
    (queries, head_dim) float32; ahead: as in `direct_tiles`.
    """
    at_once = max(1, _REGISTERS // (2 * queries)) * NUMBERS

    @intrinsic  # type: ignore[untyped-decorator]
    def mix(
        _context: Any,
        _weights: Any,
        _stride: Any,
        _values: Any,
        _size: Any,
        _slots: Any,
        _n: Any,
        _out: Any,
        _ahead: Any,
    ) -> Any:
        def build(target: Any, builder: ir.IRBuilder, _signature: Any, args: Sequence[Any]) -> Any:
            weights, stride, values, size, slots, n, out, ahead = args
            ops = Lanes(builder, MOST_LANES)
            rows = [ops.moved(weights, stride, i) for i in range(queries)]
            for first in range(0, head_dim, at_once):
                mixed = _Mixed(
                    ops, builder, queries, range(first, min(first + at_once, head_dim), NUMBERS)
                )
                begin, step = ir.Constant(_INT64, 0), ir.Constant(_INT64, 2)
                with cgutils.for_range_slice(builder, begin, n, step, _INT64) as (t, _):
                    here = builder.add(slots, builder.mul(t, ir.Constant(_INT64, 4)))
                    pair = [_value(builder, values, size, here, index) for index in range(2)]
                    _fetch_ahead(builder, ahead, size, t, 2 * head_dim)
                    offset = builder.mul(t, ir.Constant(_INT64, 2))
                    mixed.add([ops.load_pair(builder.add(row, offset)) for row in rows], *pair)
                mixed.add_to(out, head_dim)
            return target.get_dummy_value()

        return types.void(*[types.int64] * 7, types.UniTuple(types.int64, 3)), build

    return mix  # type: ignore[no-any-return]


class _Mixed:
    """Sums of some numbers of the values, of each query, as variables that become registers."""

    def __init__(self, ops: Lanes, builder: ir.IRBuilder, queries: int, numbers: range) -> None:
        self._ops = ops
        self._builder = builder
        self._numbers = numbers
        self._sums = [
            [[cgutils.alloca_once(builder, ops.vector) for _ in range(2)] for _ in numbers]
            for _ in range(queries)
        ]
        for half in self._halves():
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

    def _halves(self) -> list[Any]:
        return [half for sums in self._sums for place in sums for half in place]


def _fetch_ahead(builder: ir.IRBuilder, ahead: Any, size: Any, t: Any, length: int) -> None:
    """Have `length` bytes of tokens t and t + 1 that are ahead fetched, or of the last one."""
    pool, slots, count = (builder.extract_value(ahead, index) for index in range(3))
    last = builder.sub(count, ir.Constant(_INT64, 1))
    for index in range(2):
        place = builder.add(t, ir.Constant(_INT64, index))
        place = builder.select(builder.icmp_signed("<", place, last), place, last)
        at = builder.add(slots, builder.mul(place, ir.Constant(_INT64, 4)))
        address = _value(builder, pool, size, at, 0)
        for line in range(0, length, 64):
            prefetch_line(builder, builder.add(address, ir.Constant(_INT64, line)))


def _value(builder: ir.IRBuilder, values: Any, size: Any, slots: Any, index: int) -> Any:
    """The address of the values in the slot that stands at slots + index."""
    at = builder.inttoptr(builder.add(slots, ir.Constant(_INT64, 4 * index)), _INT32.as_pointer())
    slot = builder.sext(builder.load(at), _INT64)
    return builder.add(values, builder.mul(slot, size))
