"""Vector instructions for numba: what its own loops over 64 numbers do not become.

Addresses are int64. A vector is `lanes` numbers; bfloat16 is the upper half of a float32.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

_INT64, _INT32, _INT16, _FLOAT = ir.IntType(64), ir.IntType(32), ir.IntType(16), ir.FloatType()
MOST_LANES = 16
_LOG2_E = math.log2(math.e)
# Exponents of 2 below this count as this: far from what matters, and from denormal numbers, which
# make every product with them slow.
_LEAST = -100
_EXP2 = tuple(math.log(2.0) ** k / math.factorial(k) for k in range(7))


def lanes_of(size: int) -> int:
    """The most numbers a vector may hold when `size` numbers are to be whole vectors."""
    lanes = MOST_LANES
    while size % lanes:
        lanes //= 2
    return lanes


@intrinsic  # type: ignore[untyped-decorator]
def as_pointer(_context: Any, _address: Any) -> Any:
    """The address as a pointer, for `carray`."""

    def build(_target: Any, builder: ir.IRBuilder, _signature: Any, args: Sequence[Any]) -> Any:
        return builder.inttoptr(args[0], ir.IntType(8).as_pointer())

    return types.voidptr(types.int64), build


@intrinsic  # type: ignore[untyped-decorator]
def fetch_add(_context: Any, _address: Any) -> Any:
    """Count an int64 up by one, whichever threads do so at once; what it was before."""

    def build(_target: Any, builder: ir.IRBuilder, _signature: Any, args: Sequence[Any]) -> Any:
        counter = builder.inttoptr(args[0], _INT64.as_pointer())
        return builder.atomic_rmw("add", counter, ir.Constant(_INT64, 1), "monotonic")

    return types.int64(types.int64), build


@intrinsic  # type: ignore[untyped-decorator]
def prefetch(_context: Any, _address: Any) -> Any:
    """Have the cache line at an address fetched; nobody waits for it."""

    def build(target: Any, builder: ir.IRBuilder, _signature: Any, args: Sequence[Any]) -> Any:
        bytes_ = ir.IntType(8).as_pointer()
        kind = ir.FunctionType(ir.VoidType(), [bytes_, _INT32, _INT32, _INT32])
        known = builder.module.globals.get("llvm.prefetch.p0")
        function = known or ir.Function(builder.module, kind, "llvm.prefetch.p0")
        hints = [ir.Constant(_INT32, hint) for hint in (0, 3, 1)]  # to be read, kept, as data
        builder.call(function, [builder.inttoptr(args[0], bytes_), *hints])
        return target.get_dummy_value()

    return types.void(types.int64), build


@intrinsic  # type: ignore[untyped-decorator]
def float_of_bits(_context: Any, _bits: Any) -> Any:
    """The float32 with these 32 bits."""

    def build(_target: Any, builder: ir.IRBuilder, _signature: Any, args: Sequence[Any]) -> Any:
        return builder.bitcast(args[0], _FLOAT)

    return types.float32(types.int32), build


@intrinsic  # type: ignore[untyped-decorator]
def bits_of_float(_context: Any, _number: Any) -> Any:
    """The 32 bits of a float32."""

    def build(_target: Any, builder: ir.IRBuilder, _signature: Any, args: Sequence[Any]) -> Any:
        return builder.bitcast(args[0], _INT32)

    return types.int32(types.float32), build


class Lanes:
    """Loads, stores and products of vectors, at addresses plus a number of elements."""

    def __init__(self, builder: ir.IRBuilder, lanes: int) -> None:
        self._builder = builder
        self.lanes = lanes
        self.vector = ir.VectorType(_FLOAT, lanes)

    def load(self, address: Any, elements: int, *, bfloat16: bool = False) -> Any:
        if not bfloat16:
            return self._load(address, 4 * elements, self.vector, 4)
        halves = self._load(address, 2 * elements, ir.VectorType(_INT16, self.lanes), 2)
        wide = ir.VectorType(_INT32, self.lanes)
        bits = self._builder.shl(
            self._builder.zext(halves, wide), ir.Constant(wide, [16] * self.lanes)
        )
        return self._builder.bitcast(bits, self.vector)

    def load_one(self, address: Any, elements: int) -> Any:
        """One float32, in all lanes."""
        return self.spread(self._load(address, 4 * elements, _FLOAT, 4))

    def spread(self, one: Any) -> Any:
        """One number in all lanes."""
        empty = ir.Constant(self.vector, ir.Undefined)
        first = self._builder.insert_element(empty, one, ir.Constant(_INT32, 0))
        everywhere = ir.Constant(ir.VectorType(_INT32, self.lanes), [0] * self.lanes)
        return self._builder.shuffle_vector(first, empty, everywhere)

    def store(self, value: Any, address: Any, elements: int) -> None:
        pointer = self._pointer(address, 4 * elements, value.type)
        self._builder.store(value, pointer).align = 4

    def store_bfloat16(self, value: Any, address: Any, elements: int) -> None:
        """To the nearest, ties to even."""
        b = self._builder
        wide = ir.VectorType(_INT32, self.lanes)
        number = {n: ir.Constant(wide, [n] * self.lanes) for n in (1, 16, 0x7FFF)}
        bits = b.bitcast(value, wide)
        odd = b.and_(b.lshr(bits, number[16]), number[1])
        rounded = b.lshr(b.add(bits, b.add(odd, number[0x7FFF])), number[16])
        halves = b.trunc(rounded, ir.VectorType(_INT16, self.lanes))
        b.store(halves, self._pointer(address, 2 * elements, halves.type)).align = 2

    def put(self, value: Any, address: Any, *, bfloat16: bool) -> None:
        if bfloat16:
            self.store_bfloat16(value, address, 0)
        else:
            self.store(value, address, 0)

    def multiply_add(self, x: Any, y: Any, z: Any) -> Any:
        product = self._builder.fmul(x, y, flags=("contract",))
        return self._builder.fadd(product, z, flags=("contract",))

    def all(self, number: float) -> Any:
        """A number in all lanes."""
        return ir.Constant(self.vector, [float(number)] * self.lanes)

    def exp(self, x: Any) -> Any:
        """e^x of numbers <= 0, to float32's precision down to 2^-100: 2^whole by its bits, 2^part
        as a polynomial, for a part between -1/2 and 1/2. NaN stays NaN, in the part.
        """
        b = self._builder
        integers = ir.VectorType(_INT32, self.lanes)
        y = b.fmul(x, self.all(_LOG2_E))
        number = b.select(b.fcmp_ordered(">", y, self.all(_LEAST)), y, self.all(_LEAST))
        y = b.select(b.fcmp_ordered("<", y, self.all(_LEAST)), self.all(_LEAST), y)
        whole = b.fptosi(b.fsub(number, self.all(0.5)), integers)
        part = b.fsub(y, b.sitofp(whole, self.vector))
        power = self.all(_EXP2[-1])
        for factor in reversed(_EXP2[:-1]):
            power = self.multiply_add(power, part, self.all(factor))
        exponent = b.add(whole, ir.Constant(integers, [127] * self.lanes))
        bits = b.shl(exponent, ir.Constant(integers, [23] * self.lanes))
        return b.fmul(power, b.bitcast(bits, self.vector))

    def larger(self, x: Any, y: Any) -> Any:
        return self._builder.select(self._builder.fcmp_ordered(">", x, y), x, y)

    def sum(self, x: Any) -> Any:
        """The sum over a vector's lanes."""
        zero = ir.Constant(_FLOAT, -0.0)
        return self._reduced("fadd", [zero, x], ("reassoc", "nsz", "contract"))

    def largest(self, x: Any) -> Any:
        """The largest of a vector's lanes."""
        return self._reduced("fmax", [x], ("nsz",))

    def _reduced(self, operation: str, args: Sequence[Any], flags: Sequence[str]) -> Any:
        name = f"llvm.vector.reduce.{operation}.v{self.lanes}f32"
        known = self._builder.module.globals.get(name)
        kind = ir.FunctionType(_FLOAT, [arg.type for arg in args])
        function = known or ir.Function(self._builder.module, kind, name)
        return self._builder.call(function, args, fastmath=flags)

    def moved(self, address: Any, stride: Any, times: int) -> Any:
        """The address of a row of float32, `stride` elements long."""
        return self._builder.add(address, self._builder.mul(stride, ir.Constant(_INT64, 4 * times)))

    def _load(self, address: Any, offset: int, kind: Any, align: int) -> Any:
        value = self._builder.load(self._pointer(address, offset, kind))
        value.align = align
        return value

    def _pointer(self, address: Any, offset: int, kind: Any) -> Any:
        moved = self._builder.add(address, ir.Constant(_INT64, offset))
        return self._builder.inttoptr(moved, kind.as_pointer())


def make_dots(queries: int, head_dim: int, tokens: int, *, bfloat16: bool) -> Callable[..., Any]:
    """dots(q, keys, scores, stride): scores[i * stride + t] = q[i] . keys[t].

    q: address of (queries, head_dim) float32; keys: addresses of `tokens` keys.
    """
    addresses = types.UniTuple(types.int64, tokens)

    @intrinsic  # type: ignore[untyped-decorator]
    def dots(_context: Any, _q: Any, _keys: Any, _scores: Any, _stride: Any) -> Any:
        def build(target: Any, builder: ir.IRBuilder, _signature: Any, args: Sequence[Any]) -> Any:
            q, keys, scores, stride = args
            ops = Lanes(builder, lanes_of(head_dim))
            at = [builder.extract_value(keys, t) for t in range(tokens)]
            zero = ir.Constant(ops.vector, [0.0] * ops.lanes)
            sums = [[zero] * queries for _ in range(tokens)]
            for d in range(0, head_dim, ops.lanes):
                part = [ops.load(q, i * head_dim + d) for i in range(queries)]
                for t in range(tokens):
                    key = ops.load(at[t], d, bfloat16=bfloat16)
                    sums[t] = [ops.multiply_add(part[i], key, sums[t][i]) for i in range(queries)]
            for i in range(queries):
                row = ops.moved(scores, stride, i)
                for t in range(tokens):
                    ops.store(ops.sum(sums[t][i]), row, t)
            return target.get_dummy_value()

        return types.void(types.int64, addresses, types.int64, types.int64), build

    return dots  # type: ignore[no-any-return]


def make_mix(queries: int, head_dim: int, tokens: int, *, bfloat16: bool) -> Callable[..., Any]:
    """mix(weights, stride, values, out): out[i] += sum over t of weights[i * stride + t] values[t].

    out: address of (queries, head_dim) float32; values: addresses of `tokens` values.
    """
    addresses = types.UniTuple(types.int64, tokens)

    @intrinsic  # type: ignore[untyped-decorator]
    def mix(_context: Any, _weights: Any, _stride: Any, _values: Any, _out: Any) -> Any:
        def build(target: Any, builder: ir.IRBuilder, _signature: Any, args: Sequence[Any]) -> Any:
            weights, stride, values, out = args
            ops = Lanes(builder, lanes_of(head_dim))
            at = [builder.extract_value(values, t) for t in range(tokens)]
            rows = [ops.moved(weights, stride, i) for i in range(queries)]
            factors = [[ops.load_one(row, t) for t in range(tokens)] for row in rows]
            for d in range(0, head_dim, ops.lanes):
                sums = [ops.load(out, i * head_dim + d) for i in range(queries)]
                for t in range(tokens):
                    value = ops.load(at[t], d, bfloat16=bfloat16)
                    sums = [ops.multiply_add(factors[i][t], value, sums[i]) for i in range(queries)]
                for i in range(queries):
                    ops.store(sums[i], out, i * head_dim + d)
            return target.get_dummy_value()

        return types.void(types.int64, types.int64, addresses, types.int64), build

    return mix  # type: ignore[no-any-return]


def make_exponentials(vectors: int) -> Callable[..., Any]:
    """exponentials(row, top): the next numbers of a row become e^(x - top); returns their sum.

    row: address of vectors x 16 float32, none above `top`.
    """

    @intrinsic  # type: ignore[untyped-decorator]
    def exponentials(_context: Any, _row: Any, _top: Any) -> Any:
        def build(_target: Any, builder: ir.IRBuilder, _signature: Any, args: Sequence[Any]) -> Any:
            row, top = args
            ops = Lanes(builder, MOST_LANES)
            tops = ops.spread(top)
            total = ops.all(0)
            for index in range(vectors):
                x = ops.load(row, index * ops.lanes)
                weights = ops.exp(builder.fsub(x, tops))
                ops.store(weights, row, index * ops.lanes)
                total = builder.fadd(total, weights)
            return ops.sum(total)

        return types.float32(types.int64, types.float32), build

    return exponentials  # type: ignore[no-any-return]


def make_largest(vectors: int) -> Callable[..., Any]:
    """largest(row): of the next vectors x 16 float32 at an address."""

    @intrinsic  # type: ignore[untyped-decorator]
    def largest(_context: Any, _row: Any) -> Any:
        def build(_target: Any, builder: ir.IRBuilder, _signature: Any, args: Sequence[Any]) -> Any:
            ops = Lanes(builder, MOST_LANES)
            found = ops.load(args[0], 0)
            for index in range(1, vectors):
                found = ops.larger(found, ops.load(args[0], index * ops.lanes))
            return ops.largest(found)

        return types.float32(types.int64), build

    return largest  # type: ignore[no-any-return]


@intrinsic  # type: ignore[untyped-decorator]
def widen(_context: Any, _halves: Any, _row: Any) -> Any:
    """Write 16 bfloat16 numbers as float32; two addresses."""

    def build(target: Any, builder: ir.IRBuilder, _signature: Any, args: Sequence[Any]) -> Any:
        ops = Lanes(builder, MOST_LANES)
        ops.store(ops.load(args[0], 0, bfloat16=True), args[1], 0)
        return target.get_dummy_value()

    return types.void(types.int64, types.int64), build


@intrinsic  # type: ignore[untyped-decorator]
def narrow(_context: Any, _row: Any, _factor: Any, _halves: Any) -> Any:
    """Write 16 float32 numbers, times a factor, rounded to bfloat16."""

    def build(target: Any, builder: ir.IRBuilder, _signature: Any, args: Sequence[Any]) -> Any:
        row, factor, halves = args
        ops = Lanes(builder, MOST_LANES)
        ops.store_bfloat16(builder.fmul(ops.load(row, 0), ops.spread(factor)), halves, 0)
        return target.get_dummy_value()

    return types.void(types.int64, types.float32, types.int64), build
