"""Strips of products with weights in panels, compiled: a few rows times a panel, in vectors. See
`panel_products` for what lies where.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils

from radixlm.kernels.strips import UNIT_BYTES, VECTOR_LANES, Strip, widen_pairs
from radixlm.kernels.vectors import (
    Lanes,
    emitted,
    has_bfloat16,
    inner,
    offset,
    prefetch_line,
    processor_has,
)
from radixlm.products.compiled import GateKind, gate_product

# Sums of a strip, such that they stay in registers.
_SUMS = 24 if processor_has("avx512f") else 12
# The same of a strip of so few rows that memory is what it waits for. One row has them by meeting
# several panels at once: a sum waits for the product before it.
FEW_SUMS = 6
# As few rows do not pay for widening a panel.
LEAST_WIDENED = 8
# More rows wait for products, not for memory.
_MOST_FETCHING = 64
# A panel is fetched this far ahead of where it is read.
_AHEAD_BYTES = 2048
_INT64 = ir.IntType(64)


def widens_rows(*, pairs: bool) -> bool:
    """Whether rows are widened before they meet a panel: nothing multiplies its pairs."""
    return pairs and not has_bfloat16()


def make_vector_rows(vectors: int, *, pairs: bool, halves: bool, gate: GateKind | None) -> Any:
    """rows(args, begin, count, first, last, ahead, scratch): see `product_kernel`."""
    lanes, element, height = vectors * VECTOR_LANES, 2 if halves else 4, _SUMS // vectors
    columns, low = lanes // 2 if gate else lanes, FEW_SUMS // vectors
    bias_bytes = lanes * UNIT_BYTES
    make = functools.partial(_make_vector_strip, vectors, halves=halves, gate=gate)
    passes = _make_passes(height, low, lanes, functools.partial(make, pairs=pairs))
    wide = _make_passes(height, low, lanes, functools.partial(make, pairs=False), widened=True)
    one = make(1, panels=low, pairs=pairs)
    widens = widens_rows(pairs=pairs)

    @inner
    def rows(
        args: Any, begin: int, count: int, first: int, last: int, ahead: int, scratch: int
    ) -> None:
        units, x, x_stride = args.units, args.x + begin * args.x_stride, args.x_stride
        stride, panel_bytes = args.stride, units * lanes * UNIT_BYTES
        if widens:
            x, x_stride = scratch, 2 * units * UNIT_BYTES
        if count == 1:
            whole = min(last, args.outputs // columns)
            while first + low <= whole:
                weights, bias = args.panels + first * panel_bytes, args.bias + first * bias_bytes
                into = args.into + begin * stride + first * columns * element
                one(x, 0, 0, weights, units, bias, into, 0)
                first += low
        for panel in range(first, last):
            column = min(panel * columns, args.outputs - columns)
            weights, bias = args.panels + panel * panel_bytes, args.bias + panel * bias_bytes
            into = args.into + begin * stride + column * element
            later = weights + panel_bytes if panel + 1 < last else ahead
            if widens and count >= LEAST_WIDENED:
                place = scratch + args.height * x_stride
                widen_pairs(weights, units, lanes, place)
                wide(x, x_stride, count, place, 2 * units, bias, into, stride, later)
            else:
                passes(x, x_stride, count, weights, units, bias, into, stride, later)

    return rows


@inner
def halvings(count: int, height: int) -> int:
    """How often `count` is halved until it is at most `height`."""
    shift = 0
    while height << shift < count:
        shift += 1
    return shift


def _make_passes(
    height: int, low: int, lanes: int, make: Callable[..., Any], *, widened: bool = False
) -> Any:
    """passes(x, x_stride, count, panel, units, bias, into, stride, later): `count` rows, up to
    `height` at a time, times a panel. Of several passes each fetches its share of the `later`
    panel: memory would wait else for all but the first, which find theirs in the cache.

        panel 0   rows 0 to 7    fetches the first half of panel 1
                  rows 8 to 15           the second half

    widened: the panel is, and has twice as many units as the later one has.
    """
    tall, short = make(height), make(low)
    again, half = make(height, fetches=True), make(height // 2, fetches=True)

    @inner
    def passes(
        x: int,
        x_stride: int,
        count: int,
        panel: int,
        units: int,
        bias: int,
        into: int,
        stride: int,
        later: int,
    ) -> None:
        shift = halvings(count, height) + widened if height < count <= _MOST_FETCHING else 0
        share = (units >> shift) * lanes * UNIT_BYTES
        for row in range(0, count, height):
            at, to, beyond = x + row * x_stride, into + row * stride, count - 1 - row
            if beyond < low:
                short(at, x_stride, beyond, panel, units, bias, to, stride)
            elif shift == 0:
                tall(at, x_stride, beyond, panel, units, bias, to, stride)
            elif beyond < height // 2:
                half(at, x_stride, beyond, panel, units, bias, to, stride, later, shift)
            else:
                again(at, x_stride, beyond, panel, units, bias, to, stride, later, shift)
            later += share

    return passes


def widened_size(height: int, lanes: int, units: int) -> int:
    """Bytes of a thread's widened rows and panel."""
    return 2 * units * UNIT_BYTES * (height + lanes)


def _make_vector_strip(
    vectors: int,
    height: int,
    *,
    panels: int = 1,
    pairs: bool,
    halves: bool,
    gate: GateKind | None,
    fetches: bool = False,
) -> Any:
    """strip(x, x_stride, last, panel, units, bias, into, stride): `height` rows at x times some
    panels; rows beyond the `last` one are that one again, and leave the same result in the same
    place. fetches: part of a later panel, in 2 to the power of `shift` parts; see
    `_make_passes`.

    pairs: units are pairs of bfloat16 numbers; halves: results are bfloat16.
    """
    panel_row = vectors * VECTOR_LANES * UNIT_BYTES
    result_row = panel_row // (2 if halves else 1) // (2 if gate else 1)

    @emitted(types.void, *[types.int64] * (10 if fetches else 8))
    def strip(builder: ir.IRBuilder, *values: Any) -> None:
        def through(ops: Lanes, row: list[Any]) -> list[Any]:
            return [gate_product(builder, ops, gate, *row, coarse=halves)] if gate else row

        x, x_stride, last, panel, units, bias, into, stride, *later = values
        widened = widens_rows(pairs=pairs)
        make = functools.partial(Strip, pairs=pairs, lanes=VECTOR_LANES, widened=widened)
        sums = [make(builder, height, vectors) for _ in range(panels)]
        starts = [panel]
        for n, each in enumerate(sums):
            each.take_one(builder.add(bias, ir.Constant(_INT64, n * panel_row)))
            starts.append(offset(builder, starts[n], units, panel_row))
        x_rows = rows_until(builder, x, x_stride, last, height)
        with cgutils.for_range(builder, units) as loop:
            if fetches:
                ahead = offset(builder, later[0], builder.lshr(loop.index, later[1]), panel_row)
                for line in range(0, panel_row, 64):
                    prefetch_line(builder, builder.add(ahead, ir.Constant(_INT64, line)), 2)
            for start, _ in zip(starts, sums, strict=False):
                ahead = builder.add(start, ir.Constant(_INT64, _AHEAD_BYTES))
                ahead = offset(builder, ahead, loop.index, panel_row)
                for line in range(0, panel_row, 64):
                    prefetch_line(builder, builder.add(ahead, ir.Constant(_INT64, line)))
            for start, each in zip(starts, sums, strict=False):
                each.add(x_rows, start, ir.Constant(_INT64, panel_row), loop.index)
        rows = rows_until(builder, into, stride, last, height)
        for n, each in enumerate(sums):
            places = [builder.add(row, ir.Constant(_INT64, n * result_row)) for row in rows]
            each.store(places, bfloat16=halves, join=through)

    return strip


def rows_until(
    builder: ir.IRBuilder, address: Any, stride: Any, last: Any, count: int
) -> list[Any]:
    """The addresses of `count` rows; those beyond the `last` one are that one again."""
    made = []
    for row in range(count):
        number = ir.Constant(_INT64, row)
        place = builder.select(builder.icmp_signed("<", number, last), number, last)
        made.append(builder.add(address, builder.mul(stride, place)))
    return made
