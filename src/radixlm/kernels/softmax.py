"""Softmax of one row of scores in two vector loops: its largest, then powers and their sum."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils

from radixlm.kernels.vectors import MOST_EXACT, MOST_LANES, Lanes, emitted, offset

_INT64, _INT32 = ir.IntType(64), ir.IntType(32)
# Error 4e-5: weights that are rounded to bfloat16 have one of 4e-3.
_DEGREE_FOR_BFLOAT16 = 4
_AT_ONCE = 4


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
    degree = _DEGREE_FOR_BFLOAT16 if bfloat16 else MOST_EXACT
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
            power = ops.exp2(builder.fmul(builder.fsub(x, tops), scales), degree)
            if seen is not None:
                power = builder.select(seen, power, ops.all(0))
            builder.store(builder.fadd(builder.load(total), power), total)
            ops.put(power, offset(builder, weights, index, element), bfloat16=bfloat16)
        return ops.sum(builder.load(total))

    return row_weights


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
