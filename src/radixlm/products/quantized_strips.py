"""One strip of a product with quantized weights: a few encoded rows times a panel, compiled. See
`quantized_products` for what lies where.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

from llvmlite import ir
from numba import types
from numba.core import cgutils

from radixlm.kernels.bytes import (
    add_dots,
    are_centred,
    dot_pairs,
    halves_of_bytes,
    has_dots,
    sum_pairs,
)
from radixlm.kernels.strips import VECTOR_LANES
from radixlm.kernels.vectors import Lanes, emitted, offset, prefetch_line
from radixlm.products.compiled import GateKind, gate_product
from radixlm.products.panel_products import rows_until
from radixlm.products.quantized import Numbers

VECTORS = 2
LANES = VECTORS * VECTOR_LANES
UNIT = 4  # inputs
LINE = 64
AHEAD_BYTES = 2048
# Units of 4 bits whose sums of two products each fit 16: 8 x 2 x 15 x 127.
_PAIRED_UNITS = 8
_INT64 = ir.IntType(64)


class StripKind(NamedTuple):
    """The kind of product that a kernel is compiled for. group: inputs that share a scale, 0: all.
    zero: the code of 0. bfloat16, halves: rows and results are. gate: see `Linear`.
    """

    bits: int
    group: int
    offsets: bool
    numbers: Numbers
    zero: int
    bfloat16: bool
    halves: bool
    gate: GateKind | None

    @property
    def units_bytes(self) -> int:
        """The bytes of a group's codes in a panel. 0: of a group of all inputs."""
        return self.group // UNIT * LANES * UNIT * self.bits // 8

    @property
    def head_bytes(self) -> int:
        """The bytes of a group's scales and offsets."""
        return (1 + self.offsets) * self.scale_bytes * LANES if self.group else 0

    @property
    def scale_bytes(self) -> int:
        """float16 in groups, where formats have few bits of them; else they stay as they are."""
        return 2 if self.numbers in ("int", "e2m1") else 4


def make_strip(kind: StripKind, height: int) -> Any:
    """strip(x, last, panel, ends, into, sizes): `height` encoded rows times a panel; those beyond
    the `last` one are that one again. sizes: bytes of an encoded row, inputs, groups, bytes from
    result to result.
    """

    @emitted(types.void, *[types.int64] * 5, types.UniTuple(types.int64, 4))
    def strip(builder: ir.IRBuilder, *values: Any) -> None:
        x, last, panel, ends, into, sizes = values
        row_bytes, inputs, groups, stride = (builder.extract_value(sizes, i) for i in range(4))
        rows = rows_until(builder, x, row_bytes, last, height)
        sums = _Sums(builder, kind, height)
        if kind.group:
            sums.add_groups(rows, panel, inputs, groups)
        else:
            sums.add_all(rows, panel, inputs)
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

    def add_all(self, rows: list[Any], panel: Any, inputs: Any) -> None:
        """One group: the sums stay integers until the end."""
        for row, counts in zip(rows, self._counts, strict=True):
            total = self._ops.load_one(self._builder.add(row, inputs), 1)
            self._begin(counts, self._builder.bitcast(total, self._ops.integers))
        self._add_units(rows, panel, inputs, ir.Constant(_INT64, 0))

    def add_groups(self, rows: list[Any], panel: Any, inputs: Any, groups: Any) -> None:
        b, kind, ops = self._builder, self._kind, self._ops
        group_bytes = kind.head_bytes + kind.units_bytes
        with cgutils.for_range(b, groups) as loop:
            here = offset(b, panel, loop.index, group_bytes)
            first = b.mul(loop.index, ir.Constant(_INT64, kind.group))
            units = b.add(here, ir.Constant(_INT64, kind.head_bytes))
            for row, counts in zip(rows, self._counts, strict=True):
                totals = offset(b, b.add(row, inputs), b.add(groups, loop.index), 4)
                total = ops.load_one(totals, 0)
                self._begin(counts, b.fptosi(total, ops.integers))
            if kind.bits == 4 and kind.group % (_PAIRED_UNITS * UNIT) == 0 and not has_dots():
                self._add_pairs(rows, units, first)
            else:
                self._add_units(rows, units, ir.Constant(_INT64, kind.group), first)
            group = GroupEnds(ops, b, kind, here)
            for row, counts, sums in zip(rows, self._counts, self._sums, strict=True):
                scale = offset(b, b.add(row, inputs), loop.index, 4)
                now, before = ([b.load(variable) for variable in each] for each in (counts, sums))
                made = group.added(now, before, scale, offset(b, scale, groups, 4))
                for variable, value in zip(sums, made, strict=True):
                    b.store(value, variable)

    def _begin(self, counts: Sequence[Any], total: Any) -> None:
        """total: the sum of a row's codes, of which centred codes leave out 128 times."""
        b, ops = self._builder, self._ops
        left_out = b.shl(total, ops.all_integer(7))
        for variable in counts:
            b.store(left_out if are_centred(self._kind.bits) else ops.all_integer(0), variable)

    def _add_pairs(self, rows: list[Any], units: Any, first: Any) -> None:
        """`_add_units` of a group of 4 bits: sums of two products stay in 16 bits as long as they
        fit.
        """
        b, ops, step = self._builder, self._ops, LANES * UNIT
        per_turn = _PAIRED_UNITS * UNIT
        turns = ir.Constant(_INT64, self._kind.group // per_turn)
        with cgutils.for_range(b, turns) as loop:
            at = offset(b, units, loop.index, _PAIRED_UNITS // 2 * step)
            place = b.add(first, b.mul(loop.index, ir.Constant(_INT64, per_turn)))
            sums: dict[tuple[int, int], Any] = {}
            for pair in range(_PAIRED_UNITS // 2):
                here = b.add(at, ir.Constant(_INT64, pair * step))
                for line in range(0, step, LINE):
                    prefetch_line(b, b.add(here, ir.Constant(_INT64, AHEAD_BYTES + line)))
                packed = [ops.load_integers(here, v * VECTOR_LANES) for v in range(VECTORS)]
                parts = [halves_of_bytes(ops, b, each) for each in packed]
                for r, row in enumerate(rows):
                    x_at = b.add(row, place)
                    for number in range(2):
                        x = b.bitcast(ops.load_one(x_at, 2 * pair + number), ops.integers)
                        for v in range(VECTORS):
                            made = dot_pairs(b, parts[v][number], x)
                            before = sums.get((r, v))
                            sums[r, v] = made if before is None else b.add(before, made)
            for (r, v), made in sums.items():
                variable = self._counts[r][v]
                b.store(b.add(b.load(variable), sum_pairs(b, made)), variable)

    def _add_units(self, rows: list[Any], units: Any, size: Any, first: Any) -> None:
        """Products of `size` inputs from the row's `first` on with the units at an address."""
        b, ops, kind = self._builder, self._ops, self._kind
        per_step = 2 if kind.bits == 4 else 1
        step = LANES * UNIT
        with cgutils.for_range(b, b.udiv(size, ir.Constant(_INT64, UNIT * per_step))) as loop:
            at = offset(b, units, loop.index, step)
            for line in range(0, step, LINE):
                prefetch_line(b, b.add(at, ir.Constant(_INT64, AHEAD_BYTES + line)))
            place = b.add(first, b.mul(loop.index, ir.Constant(_INT64, UNIT * per_step)))
            packed = [ops.load_integers(at, v * VECTOR_LANES) for v in range(VECTORS)]
            parts = list(zip(*(unpacked(ops, b, kind, each) for each in packed), strict=True))
            for row, counts in zip(rows, self._counts, strict=True):
                for number, codes in enumerate(parts):
                    here = b.add(row, b.add(place, ir.Constant(_INT64, UNIT * number)))
                    x = b.bitcast(ops.load_one(here, 0), ops.integers)
                    for v, variable in enumerate(counts):
                        made = add_dots(ops, b, b.load(variable), codes[v], x, kind.bits)
                        b.store(made, variable)

    def finish(self, rows: list[Any], ends: Any, results: list[Any], inputs: Any) -> None:
        b, ops, kind = self._builder, self._ops, self._kind
        for r, (row, into) in enumerate(zip(rows, results, strict=True)):
            if kind.group:
                made = [b.load(variable) for variable in self._sums[r]]
            else:
                counts = [b.load(variable) for variable in self._counts[r]]
                made = of_one_group(ops, b, kind, counts, b.add(row, inputs))
            put_row(ops, b, kind, made, ends, into)


def unpacked(ops: Lanes, builder: ir.IRBuilder, kind: StripKind, packed: Any) -> list[Any]:
    """Units of bytes from one of what a panel has."""
    return [packed] if kind.bits == 8 else halves_of_bytes(ops, builder, packed)


def of_one_group(
    ops: Lanes, builder: ir.IRBuilder, kind: StripKind, counts: Sequence[Any], stats: Any
) -> list[Any]:
    """A row's sums, where a weight has one group, times the row's scale. stats: the address of the
    scale and of the sum of the row's codes.
    """
    scale = ops.load_one(stats, 0)
    total = builder.bitcast(ops.load_one(stats, 1), ops.integers)
    zeros = builder.mul(total, ops.all_integer(kind.zero))
    return [
        builder.fmul(builder.sitofp(builder.sub(count, zeros), ops.vector), scale)
        for count in counts
    ]


class GroupEnds:
    """A group's scales and offsets, loaded once for all rows: its products are multiplied by them.

    head: the address of them in the panel.
    """

    def __init__(self, ops: Lanes, builder: ir.IRBuilder, kind: StripKind, head: Any) -> None:
        self._ops, self._builder, self._kind = ops, builder, kind
        self._scales = [ops.load_halves(head, v * VECTOR_LANES) for v in range(VECTORS)]
        self._offsets = [
            ops.load_halves(head, LANES + v * VECTOR_LANES)
            for v in range(VECTORS if kind.offsets else 0)
        ]

    def added(
        self, counts: Sequence[Any], sums: Sequence[Any], scale: Any, total: Any
    ) -> list[Any]:
        """A row's sums with this group. scale, total: addresses of the row's own, float32."""
        b, ops = self._builder, self._ops
        scale, total, made = ops.load_one(scale, 0), ops.load_one(total, 0), []
        for v, (count, before) in enumerate(zip(counts, sums, strict=True)):
            part = b.sitofp(count, ops.vector)
            if self._kind.zero:
                part = ops.multiply_add(total, ops.all(-self._kind.zero), part)
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
