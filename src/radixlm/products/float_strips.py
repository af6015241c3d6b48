"""One strip of a product with 8- or 4-bit floats: a few rows, as they are, times a panel, compiled.

A code is widened to bfloat16, which holds each E4M3 and E2M1 number exactly: two tables give the
bytes of that, which are brought side by side. Of NF4 and FP4 it is the nearest one, and with rows
in float32 another is added that stands for most of the rest. So units of a panel have
another order here than in `quantized_units`: of four outputs the first two inputs of each come
first, then the other two.

    codes   a0 a1 b0 b1 c0 c1 d0 d1 | a2 a3 ..   ->   (a0 a1) (b0 b1) (c0 c1) (d0 d1),  (a2 a3) ..

Sums are float32, of pairs of products where the processor has them, group by group in their order,
so a row's bits do not depend on the rows beside it.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch
from llvmlite import ir
from numba import types
from numba.core import cgutils

from radixlm.kernels.bytes import bfloat16_bytes, e4m3_bytes, halves_of_bytes, looked_up
from radixlm.kernels.strips import VECTOR_LANES
from radixlm.kernels.vectors import Lanes, emitted, offset, order_of, prefetch_line
from radixlm.products.panel_strips import rows_until
from radixlm.products.quantized import LEVELS
from radixlm.products.quantized_strips import AHEAD_BYTES, LINE, put_row
from radixlm.products.quantized_units import LANES, UNIT, VECTORS, StripKind

_INT64 = ir.IntType(64)
# Inputs of one sum, where no scale ends it: more of them would wait for each other.
_AT_ONCE = 128
# Lanes whose bytes a shuffle reaches: 128 bits.
NEAR = 4


def make_float_strip(kind: StripKind, height: int) -> Any:
    """strip(x, last, panel, ends, into, sizes): `height` rows at x times a panel; those beyond the
    `last` one are that one again. sizes: bytes from row to row, inputs, groups, bytes from result
    to result.
    """

    @emitted(types.void, *[types.int64] * 5, types.UniTuple(types.int64, 4))
    def strip(builder: ir.IRBuilder, *values: Any) -> None:
        x, last, panel, ends, into, sizes = values
        row_bytes, inputs, _, stride = (builder.extract_value(sizes, i) for i in range(4))
        sums = _FloatSums(builder, kind, height)
        sums.add_groups(rows_until(builder, x, row_bytes, last, height), panel, inputs)
        results = rows_until(builder, into, stride, last, height)
        for result, variables in zip(results, sums.totals, strict=True):
            made = [builder.load(variable) for variable in variables]
            put_row(sums.ops, builder, kind, made, ends, result)

    return strip


class _FloatSums:
    """Code for one strip: sums of rows with a panel's lanes, as variables that become registers."""

    def __init__(self, builder: ir.IRBuilder, kind: StripKind, height: int) -> None:
        self._builder, self._kind = builder, kind
        self.ops = ops = Lanes(builder, VECTOR_LANES)
        make = functools.partial(cgutils.alloca_once_value, builder, ops.all(0))
        self.totals, self._sums = (
            [[make() for _ in range(VECTORS)] for _ in range(height)] for _ in range(2)
        )

    def add_groups(self, rows: Sequence[Any], panel: Any, inputs: Any) -> None:
        b, kind, ops = self._builder, self._kind, self.ops
        begin, step = (ir.Constant(_INT64, number) for number in (0, kind.group or _AT_ONCE))
        units_bytes = LANES * kind.bits // 8
        here = cgutils.alloca_once_value(b, panel)
        with cgutils.for_range_slice(b, begin, inputs, step, _INT64) as (first, _):
            rest = b.sub(inputs, first)
            size = b.select(b.icmp_signed("<", rest, step), rest, step)
            head = b.load(here)
            for variables in self._sums:
                for variable in variables:
                    b.store(ops.all(0), variable)
            units = b.add(head, ir.Constant(_INT64, kind.head_bytes))
            self._add_units(rows, units, size, first)
            b.store(offset(b, units, size, units_bytes), here)
            for v in range(VECTORS):
                scale = self._scale(head, v)
                for sums, totals in zip(self._sums, self.totals, strict=True):
                    made = ops.multiply_add(b.load(sums[v]), scale, b.load(totals[v]))
                    b.store(made, totals[v])

    def _scale(self, head: Any, vector: int) -> Any:
        """A group's scales of a vector of outputs."""
        if not self._kind.group:
            return self.ops.all(1)
        load = self.ops.load if self._kind.scale_bytes == 4 else self.ops.load_halves
        return load(head, vector * VECTOR_LANES)

    def _add_units(self, rows: Sequence[Any], units: Any, size: Any, first: Any) -> None:
        """Products of `size` inputs from a row's `first` on with the units at an address."""
        b, ops, kind = self._builder, self.ops, self._kind
        per_step, step = 8 // kind.bits * UNIT, LANES * UNIT
        with cgutils.for_range(b, b.udiv(size, ir.Constant(_INT64, per_step))) as loop:
            at = offset(b, units, loop.index, step)
            for line in range(0, step, LINE):
                prefetch_line(b, b.add(at, ir.Constant(_INT64, AHEAD_BYTES + line)))
            place = b.add(first, b.mul(loop.index, ir.Constant(_INT64, per_step)))
            packed = [ops.load_integers(at, v * VECTOR_LANES) for v in range(VECTORS)]
            pairs = list(zip(*(_widened(ops, b, kind, each) for each in packed), strict=True))
            for row, sums in zip(rows, self._sums, strict=True):
                x = offset(b, row, place, 2 if kind.bfloat16 else 4)
                for number, vectors in enumerate(pairs):
                    place_of = number * per_step // len(pairs) // 2 * 2
                    self._add_pairs(sums, x, place_of, vectors)

    def _add_pairs(self, sums: Sequence[Any], x: Any, place: int, vectors: Sequence[Any]) -> None:
        b, ops = self._builder, self.ops
        if self._kind.bfloat16:
            pair = ops.load_pair(x, place)
            for variable, pairs in zip(sums, vectors, strict=True):
                b.store(ops.multiply_add_pairs(pair, pairs, b.load(variable)), variable)
            return
        numbers = [ops.load_one(x, place + i) for i in range(2)]
        for variable, pairs in zip(sums, vectors, strict=True):
            total = b.load(variable)
            for number, vector in zip(numbers, ops.widened(pairs), strict=True):
                total = ops.multiply_add(number, vector, total)
            b.store(total, variable)


def _widened(ops: Lanes, builder: ir.IRBuilder, kind: StripKind, packed: Any) -> list[Any]:
    """The pairs of bfloat16 numbers of a vector of codes, in the order of the inputs; where numbers
    are sums of two, both.
    """
    made = []
    for codes in [packed] if kind.bits == 8 else halves_of_bytes(ops, builder, packed):
        terms = _bytes_of(ops, builder, kind, codes)
        count, size = 4 * VECTOR_LANES, 4 * NEAR
        for half in range(2):
            starts = [part * size + half * size // 2 for part in range(count // size)]
            order = [
                side * count + start + i
                for start in starts
                for i in range(size // 2)
                for side in range(2)
            ]
            for low, high in terms:
                both = builder.shuffle_vector(low, high, order_of(order))
                made.append(builder.bitcast(both, ops.pairs))
    return made


def _bytes_of(ops: Lanes, builder: ir.IRBuilder, kind: StripKind, codes: Any) -> list[Any]:
    """The lower and the upper byte of each code's number in bfloat16, or of both that it is the sum
    of.
    """
    if kind.numbers == "e4m3":
        return [e4m3_bytes(ops, builder, codes)]
    levels = torch.tensor(LEVELS[kind.numbers])
    terms = [levels.bfloat16().float()]
    rest = levels - terms[0]
    if rest.any() and not kind.bfloat16:
        terms.append(rest.bfloat16().float())
    return [
        [looked_up(ops, builder, table, codes) for table in bfloat16_bytes(term.tolist())]
        for term in terms
    ]
