"""Vectors in compiled code: LLVM that numba has no words for."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Sequence
from inspect import Parameter, Signature
from typing import Any

from llvmlite import ir
from numba import njit, types
from numba.core import cgutils, config
from numba.core.codegen import get_host_cpu_features
from numba.extending import intrinsic


class BFloat(ir.Type):  # type: ignore[misc]
    """LLVM's bfloat, which llvmlite has no name for."""

    def _to_string(self) -> str:
        return "bfloat"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, BFloat)

    def __hash__(self) -> int:
        return hash(BFloat)


def processor_has(feature: str) -> bool:
    """Whether numba compiles for an extension of x86, by LLVM's name for it."""
    return f"+{feature}" in _features(config.CPU_FEATURES)


@functools.cache
def _features(chosen: str | None) -> frozenset[str]:
    """The extensions that numba is to use; by default the machine's."""
    return frozenset((get_host_cpu_features() if chosen is None else chosen).split(","))


def has_bfloat16() -> bool:
    """Whether the processor rounds to bfloat16, and multiplies pairs of such numbers, by itself."""
    return processor_has("avx512bf16")


_INT64, _INT32, _INT16, _FLOAT = ir.IntType(64), ir.IntType(32), ir.IntType(16), ir.FloatType()
# No "fastmath": broken weights are to be seen in the logits, and sums are to have the same order,
# and bits, in each kernel that they are compiled into.
FAST: dict[str, Any] = {
    "boundscheck": False,
    "error_model": "numpy",
    # Only compiled code calls it: ways in from Python and from C take an eighth of the time.
    "no_cpython_wrapper": True,
    "no_cfunc_wrapper": True,
}
# For functions that kernels call.
inner: Callable[[Callable[..., Any]], Any] = njit(**FAST)
MOST_LANES = 16
LOG2_E = math.log2(math.e)
# Exponents of 2 below this count as this: far from what matters, and from denormal numbers, which
# make every product with them slow.
_LEAST = -100
# Taylor: the error of degree 6 is 1e-7, of degree 4 4e-5.
MOST_EXACT = 6
_EXP2 = tuple(math.log(2.0) ** k / math.factorial(k) for k in range(7))
_COARSE_DEGREE = 4
# Of 2^x from 0 to 1, such that the largest relative error is least.
_EXP2_COARSE = (0.9999251961708069, 0.6958335041999817, 0.2260671854019165, 0.0780244991183281)


def emitted(result: Any, *arguments: Any) -> Callable[[Callable[..., Any]], Any]:
    """Make `emit(builder, *values)`, which writes LLVM code, a function that kernels call.

    result, arguments: numba's types. What `emit` returns is the result; None is numba's void.
    """

    def decorated(emit: Callable[..., Any]) -> Any:
        def typed(_context: Any, *_arguments: Any) -> Any:
            def build(target: Any, builder: ir.IRBuilder, _: Any, values: Sequence[Any]) -> Any:
                made = emit(builder, *values)
                return target.get_dummy_value() if made is None else made

            return result(*arguments), build

        names = ["context", *(f"value{place}" for place in range(len(arguments)))]
        by_place = [Parameter(name, Parameter.POSITIONAL_OR_KEYWORD) for name in names]
        typed.__signature__ = Signature(by_place)  # type: ignore[attr-defined]
        return intrinsic(typed)

    return decorated


def lanes_of(size: int) -> int:
    """The most numbers a vector may hold when `size` numbers are to be whole vectors."""
    lanes = MOST_LANES
    while size % lanes:
        lanes //= 2
    return lanes


def _numbers_at(number: Any, stored: Any) -> Any:
    """An address as the numbers that begin there: numba's arrays take it far longer to compile."""

    @emitted(types.CPointer(number), types.int64)
    def numbers_at(builder: ir.IRBuilder, address: Any) -> Any:
        return builder.inttoptr(address, stored.as_pointer())

    return numbers_at


words, integers = _numbers_at(types.int64, _INT64), _numbers_at(types.int32, _INT32)
floats, halves = _numbers_at(types.float32, _FLOAT), _numbers_at(types.uint16, _INT16)


def _counter(place: int) -> Any:
    """count(a kernel's first argument): add 1 to what all threads count; returns what it was."""

    @emitted(types.int64, types.int64)
    def count(builder: ir.IRBuilder, counters: Any) -> Any:
        address = builder.add(counters, ir.Constant(_INT64, 8 * place))
        counter = builder.inttoptr(address, _INT64.as_pointer())
        return builder.atomic_rmw("add", counter, ir.Constant(_INT64, 1), "monotonic")

    return count


# The next unit of work; and the number of the calling thread, to be asked once.
take_unit, thread_number = _counter(0), _counter(1)


def over_rows(row: Any, rows_per_unit: int) -> Callable[[Any], None]:
    """A kernel that calls row(args, index) for each index below `args.rows`."""

    def kernel(args: Any) -> None:
        begin = take_unit(args.counters) * rows_per_unit
        while begin < args.rows:
            for index in range(begin, min(begin + rows_per_unit, args.rows)):
                row(args, index)
            begin = take_unit(args.counters) * rows_per_unit

    return kernel


def prefetch_line(builder: ir.IRBuilder, address: Any, level: int = 1) -> None:
    """Have the cache line at an address fetched, without waiting for it. level: of the cache."""
    pointer = builder.inttoptr(address, ir.IntType(8).as_pointer())
    hints = [ir.Constant(_INT32, hint) for hint in (0, 4 - level, 1)]  # to be read, kept, as data
    call(builder, "llvm.prefetch.p0", ir.VoidType(), [pointer, *hints])


prefetch = emitted(types.void, types.int64)(prefetch_line)


@emitted(types.float32, types.int32)
def float_of_bits(builder: ir.IRBuilder, bits: Any) -> Any:
    """The float32 with these 32 bits."""
    return builder.bitcast(bits, _FLOAT)


@emitted(types.void, types.int64, types.int64)
def clear(builder: ir.IRBuilder, address: Any, size: Any) -> None:
    """Write `size` float32 zeros."""
    for ops, index in vectors_and_rest(builder, size):
        ops.store(ops.all(0), offset(builder, address, index, 4), 0)


def make_put(*, bfloat16: bool) -> Any:
    """put(numbers, factor, size, into): `size` float32 numbers times a factor."""
    element = 2 if bfloat16 else 4

    @emitted(types.void, types.int64, types.float32, types.int64, types.int64)
    def put(builder: ir.IRBuilder, numbers: Any, factor: Any, size: Any, into: Any) -> None:
        for ops, index in vectors_and_rest(builder, size):
            x = ops.load(offset(builder, numbers, index, 4), 0)
            made = builder.fmul(x, ops.spread(factor))
            ops.put(made, offset(builder, into, index, element), bfloat16=bfloat16)

    return put


def vectors_and_rest(builder: ir.IRBuilder, size: Any) -> Iterator[tuple[Lanes, Any]]:
    """Loops over `size` numbers, for the caller to fill: in vectors, and the rest one by one."""
    zero = ir.Constant(_INT64, 0)
    whole = builder.and_(size, ir.Constant(_INT64, -MOST_LANES))
    for lanes, start, stop in ((MOST_LANES, zero, whole), (1, whole, size)):
        step = ir.Constant(_INT64, lanes)
        with cgutils.for_range_slice(builder, start, stop, step, _INT64) as (index, _):
            yield Lanes(builder, lanes), index


def call(
    builder: ir.IRBuilder, name: str, result: Any, args: Sequence[Any], flags: Sequence[str] = ()
) -> Any:
    """Call one of LLVM's own functions."""
    known = builder.module.globals.get(name)
    kind = ir.FunctionType(result, [arg.type for arg in args])
    function = known or ir.Function(builder.module, kind, name)
    return builder.call(function, args, fastmath=flags)


def offset(builder: ir.IRBuilder, address: Any, count: Any, size: int) -> Any:
    """The address `count` times `size` bytes on."""
    return builder.add(address, builder.mul(count, ir.Constant(_INT64, size)))


class Lanes:
    """Loads, stores and products of vectors, at addresses plus a number of elements."""

    def __init__(self, builder: ir.IRBuilder, lanes: int) -> None:
        self._builder = builder
        self.lanes = lanes
        self.vector = ir.VectorType(_FLOAT, lanes)
        self.integers = ir.VectorType(_INT32, lanes)
        self.pairs = ir.VectorType(BFloat(), 2 * lanes)

    def load(self, address: Any, elements: int, *, bfloat16: bool = False) -> Any:
        if not bfloat16:
            return self._load(address, 4 * elements, self.vector, 4)
        halves = self._load(address, 2 * elements, ir.VectorType(_INT16, self.lanes), 2)
        wide = self._builder.zext(halves, self.integers)
        bits = self._builder.shl(wide, self.all_integer(16))
        return self._builder.bitcast(bits, self.vector)

    def load_halves(self, address: Any, elements: int) -> Any:
        """float16, as float32."""
        halves = self._load(address, 2 * elements, ir.VectorType(ir.HalfType(), self.lanes), 2)
        return self._builder.fpext(halves, self.vector)

    def load_integers(self, address: Any, elements: int) -> Any:
        return self._load(address, 4 * elements, self.integers, 4)

    def load_one(self, address: Any, elements: int) -> Any:
        """One float32, in all lanes."""
        return self.spread(self._load(address, 4 * elements, _FLOAT, 4))

    def spread(self, one: Any) -> Any:
        """One number in all lanes."""
        empty = ir.Constant(self.vector, ir.Undefined)
        first = self._builder.insert_element(empty, one, ir.Constant(_INT32, 0))
        return self._builder.shuffle_vector(first, empty, self.all_integer(0))

    def store(self, value: Any, address: Any, elements: int) -> None:
        pointer = self._pointer(address, 4 * elements, value.type)
        self._builder.store(value, pointer).align = 4

    def put(self, value: Any, address: Any, *, bfloat16: bool) -> None:
        """Store, bfloat16 rounded to the nearest, ties to even."""
        if not bfloat16:
            self.store(value, address, 0)
            return
        halves = self._rounded(value)
        self._builder.store(halves, self._pointer(address, 0, halves.type)).align = 2

    def _rounded(self, value: Any) -> Any:
        b = self._builder
        if has_bfloat16():
            return b.fptrunc(value, ir.VectorType(BFloat(), self.lanes))
        one, half, width = (self.all_integer(n) for n in (1, 0x7FFF, 16))
        bits = b.bitcast(value, self.integers)
        odd = b.and_(b.lshr(bits, width), one)
        rounded = b.lshr(b.add(bits, b.add(odd, half)), width)
        return b.trunc(rounded, ir.VectorType(_INT16, self.lanes))

    def multiply_add(self, x: Any, y: Any, z: Any) -> Any:
        product = self._builder.fmul(x, y, flags=("contract",))
        return self._builder.fadd(product, z, flags=("contract",))

    def root(self, x: Any) -> Any:
        """The square root of each."""
        return call(self._builder, f"llvm.sqrt.v{self.lanes}f32", self.vector, [x])

    def all(self, number: float) -> Any:
        """A number in all lanes."""
        return ir.Constant(self.vector, [float(number)] * self.lanes)

    def all_integer(self, number: int) -> Any:
        return ir.Constant(self.integers, [number] * self.lanes)

    def exp(self, x: Any) -> Any:
        """e^x of numbers up to 87, to float32's precision down to 2^-100. NaN stays NaN."""
        return self.exp2(self._builder.fmul(x, self.all(LOG2_E)), MOST_EXACT)

    def exp2(self, x: Any, degree: int) -> Any:
        """2^x of numbers below 127, down to 2^-100: 2^part as a polynomial for a part between -1/2
        and 1/2, times 2^whole, made of its bits: adding 1.5 x 2^23 leaves it in the lowest ones.
        NaN stays NaN, in the part.
        """
        b = self._builder
        least = self.all(_LEAST)
        x = b.select(b.fcmp_ordered(">", least, x), least, x)
        whole = b.fadd(x, self.all(1.5 * 2**23))
        part = b.fsub(x, b.fsub(whole, self.all(1.5 * 2**23)))
        power = self.all(_EXP2[degree])
        for factor in reversed(_EXP2[:degree]):
            power = self.multiply_add(power, part, self.all(factor))
        exponent = b.add(b.bitcast(whole, self.integers), self.all_integer(127))
        scale = b.bitcast(b.shl(exponent, self.all_integer(23)), self.vector)
        return b.fmul(power, scale)

    def exp2_coarse(self, x: Any) -> Any:
        """`exp2` with an error of 7e-5, in half the instructions, where the processor splits
        exponents by itself: 2^whole 2^part, for a part from 0 to 1. There x may be of any size, and
        too large ones give infinity.
        """
        if not (processor_has("avx512dq") and self.lanes == MOST_LANES):
            return self.exp2(x, _COARSE_DEGREE)
        b = self._builder
        least = self.all(_LEAST)
        x = b.select(b.fcmp_ordered(">", least, x), least, x)
        all_lanes, as_is = ir.Constant(_INT16, -1), ir.Constant(_INT32, 4)
        rounded_down = ir.Constant(_INT32, 1)
        operands = [x, rounded_down, self.all(0), all_lanes, as_is]
        part = call(b, "llvm.x86.avx512.mask.reduce.ps.512", self.vector, operands)
        power = self.all(_EXP2_COARSE[-1])
        for factor in reversed(_EXP2_COARSE[:-1]):
            power = self.multiply_add(power, part, self.all(factor))
        operands = [power, x, self.all(0), all_lanes, as_is]
        return call(b, "llvm.x86.avx512.mask.scalef.ps.512", self.vector, operands)

    def ratio_coarse(self, x: Any, y: Any) -> Any:
        """x / y, with an error of 2^-14 where the processor estimates inverses."""
        if not (processor_has("avx512f") and self.lanes == MOST_LANES):
            return self._builder.fdiv(x, y)
        operands = [y, self.all(0), ir.Constant(_INT16, -1)]
        inverse = call(self._builder, "llvm.x86.avx512.rcp14.ps.512", self.vector, operands)
        return self._builder.fmul(x, inverse)

    def larger(self, x: Any, y: Any) -> Any:
        return self._builder.select(self._builder.fcmp_ordered(">", x, y), x, y)

    def load_pairs(self, address: Any, elements: int) -> Any:
        """A vector of pairs of bfloat16 numbers, twice as many as lanes."""
        return self._load(address, 2 * elements, self.pairs, 2)

    def load_pair(self, address: Any, elements: int) -> Any:
        """One pair of bfloat16 numbers, in all lanes."""
        pair = self.spread(self._load(address, 2 * elements, _FLOAT, 2))
        return self._builder.bitcast(pair, self.pairs)

    def multiply_add_pairs(self, x: Any, y: Any, z: Any) -> Any:
        """Both products of a pair and z, in float32; where the processor has no such instruction,
        one after the other.
        """
        if has_bfloat16() and self.lanes == MOST_LANES:
            name = "llvm.x86.avx512bf16.dpbf16ps.512"
            return call(self._builder, name, self.vector, [z, x, y])
        for one, other in zip(self.widened(x), self.widened(y), strict=True):
            z = self.multiply_add(one, other, z)
        return z

    def widened(self, pairs: Any) -> tuple[Any, Any]:
        """The first and the second number of each pair."""
        b = self._builder
        bits = b.bitcast(pairs, self.integers)
        first, second = b.shl(bits, self.all_integer(16)), b.and_(bits, self.all_integer(-1 << 16))
        return b.bitcast(first, self.vector), b.bitcast(second, self.vector)

    def sum(self, x: Any) -> Any:
        """The sum over a vector's lanes."""
        return self._by_halves(x, self._builder.fadd)

    def sum_integers(self, x: Any) -> Any:
        """The sum over the lanes of a vector of int32."""
        return self._by_halves(x, self._builder.add)

    def largest_integer(self, x: Any) -> Any:
        """The largest of a vector's int32."""
        return self._by_halves(x, self.larger_integer)

    def larger_integer(self, x: Any, y: Any) -> Any:
        return self._builder.select(self._builder.icmp_signed(">", x, y), x, y)

    def largest(self, x: Any) -> Any:
        """The largest of a vector's lanes, none of them NaN."""
        return self._by_halves(x, self.larger)

    def _by_halves(self, x: Any, join: Callable[[Any, Any], Any]) -> Any:
        """LLVM's own reductions add up in any order, or mind NaN, one lane after the other."""
        b, width = self._builder, self.lanes
        while width > 1:
            width //= 2
            swapped = b.shuffle_vector(x, x, order_of([lane ^ width for lane in range(self.lanes)]))
            x = join(x, swapped)
        return b.extract_element(x, ir.Constant(_INT32, 0))

    def _load(self, address: Any, start: int, kind: Any, align: int) -> Any:
        value = self._builder.load(self._pointer(address, start, kind))
        value.align = align
        return value

    def _pointer(self, address: Any, start: int, kind: Any) -> Any:
        moved = self._builder.add(address, ir.Constant(_INT64, start))
        return self._builder.inttoptr(moved, kind.as_pointer())


def order_of(lanes: Sequence[int]) -> Any:
    """The lanes of a shuffle, by their numbers in two vectors side by side."""
    return ir.Constant(ir.VectorType(_INT32, len(lanes)), list(lanes))
