"""One strip of a product with quantized weights: a few encoded rows times a panel, compiled. See
`quantized_products` for what lies where.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils

from radixlm.kernels.bytes import (
    add_dots,
    dot_pairs,
    has_dots,
    most_paired,
    signed_bytes,
    sizes_and_signed,
    sum_pairs,
)
from radixlm.kernels.strips import VECTOR_LANES
from radixlm.kernels.vectors import Lanes, emitted, offset, prefetch_line
from radixlm.products.compiled import gate_product
from radixlm.products.panel_strips import rows_until
from radixlm.products.quantized_units import (
    LANES,
    UNIT,
    VECTORS,
    GroupPlace,
    StripKind,
    place_of,
    unit_codes,
)

LINE = 64
# A panel is fetched this far ahead of where it is read: memory gives 38 GB/s to a core of Zen 5
# with 8 KB, 30 with 2.
AHEAD_BYTES = 8192
_INT64 = ir.IntType(64)


def make_strip(kind: StripKind, height: int, *, unpacked: bool = False) -> Any:
    """strip(x, last, panel, ends, into, sizes): `height` encoded rows times a panel; those beyond
    the `last` one are that one again. sizes: bytes of an encoded row, inputs, groups, bytes from
    result to result. unpacked: with one more argument, where `make_unpack` has left the codes.
    """

    @emitted(types.void, *[types.int64] * (6 if unpacked else 5), types.UniTuple(types.int64, 4))
    def strip(builder: ir.IRBuilder, *values: Any) -> None:
        x, last, panel, ends, into, *codes, sizes = values
        row_bytes, inputs, groups, stride = (builder.extract_value(sizes, i) for i in range(4))
        rows = rows_until(builder, x, row_bytes, last, height)
        sums = _Sums(builder, kind, height)
        if kind.group:
            sums.add_groups(rows, panel, inputs, groups, *codes)
        else:
            sums.add_all(rows, panel, inputs, *codes)
        sums.finish(rows, ends, rows_until(builder, into, stride, last, height), inputs)

    return strip


class _Sums:
    """Code for one strip: sums of rows with a panel's lanes, as variables that become registers."""

    def __init__(self, builder: ir.IRBuilder, kind: StripKind, height: int) -> None:
        self._builder, self._kind, self._height = builder, kind, height
        self._ops = ops = Lanes(builder, VECTOR_LANES)
        self._counts = self._grid(ops.all_integer(0))
        self._sums = self._grid(ops.all(0))

    def _grid(self, value: Any) -> list[list[Any]]:
        make = functools.partial(cgutils.alloca_once_value, self._builder, value)
        return [[make() for _ in range(VECTORS)] for _ in range(self._height)]

    def add_all(self, rows: list[Any], panel: Any, inputs: Any, codes: Any = None) -> None:
        """One group: the sums stay integers until the end. codes: where they are unpacked."""
        for row, counts in zip(rows, self._counts, strict=True):
            total = self._ops.load_one(self._builder.add(row, inputs), 1)
            self._begin(counts, self._builder.bitcast(total, self._ops.integers))
        self._add_units(rows, (panel, panel, codes), inputs, ir.Constant(_INT64, 0))

    def add_groups(
        self, rows: list[Any], panel: Any, inputs: Any, groups: Any, codes: Any = None
    ) -> None:
        """Sums of integers, group by group, times both scales. codes: where they are unpacked."""
        b, kind, ops = self._builder, self._kind, self._ops
        with cgutils.for_range(b, groups) as loop:
            place = place_of(b, kind, panel, loop.index)
            first = b.mul(loop.index, ir.Constant(_INT64, kind.group))
            for row, counts in zip(rows, self._counts, strict=True):
                totals = offset(b, b.add(row, inputs), b.add(groups, loop.index), 4)
                total = ops.load_one(totals, 0)
                self._begin(counts, b.fptosi(total, ops.integers))
            ahead = offset(b, panel, loop.index, kind.block_bytes // kind.groups)
            size = ir.Constant(_INT64, kind.group)
            its = None if codes is None else offset(b, codes, first, LANES)
            self._add_units(rows, (place.units, ahead, its), size, first)
            group = GroupEnds(ops, b, kind, place)
            for row, counts, sums in zip(rows, self._counts, self._sums, strict=True):
                scale = offset(b, b.add(row, inputs), loop.index, 4)
                now, before = ([b.load(variable) for variable in each] for each in (counts, sums))
                made = group.added(now, before, scale, offset(b, scale, groups, 4))
                for variable, value in zip(sums, made, strict=True):
                    b.store(value, variable)

    def _begin(self, counts: Sequence[Any], total: Any) -> None:
        """total: the sum of a row's codes, of which centred codes leave out 128 times."""
        b, ops = self._builder, self._ops
        kind, left_out = self._kind, b.shl(total, ops.all_integer(7))
        starts_at_0 = not kind.is_centred or kind.taken_off != kind.zero
        for variable in counts:
            b.store(ops.all_integer(0) if starts_at_0 else left_out, variable)

    def _add_units(self, rows: list[Any], places: Sequence[Any], size: Any, first: Any) -> None:
        """Products of `size` inputs from the row's `first` on with the units at an address.

        places: that; where what belongs to these units begins, scales too: all is fetched; and
        where they are unpacked, if they are.
        """
        b, kind = self._builder, self._kind
        *packed, unpacked = places
        step, inputs = kind.units * kind.unit_bits // 8, ir.Constant(_INT64, UNIT * kind.units)
        turns = max(kind.group // UNIT // kind.units, 1)
        fetched = kind.block_bytes // kind.groups // turns if kind.group else step
        with cgutils.for_range(b, b.udiv(size, inputs)) as loop:
            at, ahead = (
                offset(b, place, loop.index, each)
                for place, each in zip(packed, (step, fetched), strict=True)
            )
            for line in range(0, fetched, LINE):
                prefetch_line(b, b.add(ahead, ir.Constant(_INT64, AHEAD_BYTES + line)))
            place = b.add(first, b.mul(loop.index, inputs))
            if unpacked is None:
                codes = list(unit_codes(self._ops, b, kind, at))
            else:
                here = offset(b, unpacked, loop.index, kind.units * UNIT * LANES)
                codes = list(unit_codes(self._ops, b, kind.unpacked, here))
            most = 0 if has_dots() else most_paired(kind.reach)
            for unit in range(0, len(codes), most or 1):
                some = codes[unit : unit + (most or 1)]
                for row, counts in zip(rows, self._counts, strict=True):
                    x = offset(b, b.add(row, place), ir.Constant(_INT64, unit), UNIT)
                    for v, variable in enumerate(counts):
                        add = self._with_pairs if most else self._with_dots
                        b.store(add(b.load(variable), [each[v] for each in some], x), variable)

    def _with_dots(self, total: Any, codes: Sequence[Any], x: Any) -> Any:
        b, ops = self._builder, self._ops
        return add_dots(ops, b, total, codes[0], b.bitcast(ops.load_one(x, 0), ops.integers))

    def _with_pairs(self, total: Any, codes: Sequence[Any], x: Any) -> Any:
        """Sums of two products stay in 16 bits as long as they fit."""
        b, ops, sums = self._builder, self._ops, None
        for unit, each in enumerate(codes):
            row = b.bitcast(ops.load_one(x, unit), ops.integers)
            if self._kind.is_centred:
                each, row = sizes_and_signed(ops, b, each, row)
            made = dot_pairs(b, each, row)
            sums = made if sums is None else b.add(sums, made)
        return b.add(total, sum_pairs(b, sums))

    def finish(self, rows: list[Any], ends: Any, results: list[Any], inputs: Any) -> None:
        b, ops, kind = self._builder, self._ops, self._kind
        for r, (row, into) in enumerate(zip(rows, results, strict=True)):
            if kind.group:
                made = [b.load(variable) for variable in self._sums[r]]
            else:
                counts = [b.load(variable) for variable in self._counts[r]]
                made = of_one_group(ops, b, kind, counts, b.add(row, inputs))
            put_row(ops, b, kind, made, ends, into)


def of_one_group(
    ops: Lanes, builder: ir.IRBuilder, kind: StripKind, counts: Sequence[Any], stats: Any
) -> list[Any]:
    """A row's sums, where a weight has one group, times the row's scale. stats: the address of the
    scale and of the sum of the row's codes.
    """
    scale = ops.load_one(stats, 0)
    total = builder.bitcast(ops.load_one(stats, 1), ops.integers)
    zeros = builder.mul(total, ops.all_integer(kind.taken_off))
    return [
        builder.fmul(builder.sitofp(builder.sub(count, zeros), ops.vector), scale)
        for count in counts
    ]


class GroupEnds:
    """A group's scales and offsets, loaded once for all rows: its products are multiplied by
    them.
    """

    def __init__(
        self, ops: Lanes, builder: ir.IRBuilder, kind: StripKind, place: GroupPlace
    ) -> None:
        self._ops, self._builder, self._kind = ops, builder, kind
        self._scales, self._offsets = (
            [self._loaded(place, part * LANES + v * VECTOR_LANES) for v in range(count)]
            for part, count in enumerate((VECTORS, VECTORS if kind.offsets else 0))
        )

    def _loaded(self, place: GroupPlace, number: int) -> Any:
        b, ops = self._builder, self._ops
        if not self._kind.block:
            return ops.load_halves(place.head, number)
        scales = signed_bytes(ops, b, place.head, number)
        return b.fmul(scales, ops.load_halves(place.steps, number))

    def added(
        self, counts: Sequence[Any], sums: Sequence[Any], scale: Any, total: Any
    ) -> list[Any]:
        """A row's sums with this group. scale, total: addresses of the row's own, float32."""
        b, ops = self._builder, self._ops
        scale, total, made = ops.load_one(scale, 0), ops.load_one(total, 0), []
        for v, (count, before) in enumerate(zip(counts, sums, strict=True)):
            part = b.sitofp(count, ops.vector)
            if self._kind.taken_off:
                part = ops.multiply_add(total, ops.all(-self._kind.taken_off), part)
            part = b.fmul(part, self._scales[v])
            if self._offsets:
                part = ops.multiply_add(total, self._offsets[v], part)
            made.append(ops.multiply_add(part, scale, before))
        return made


def put_row(
    ops: Lanes, builder: ir.IRBuilder, kind: StripKind, sums: Sequence[Any], ends: Any, into: Any
) -> None:
    """Write a row's results. ends: the address of a panel's factors and biases."""
    made = []
    for v, value in enumerate(sums):
        factor, bias = (ops.load(ends, part * LANES + v * VECTOR_LANES) for part in range(2))
        made.append(ops.multiply_add(value, factor, bias))
    if kind.gate:
        made = [gate_product(builder, ops, kind.gate, *made, coarse=kind.halves)]
    for v, value in enumerate(made):
        start = ir.Constant(_INT64, v * VECTOR_LANES * (2 if kind.halves else 4))
        ops.put(value, builder.add(into, start), bfloat16=kind.halves)
