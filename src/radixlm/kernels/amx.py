"""Products by AMX, the unit of Intel's processors that multiplies tiles of bfloat16 and of bytes.

A tile is a register of 16 rows of 64 bytes. One instruction multiplies two and adds the product to
a third, in float32 or int32, as pairs of bfloat16 numbers or as four bytes, a unit:

    a: 16 rows of 16 units    x    b: 16 units of 16 lanes    ->    c: 16 rows of 16 lanes

Both are read as `kernels.strips` lays them out: a row of a is 16 units, a row of b one unit of 16
lanes, so that weights, keys and values need no second layout. There are eight tiles: four for sums,
two for a, two for b. (Intel, Architecture Instruction Set Extensions Programming Reference,
chapter 3.)
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils

from radixlm.kernels.vectors import call, emitted, inner, offset, processor_has

TILE_ROWS = 16
# Units of a tile: a strip's are whole tiles of them.
TILE_UNITS = 16
_ROW_BYTES = 64
# Of what: numbers, and signed bytes times unsigned ones.
BFLOAT16, BYTES = "tdpbf16ps", "tdpbsud"
# The registers of two groups of rows, and of two vectors.
_SUMS, _A, _B = ((0, 1), (2, 3)), (4, 5), (6, 7)
# Linux lends a process the registers when it asks, since they make signal frames larger:
# arch_prctl(ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA), Documentation/arch/x86/xstate.rst.
_ARCH_PRCTL, _REQUEST_PERMISSION, _TILE_DATA = 158, 0x1023, 18
_INT8, _INT64, _VOID = ir.IntType(8), ir.IntType(64), ir.VoidType()


@functools.cache
def has_tiles(kind: str = "amx-bf16") -> bool:
    """Whether the processor has them, for bfloat16 or for bytes ("amx-int8"), and vectors that
    split exponents (as all such have), and the system lets this process use them.
    """
    if not (processor_has(kind) and processor_has("avx512dq")):
        return False
    syscall = getattr(ctypes.CDLL(None), "syscall", None)
    return syscall is not None and syscall(_ARCH_PRCTL, _REQUEST_PERMISSION, _TILE_DATA) == 0


@emitted(types.void, types.int64, types.int64, types.int64)
def configure(builder: ir.IRBuilder, rows: Any, more: Any, units: Any) -> None:
    """Configure the tiles, before the first product and where numbers of rows change: 1 to 16 of
    the first group of rows, and of the second, whether it is used or not. units: of a step, 16 at
    most. Tiles are zero afterwards.
    """
    cell = cgutils.alloca_once(builder, ir.ArrayType(_INT64, 8))
    each = sum(1 << 16 * place for place in range(4))
    wide = ir.Constant(_INT64, _ROW_BYTES * each)
    zero, palette = ir.Constant(_INT64, 0), ir.Constant(_INT64, 1)
    # Of the second four, the first two are a's.
    unit = ir.Constant(_INT64, _ROW_BYTES // TILE_UNITS * sum(1 << 16 * tile - 64 for tile in _A))
    narrow = builder.add(
        ir.Constant(_INT64, _ROW_BYTES * sum(1 << 16 * tile - 64 for tile in _B)),
        builder.mul(units, unit),
    )
    counts = builder.mul(units, ir.Constant(_INT64, sum(1 << 8 * tile for tile in _B)))
    for group, height in enumerate((rows, more)):
        ones = sum(1 << 8 * tile for tile in (*_SUMS[group], _A[group]))
        counts = builder.or_(counts, builder.mul(height, ir.Constant(_INT64, ones)))
    for place, word in enumerate((palette, zero, wide, narrow, zero, zero, counts, zero)):
        at = builder.gep(cell, [zero, ir.Constant(_INT64, place)])
        builder.store(word, at)
    call(builder, "llvm.x86.ldtilecfg", _VOID, [builder.bitcast(cell, _INT8.as_pointer())])


@emitted(types.void)
def release(builder: ir.IRBuilder) -> None:
    """Release the tiles after the last product: until then the system saves 8 KB at each change of
    threads.
    """
    call(builder, "llvm.x86.tilerelease", _VOID, [])


class TileStrip:
    """Code for one product: sums of one or two groups of 16 rows, each with `vectors` x 16 lanes: 2
    at most, of one group 4.

    Rows are given by the address of the first and by a stride; 0: the same for all. The first of
    two groups has 16. product: LLVM's name of the instruction.
    """

    def __init__(
        self, builder: ir.IRBuilder, groups: int, vectors: int, product: str = BFLOAT16
    ) -> None:
        self._builder = builder
        self._product = f"llvm.x86.{product}"
        self._vectors = vectors
        # Of one group alone the other's registers are free, but for its rows.
        flat = [tile for group in _SUMS for tile in group]
        self._sums = [flat[g * 2 :][:vectors] for g in range(groups)]

    def clear(self) -> None:
        """Begin with nothing."""
        for tiles in self._sums:
            for tile in tiles:
                call(self._builder, "llvm.x86.tilezero", _VOID, [ir.Constant(_INT8, tile)])

    def take(self, at: Any, stride: Any) -> None:
        """Begin with what is there, float32."""
        self._move_sums("tileloadd64", at, stride)

    def add(
        self,
        a: Any,
        a_stride: Any,
        b: Any,
        b_stride: Any,
        units: Any,
        beside: Callable[[Any], None] | None = None,
    ) -> None:
        """All units of each row, a multiple of 16, times b's vectors of them. beside: what else is
        to be done in each step of 16, by its number.
        """
        builder = self._builder
        b_step = builder.mul(b_stride, ir.Constant(_INT64, TILE_UNITS))
        with cgutils.for_range(
            builder, builder.udiv(units, ir.Constant(_INT64, TILE_UNITS))
        ) as loop:
            b_here = builder.add(b, builder.mul(loop.index, b_step))
            self._add_step(offset(builder, a, loop.index, _ROW_BYTES), a_stride, b_here, b_stride)
            if beside is not None:
                beside(loop.index)

    def _add_step(self, a: Any, a_stride: Any, b: Any, b_stride: Any) -> None:
        """Each tile is loaded just before it is first used: products wait for one, not for all."""
        rows = self._groups_from(a, a_stride)
        for v in range(self._vectors):
            for g, tiles in enumerate(self._sums):
                if v == 0:
                    self._move("tileloadd64", _A[g], rows[g], 0, a_stride)
                if g == 0:
                    # Not to be read again soon: it leaves the nearest cache to a.
                    self._move("tileloaddt164", _B[v % 2], b, _ROW_BYTES * v, b_stride)
                operands = [ir.Constant(_INT8, tile) for tile in (tiles[v], _A[g], _B[v % 2])]
                call(self._builder, self._product, _VOID, operands)

    def store(self, at: Any, stride: Any) -> None:
        """Write the sums, float32 or int32."""
        self._move_sums("tilestored64", at, stride)

    def _move_sums(self, how: str, at: Any, stride: Any) -> None:
        for tiles, here in zip(self._sums, self._groups_from(at, stride), strict=True):
            for v, tile in enumerate(tiles):
                self._move(how, tile, here, _ROW_BYTES * v, stride)

    def _groups_from(self, at: Any, stride: Any) -> list[Any]:
        b = self._builder
        rows = (ir.Constant(_INT64, group * TILE_ROWS) for group in range(len(self._sums)))
        return [b.add(at, b.mul(stride, row)) for row in rows]

    def _move(self, how: str, tile: int, at: Any, start: int, stride: Any) -> None:
        moved = self._builder.add(at, ir.Constant(_INT64, start))
        pointer = self._builder.inttoptr(moved, _INT8.as_pointer())
        call(self._builder, f"llvm.x86.{how}", _VOID, [ir.Constant(_INT8, tile), pointer, stride])


def make_tile_product(vectors: int, *, onto: bool = False) -> Any:
    """product(rows, a, a_stride, b, b_stride, units, into, stride): as `strips.make_product`, of 16
    rows, or of 32 if `rows` is more than 16. units: a multiple of 16. onto: what is there is added
    to.
    """
    few, many = (_make_product(groups, vectors, onto=onto) for groups in (1, 2))

    @inner
    def product(
        rows: int, a: int, a_stride: int, b: int, b_stride: int, units: int, into: int, stride: int
    ) -> None:
        if rows > TILE_ROWS:
            many(a, a_stride, b, b_stride, units, into, stride)
        else:
            few(a, a_stride, b, b_stride, units, into, stride)

    return product


def _make_product(groups: int, vectors: int, *, onto: bool) -> Any:
    @emitted(types.void, *[types.int64] * 7)
    def product(builder: ir.IRBuilder, *values: Any) -> None:
        a, a_stride, b, b_stride, units, into, stride = values
        strip = TileStrip(builder, groups, vectors)
        if onto:
            strip.take(into, stride)
        else:
            strip.clear()
        strip.add(a, a_stride, b, b_stride, units)
        strip.store(into, stride)

    return product
