"""Products of small integers in compiled code: numbers of a row as signed bytes with a scale, times
unsigned bytes, added up exactly in 32 bits.

A unit is four bytes, which one lane multiplies at once. So sums do not depend on their order, nor
on which processor adds them up.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils

from radixlm.kernels.strips import VECTOR_LANES
from radixlm.kernels.vectors import (
    MOST_LANES,
    Lanes,
    call,
    emitted,
    offset,
    processor_has,
)

# The largest code of a row's number.
_MOST = 127.0
# Added, it leaves a small number as an integer in the lowest bits.
_SHIFT = 1.5 * 2**23
_SHIFT_BITS = 0x4B400000
_INT8, _INT16, _INT32, _INT64 = (ir.IntType(bits) for bits in (8, 16, 32, 64))


def has_byte_products() -> bool:
    """Whether the processor multiplies vectors of bytes at all, and reads float16 scales."""
    bytes_ = "avx512bw" if VECTOR_LANES == MOST_LANES else "avx2"
    return processor_has(bytes_) and processor_has("f16c")


def _has_dots() -> bool:
    """Whether it multiplies and adds up four bytes in one instruction."""
    if VECTOR_LANES == MOST_LANES:
        return processor_has("avx512vnni")
    return processor_has("avxvnni")


def add_dots(ops: Lanes, builder: ir.IRBuilder, total: Any, codes: Any, x: Any, bits: int) -> Any:
    """total + the product of four unsigned codes, below 2^bits (or 32, of 4 bits), with four signed
    bytes, by lane. All are vectors of `VECTOR_LANES` int32.
    """
    width = 32 * VECTOR_LANES
    if _has_dots():
        return call(builder, f"llvm.x86.avx512.vpdpbusd.{width}", ops.integers, [total, codes, x])
    # Two products of full bytes do not fit 16 bits; those of 5 bits do.
    low = ops.all_integer(0x0F0F0F0F)
    if bits == 4:
        return builder.add(total, _dots(builder, codes, x))
    upper = builder.and_(builder.lshr(codes, ops.all_integer(4)), low)
    made = builder.shl(_dots(builder, upper, x), ops.all_integer(4))
    return builder.add(total, builder.add(made, _dots(builder, builder.and_(codes, low), x)))


def _dots(builder: ir.IRBuilder, codes: Any, x: Any) -> Any:
    """The product of four half bytes with four signed bytes."""
    bytes_, halves = (
        ir.VectorType(kind, 4 * VECTOR_LANES // size) for kind, size in ((_INT8, 1), (_INT16, 2))
    )
    names = (
        ("avx512.pmaddubs.w.512", "avx512.pmaddw.d.512")
        if VECTOR_LANES == MOST_LANES
        else ("avx2.pmadd.ub.sw", "avx2.pmadd.wd")
    )
    operands = [builder.bitcast(each, bytes_) for each in (codes, x)]
    pairs = call(builder, f"llvm.x86.{names[0]}", halves, operands)
    ones = ir.Constant(halves, [1] * halves.count)
    return call(builder, f"llvm.x86.{names[1]}", codes.type, [pairs, ones])


def looked_up(ops: Lanes, builder: ir.IRBuilder, table: Sequence[int], codes: Any) -> Any:
    """Each byte of a vector, below 16, as the table has it."""
    count = 4 * VECTOR_LANES
    bytes_ = ir.VectorType(_INT8, count)
    name = "avx512.pshuf.b.512" if VECTOR_LANES == MOST_LANES else "avx2.pshuf.b"
    operands = [ir.Constant(bytes_, [*table] * (count // 16)), builder.bitcast(codes, bytes_)]
    made = call(builder, f"llvm.x86.{name}", bytes_, operands)
    return builder.bitcast(made, ops.integers)


def make_encode(*, bfloat16: bool, floats: bool) -> Any:
    """encode(x, size, codes, scale, total): `size` numbers, a multiple of 16, as signed bytes; what
    one stands for is written to `scale`, and their sum to `total`: float32, or int32.

    Where one of the numbers is not finite the scale is not a number.
    """
    element, one = 2 if bfloat16 else 4, ir.Constant(_INT64, MOST_LANES)
    zero = ir.Constant(ir.FloatType(), 0)

    def vectors(builder: ir.IRBuilder, x: Any, size: Any) -> Iterator[tuple[Lanes, Any, Any]]:
        ops = Lanes(builder, MOST_LANES)
        with cgutils.for_range_slice(builder, ir.Constant(_INT64, 0), size, one, _INT64) as (at, _):
            yield ops, at, ops.load(offset(builder, x, at, element), 0, bfloat16=bfloat16)

    def largest(builder: ir.IRBuilder, x: Any, size: Any) -> Any:
        """As bits: of positive floats the larger one has the larger ones, infinity and what is not
        a number the largest.
        """
        ops = Lanes(builder, MOST_LANES)
        top = cgutils.alloca_once_value(builder, ops.all_integer(0))
        for _, _, number in vectors(builder, x, size):
            bits = builder.and_(builder.bitcast(number, ops.integers), ops.all_integer(2**31 - 1))
            before = builder.load(top)
            more = builder.icmp_signed(">", bits, before)
            builder.store(builder.select(more, bits, before), top)
        return ops.largest_integer(builder.load(top))

    @emitted(types.void, *[types.int64] * 5)
    def encode(
        builder: ir.IRBuilder, x: Any, size: Any, codes: Any, scale: Any, total: Any
    ) -> None:
        bits = largest(builder, x, size)
        top = builder.bitcast(bits, ir.FloatType())
        some = builder.fcmp_ordered(">", top, zero)
        inverse = builder.fdiv(ir.Constant(ir.FloatType(), _MOST), top)
        factor = Lanes(builder, MOST_LANES).spread(builder.select(some, inverse, zero))
        sums = cgutils.alloca_once_value(builder, Lanes(builder, MOST_LANES).all_integer(0))
        for ops, at, number in vectors(builder, x, size):
            shifted = builder.fadd(builder.fmul(number, factor), ops.all(_SHIFT))
            code = builder.sub(builder.bitcast(shifted, ops.integers), ops.all_integer(_SHIFT_BITS))
            builder.store(builder.add(builder.load(sums), code), sums)
            small = builder.trunc(code, ir.VectorType(_INT8, MOST_LANES))
            here = builder.inttoptr(builder.add(codes, at), small.type.as_pointer())
            builder.store(small, here).align = 1
        made = builder.fdiv(top, ir.Constant(ir.FloatType(), _MOST))
        # Infinity less itself is not a number.
        made = builder.fadd(made, builder.fsub(top, top))
        builder.store(made, builder.inttoptr(scale, ir.FloatType().as_pointer()))
        added = Lanes(builder, MOST_LANES).sum_integers(builder.load(sums))
        if floats:
            added = builder.sitofp(added, ir.FloatType())
        builder.store(added, builder.inttoptr(total, added.type.as_pointer()))

    return encode
