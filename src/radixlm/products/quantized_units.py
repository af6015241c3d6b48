"""Panels of quantized weights: what one holds, where its parts are, and how its codes are read. See
`quantized_products` for the picture.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

from llvmlite import ir
from numba import types
from numba.core import cgutils

from radixlm.kernels.bytes import are_centred, bits_of_bytes, looked_up, planes_of, turn_of
from radixlm.kernels.strips import VECTOR_LANES
from radixlm.kernels.vectors import Lanes, emitted, offset
from radixlm.products.compiled import GateKind
from radixlm.products.quantized import BYTES, LEVELS, MIDDLE, Numbers

VECTORS = 2
LANES = VECTORS * VECTOR_LANES
UNIT = 4  # inputs
# What codes of IQ4 stand for, with 0 in the middle of a byte.
_UNSIGNED = [int(level) + MIDDLE[8] for level in LEVELS["iq4"]]
# Units that are multiplied at once: fewer where a group has fewer.
_MOST_UNITS, _LEAST_UNITS = 8, 4
# Inputs of which sums of products of bytes fit a float32.
_MOST_EXACT = 2**24 // (127 * 255)
_INT64 = ir.IntType(64)


class StripKind(NamedTuple):
    """The kind of product that a kernel is compiled for. group: inputs that share a scale, 0: all.
    zero: the code of 0, of what codes are looked up as. block: inputs that share a step, see
    `QuantizedWeight`. bfloat16, halves: rows and results are. gate: see `Linear`.
    """

    bits: int
    group: int
    offsets: bool
    numbers: Numbers
    block: int
    zero: int
    bfloat16: bool
    halves: bool
    gate: GateKind | None

    @property
    def are_bytes(self) -> bool:
        """See `QuantizedWeight`."""
        return self.numbers in BYTES

    @property
    def turn(self) -> int:
        """Units whose codes fill whole bytes."""
        return turn_of(self.bits)

    @property
    def units(self) -> int:
        """Units that are multiplied at once."""
        return max(math.gcd(self.group // UNIT or _LEAST_UNITS, _MOST_UNITS), self.turn)

    @property
    def reach(self) -> int:
        """The bits of what is multiplied."""
        return 8 if self.numbers == "iq4" else self.bits

    @property
    def unpacked(self) -> StripKind:
        """The same, with what is multiplied in its panels."""
        return self._replace(bits=8, numbers="int")

    @property
    def is_centred(self) -> bool:
        """See `are_centred`."""
        return are_centred(self.reach)

    @property
    def taken_off(self) -> int:
        """The part of `zero` that is taken off sums: none where codes less 128, which is that of 0,
        are multiplied. Sums of groups fit a float32 with and without it: both give the same bits.
        """
        small = self.group <= _MOST_EXACT
        return 0 if self.is_centred and self.zero == MIDDLE[8] and small else self.zero

    @property
    def units_bytes(self) -> int:
        """The bytes of a group's codes in a panel. 0: of a group of all inputs."""
        return self.group // UNIT * self.unit_bits // 8

    @property
    def unit_bits(self) -> int:
        return LANES * UNIT * self.bits

    @property
    def head_bytes(self) -> int:
        """The bytes of a group's scales and offsets."""
        return (1 + self.offsets) * self.scale_bytes * LANES if self.group else 0

    @property
    def scale_bytes(self) -> int:
        """float16 in groups, where formats have few bits of them, or bytes that are multiplied by
        steps; else they stay as they are.
        """
        if self.block:
            return 1
        return 2 if self.numbers in ("int", "iq4", "e2m1") else 4

    @property
    def step_bytes(self) -> int:
        """The bytes of a block's steps."""
        return (1 + self.offsets) * 2 * LANES if self.block else 0

    @property
    def groups(self) -> int:
        """Groups of a block; where there are none, of one group by itself."""
        return self.block // self.group if self.block else 1

    @property
    def block_bytes(self) -> int:
        return self.step_bytes + self.groups * (self.head_bytes + self.units_bytes)


class GroupPlace(NamedTuple):
    """The addresses of a group's parts in a panel: its block's steps, its own scales, its units."""

    steps: Any
    head: Any
    units: Any


def place_of(builder: ir.IRBuilder, kind: StripKind, panel: Any, group: Any) -> GroupPlace:
    """The place of a group, by its number."""
    b, count = builder, ir.Constant(_INT64, kind.groups)
    steps = offset(b, panel, b.udiv(group, count), kind.block_bytes)
    number, heads = b.urem(group, count), b.add(steps, ir.Constant(_INT64, kind.step_bytes))
    units = b.add(heads, ir.Constant(_INT64, kind.groups * kind.head_bytes))
    head = offset(b, heads, number, kind.head_bytes)
    return GroupPlace(steps, head, offset(b, units, number, kind.units_bytes))


def unit_codes(
    ops: Lanes, builder: ir.IRBuilder, kind: StripKind, units: Any
) -> Iterator[list[Any]]:
    """The codes of each of `kind.units` units at an address, as bytes to be multiplied: vectors."""
    turn, step = kind.turn, LANES * UNIT
    for unit in range(kind.units):
        begin, within = unit // turn * turn * kind.unit_bits // 8, unit % turn
        made, into = [ops.all_integer(0)] * VECTORS, 0
        for width in planes_of(kind.bits):
            at = builder.add(units, ir.Constant(_INT64, begin + within * width // 8 * step))
            for v in range(VECTORS):
                packed = ops.load_integers(at, v * VECTOR_LANES)
                part = bits_of_bytes(ops, builder, packed, width, within * width % 8, into)
                made[v] = builder.or_(made[v], part)
            begin, into = begin + turn * width // 8 * step, into + width
        if kind.numbers == "iq4":
            found = (looked_up(ops, builder, _UNSIGNED, codes) for codes in made)
            made = [builder.bitcast(codes, ops.integers) for codes in found]
        yield made


def unpack_units(
    builder: ir.IRBuilder, kind: StripKind, units: Any, inputs: Any, into: Any
) -> None:
    """Leave codes as bytes that are multiplied, unit after unit. inputs: whole `kind.units`."""
    ops, count = Lanes(builder, VECTOR_LANES), kind.units * UNIT
    with cgutils.for_range(builder, builder.udiv(inputs, ir.Constant(_INT64, count))) as loop:
        at = offset(builder, units, loop.index, kind.units * kind.unit_bits // 8)
        to = offset(builder, into, loop.index, count * LANES)
        for unit, codes in enumerate(unit_codes(ops, builder, kind, at)):
            for v, vector in enumerate(codes):
                ops.store(vector, to, (unit * VECTORS + v) * VECTOR_LANES)


def make_unpack(kind: StripKind) -> Any:
    """unpack(panel, inputs, into): leave a panel's codes as bytes for all rows that meet it."""

    @emitted(types.void, *[types.int64] * 3)
    def unpack(builder: ir.IRBuilder, panel: Any, inputs: Any, into: Any) -> None:
        if not kind.group:
            unpack_units(builder, kind, panel, inputs, into)
            return
        group = ir.Constant(_INT64, kind.group)
        with cgutils.for_range(builder, builder.udiv(inputs, group)) as loop:
            units = place_of(builder, kind, panel, loop.index).units
            to = offset(builder, into, loop.index, kind.group * LANES)
            unpack_units(builder, kind, units, group, to)

    return unpack
