"""Products of small integers in compiled code: numbers of a row as signed bytes with a scale, times
unsigned bytes, added up exactly in 32 bits.

A unit is four bytes, which one lane multiplies at once. So sums do not depend on their order, nor
on which processor adds them up.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
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
    vectors_and_rest,
)

# The least that a row's largest number counts as: what is smaller has no inverse.
_LEAST = 2.0**-100
# Added, it leaves a small number as an integer in the lowest bits.
_SHIFT = 1.5 * 2**23
_SHIFT_BITS = 0x4B400000
# The 16 smallest numbers of E4M3.
_SMALL = [code * 2.0**-9 for code in range(16)]
_INT8, _INT16, _INT32, _INT64 = (ir.IntType(bits) for bits in (8, 16, 32, 64))


def has_byte_products() -> bool:
    """Whether the processor multiplies vectors of bytes at all, and reads float16 scales."""
    bytes_ = "avx512bw" if VECTOR_LANES == MOST_LANES else "avx2"
    return processor_has(bytes_) and processor_has("f16c")


def has_dots() -> bool:
    """Whether it multiplies and adds up four bytes in one instruction."""
    if VECTOR_LANES == MOST_LANES:
        return processor_has("avx512vnni")
    return processor_has("avxvnni")


def are_centred(bits: int) -> bool:
    """Whether codes of that many bits are multiplied less 128, see `sizes_and_signed`: products
    leave out 128 times the sum of the signed bytes.
    """
    return bits == 8 and VECTOR_LANES < MOST_LANES and not has_dots()


def most_paired(bits: int) -> int:
    """Units of codes of that many bits whose sums of two products each fit 16 bits: 0: of none."""
    if are_centred(bits):
        return 1
    return 0 if bits == 8 else (2**15 - 1) // (2 * 127 * (2**bits - 1))


def add_dots(ops: Lanes, builder: ir.IRBuilder, total: Any, codes: Any, x: Any) -> Any:
    """total + the product of four unsigned codes with four signed bytes, by lane. All are vectors
    of `VECTOR_LANES` int32.
    """
    width = 32 * VECTOR_LANES
    if has_dots():
        return call(builder, f"llvm.x86.avx512.vpdpbusd.{width}", ops.integers, [total, codes, x])
    lower, upper = (
        sum_pairs(builder, dot_pairs(builder, part, x))
        for part in halves_of_bytes(ops, builder, codes)
    )
    made = builder.shl(upper, ops.all_integer(4))
    return builder.add(total, builder.add(made, lower))


def sizes_and_signed(ops: Lanes, builder: ir.IRBuilder, codes: Any, x: Any) -> tuple[Any, Any]:
    """The sizes of codes less 128, and the bytes of x with the signs of these, so that products
    stay the same.
    """
    kind = _bytes(ops)
    centred = builder.bitcast(builder.xor(codes, ops.all_integer(-0x7F7F7F80)), kind)
    wraps = ir.Constant(ir.IntType(1), 0)
    sizes = call(builder, f"llvm.abs.v{kind.count}i8", kind, [centred, wraps])
    operands = [builder.bitcast(x, kind), centred]
    return sizes, call(builder, "llvm.x86.avx2.psign.b", kind, operands)


def dot_pairs(builder: ir.IRBuilder, codes: Any, x: Any) -> Any:
    """The sums of the products of two unsigned bytes with two signed ones, 16 bits each."""
    bytes_, pairs = (
        ir.VectorType(kind, 4 * VECTOR_LANES // size) for kind, size in ((_INT8, 1), (_INT16, 2))
    )
    name = "avx512.pmaddubs.w.512" if VECTOR_LANES == MOST_LANES else "avx2.pmadd.ub.sw"
    operands = [builder.bitcast(each, bytes_) for each in (codes, x)]
    return call(builder, f"llvm.x86.{name}", pairs, operands)


def sum_pairs(builder: ir.IRBuilder, pairs: Any) -> Any:
    """The sums of two 16-bit numbers each, in 32 bits."""
    name = "avx512.pmaddw.d.512" if VECTOR_LANES == MOST_LANES else "avx2.pmadd.wd"
    ones = ir.Constant(pairs.type, [1] * pairs.type.count)
    return call(builder, f"llvm.x86.{name}", ir.VectorType(_INT32, VECTOR_LANES), [pairs, ones])


def looked_up(ops: Lanes, builder: ir.IRBuilder, table: Sequence[int], codes: Any) -> Any:
    """Each byte of a vector, below 16, as the table has it."""
    bytes_ = _bytes(ops)
    name = "avx512.pshuf.b.512" if VECTOR_LANES == MOST_LANES else "avx2.pshuf.b"
    operands = [
        ir.Constant(bytes_, [*table] * (bytes_.count // 16)),
        builder.bitcast(codes, bytes_),
    ]
    return call(builder, f"llvm.x86.{name}", bytes_, operands)


def signed_bytes(ops: Lanes, builder: ir.IRBuilder, address: Any, elements: int) -> Any:
    """Signed bytes, as float32."""
    kind = ir.VectorType(_INT8, ops.lanes)
    at = builder.add(address, ir.Constant(_INT64, elements))
    loaded = builder.load(builder.inttoptr(at, kind.as_pointer()))
    loaded.align = 1
    return builder.sitofp(builder.sext(loaded, ops.integers), ops.vector)


def planes_of(bits: int) -> tuple[int, ...]:
    """The widths of the parts that codes of that many bits are stored in, the lowest bits first: a
    byte has as many codes' part as fit.
    """
    return tuple(width for width in (8, 4, 2, 1) if bits & width)


def turn_of(bits: int) -> int:
    """How many codes of that many bits fill whole bytes of each part."""
    return 8 // planes_of(bits)[-1]


def bits_of_bytes(
    ops: Lanes, builder: ir.IRBuilder, packed: Any, width: int, place: int, into: int
) -> Any:
    """`width` bits from a place of each byte on, at another place of it."""
    if width == 8:
        return packed
    shift = ops.all_integer(abs(place - into))
    if place != into:
        packed = (builder.lshr if place > into else builder.shl)(packed, shift)
    mask = 0x01010101 * ((1 << width) - 1 << into)
    return builder.and_(packed, ops.all_integer(mask - (mask >> 31 << 32)))


def halves_of_bytes(ops: Lanes, builder: ir.IRBuilder, codes: Any) -> list[Any]:
    """The lower halves of each byte of a vector and the upper ones, as bytes."""
    return [bits_of_bytes(ops, builder, codes, 4, place, 0) for place in (0, 4)]


def e4m3_bytes(ops: Lanes, builder: ir.IRBuilder, codes: Any) -> tuple[Any, Any]:
    """The lower and the upper byte, in bfloat16, of the number that each code stands for.

    s eee e mmm   ->   s (60 + eee) | e mmm 0000; where eee is 0, s | (e mmm) x 2^-9
    """
    bytes_, [low, upper] = _bytes(ops), halves_of_bytes(ops, builder, codes)
    sign = builder.bitcast(builder.and_(codes, ops.all_integer(-0x7F7F7F80)), bytes_)
    small = [looked_up(ops, builder, table, low) for table in bfloat16_bytes(_SMALL)]
    moved = builder.bitcast(builder.shl(low, ops.all_integer(4)), bytes_)
    usual = moved, looked_up(ops, builder, [60 + eee for eee in range(8)] * 2, upper)
    exponent = builder.bitcast(builder.and_(upper, ops.all_integer(0x07070707)), bytes_)
    is_small = builder.icmp_unsigned("==", exponent, ir.Constant(bytes_, [0] * bytes_.count))
    lower, higher = (builder.select(is_small, *pair) for pair in zip(small, usual, strict=True))
    return lower, builder.or_(higher, sign)


def bfloat16_bytes(numbers: Sequence[float]) -> list[list[int]]:
    """The lower byte of each in bfloat16, which holds it, and the upper ones."""
    bits = np.array(numbers, dtype=np.float32).view(np.uint32)
    return [(bits >> shift & 255).tolist() for shift in (16, 24)]


def _bytes(ops: Lanes) -> Any:
    return ir.VectorType(_INT8, 4 * ops.lanes)


def make_encode(*, bfloat16: bool, floats: bool) -> Any:
    """encode(x, size, codes, scale, total): `size` numbers as signed bytes; what one stands for is
    written to `scale`, and their sum to `total`: float32, or int32.

    Where one of the numbers is not finite the scale is NaN.
    """

    @emitted(types.void, *[types.int64] * 5)
    def encode(
        builder: ir.IRBuilder, x: Any, size: Any, codes: Any, scale: Any, total: Any
    ) -> None:
        added = _encode(builder, x, size, codes, scale, bfloat16=bfloat16)
        if floats:
            added = builder.sitofp(added, ir.FloatType())
        builder.store(added, builder.inttoptr(total, added.type.as_pointer()))

    return encode


def make_quantize(*, bfloat16: bool, bits: int) -> Any:
    """quantize(x, size, codes, scale): the same without a sum, in 8 bits or in 16. codes may be
    where x is, if they are not longer.
    """

    @emitted(types.void, *[types.int64] * 4)
    def quantize(builder: ir.IRBuilder, x: Any, size: Any, codes: Any, scale: Any) -> None:
        _encode(builder, x, size, codes, scale, bfloat16=bfloat16, bits=bits)

    return quantize


def _encode(
    builder: ir.IRBuilder,
    x: Any,
    size: Any,
    codes: Any,
    scale: Any,
    *,
    bfloat16: bool,
    bits: int = 8,
) -> Any:
    """Returns the sum of the codes."""
    element, code_bytes, most = 2 if bfloat16 else 4, bits // 8, 2.0 ** (bits - 1) - 1
    both = [Lanes(builder, lanes) for lanes in (MOST_LANES, 1)]
    least = int(np.float32(_LEAST).view(np.int32))
    tops = {ops.lanes: cgutils.alloca_once_value(builder, ops.all_integer(least)) for ops in both}
    # By bits: of positive floats the larger one has the larger ones, infinity and NaN the largest.
    for ops, at in vectors_and_rest(builder, size):
        number = ops.load(offset(builder, x, at, element), 0, bfloat16=bfloat16)
        top = tops[ops.lanes]
        size_of = builder.and_(builder.bitcast(number, ops.integers), ops.all_integer(2**31 - 1))
        builder.store(ops.larger_integer(size_of, builder.load(top)), top)
    largest, rest = (ops.largest_integer(builder.load(tops[ops.lanes])) for ops in both)
    largest = builder.select(builder.icmp_signed(">", rest, largest), rest, largest)
    largest = builder.bitcast(largest, ir.FloatType())
    inverse = builder.fdiv(_float(most), largest)
    sums = {ops.lanes: cgutils.alloca_once_value(builder, ops.all_integer(0)) for ops in both}
    for ops, at in vectors_and_rest(builder, size):
        number = ops.load(offset(builder, x, at, element), 0, bfloat16=bfloat16)
        shifted = builder.fadd(builder.fmul(number, ops.spread(inverse)), ops.all(_SHIFT))
        code = builder.sub(builder.bitcast(shifted, ops.integers), ops.all_integer(_SHIFT_BITS))
        total = sums[ops.lanes]
        builder.store(builder.add(builder.load(total), code), total)
        kind = ir.VectorType(ir.IntType(bits), ops.lanes)
        here = builder.inttoptr(offset(builder, codes, at, code_bytes), kind.as_pointer())
        builder.store(builder.trunc(code, kind), here).align = 1
    # Infinity less itself is NaN.
    made = builder.fadd(builder.fdiv(largest, _float(most)), builder.fsub(largest, largest))
    builder.store(made, builder.inttoptr(scale, ir.FloatType().as_pointer()))
    one, other = (ops.sum_integers(builder.load(sums[ops.lanes])) for ops in both)
    return builder.add(one, other)


def _float(number: float) -> Any:
    return ir.Constant(ir.FloatType(), number)
