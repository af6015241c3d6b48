"""What the processor has that compiled code may use."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import config
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
    told = config.CPU_FEATURES
    features = get_host_cpu_features() if told is None else told
    return f"+{feature}" in features.split(",")


def has_bfloat16() -> bool:
    """Whether it rounds to bfloat16, and multiplies pairs of such numbers, by itself."""
    return processor_has("avx512bf16")


_INT64, _INT32, _INT16, _FLOAT = ir.IntType(64), ir.IntType(32), ir.IntType(16), ir.FloatType()
# For numba. No flag that lets the compiler believe that there are no NaN and no infinities: broken
# weights are to be seen in the logits.
_MATH = {"reassoc", "contract", "nsz", "arcp"}
FAST: dict[str, Any] = {
    "fastmath": _MATH,
    "boundscheck": False,
    "error_model": "numpy",
    # Only compiled code calls it: ways in from Python and from C take an eighth of the time.
    "no_cpython_wrapper": True,
    "no_cfunc_wrapper": True,
}
MOST_LANES = 16
LOG2_E = math.log2(math.e)
# Exponents of 2 below this count as this: far from what matters, and from denormal numbers, which
# make every product with them slow.
_LEAST = -100
# Taylor: the error of degree 6 is 1e-7, of degree 4 4e-5.
MOST_EXACT = 6
_EXP2 = tuple(math.log(2.0) ** k / math.factorial(k) for k in range(7))


def lanes_of(size: int) -> int:
    """The most numbers a vector may hold when `size` numbers are to be whole vectors."""
    lanes = MOST_LANES
    while size % lanes:
        lanes //= 2
    return lanes


def _numbers_at(number: Any) -> Callable[[int], Any]:
    """An address as the numbers that begin there: numba's arrays take it far longer to compile."""

    @intrinsic  # type: ignore[untyped-decorator]
    def numbers_at(_context: Any, _address: Any) -> Any:
        def build(target: Any, builder: ir.IRBuilder, signature: Any, args: Sequence[Any]) -> Any:
            return builder.inttoptr(args[0], target.get_value_type(signature.return_type))

        return types.CPointer(number)(types.int64), build

    return numbers_at  # type: ignore[no-any-return]


words, integers = _numbers_at(types.int64), _numbers_at(types.int32)
floats, halves = _numbers_at(types.float32), _numbers_at(types.uint16)


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
        prefetch_line(builder, args[0])
        return target.get_dummy_value()

    return types.void(types.int64), build


@intrinsic  # type: ignore[untyped-decorator]
def float_of_bits(_context: Any, _bits: Any) -> Any:
    """The float32 with these 32 bits."""

    def build(_target: Any, builder: ir.IRBuilder, _signature: Any, args: Sequence[Any]) -> Any:
        return builder.bitcast(args[0], _FLOAT)

    return types.float32(types.int32), build


def call(
    builder: ir.IRBuilder, name: str, result: Any, args: Sequence[Any], flags: Sequence[str] = ()
) -> Any:
    """Call one of LLVM's own functions."""
    known = builder.module.globals.get(name)
    kind = ir.FunctionType(result, [arg.type for arg in args])
    function = known or ir.Function(builder.module, kind, name)
    return builder.call(function, args, fastmath=flags)


def prefetch_line(builder: ir.IRBuilder, address: Any) -> None:
    """See `prefetch`."""
    pointer = builder.inttoptr(address, ir.IntType(8).as_pointer())
    hints = [ir.Constant(_INT32, hint) for hint in (0, 3, 1)]  # to be read, kept, as data
    call(builder, "llvm.prefetch.p0", ir.VoidType(), [pointer, *hints])


class Lanes:
    """Loads, stores and products of vectors, at addresses plus a number of elements."""

    def __init__(self, builder: ir.IRBuilder, lanes: int) -> None:
        self._builder = builder
        self.lanes = lanes
        self.vector = ir.VectorType(_FLOAT, lanes)
        self.integers = ir.VectorType(_INT32, lanes)

    def load(self, address: Any, elements: int, *, bfloat16: bool = False) -> Any:
        if not bfloat16:
            return self._load(address, 4 * elements, self.vector, 4)
        halves = self._load(address, 2 * elements, ir.VectorType(_INT16, self.lanes), 2)
        wide = self._builder.zext(halves, self.integers)
        bits = self._builder.shl(wide, self.all_integer(16))
        return self._builder.bitcast(bits, self.vector)

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

    def store_bfloat16(self, value: Any, address: Any, elements: int) -> None:
        """To the nearest, ties to even."""
        b = self._builder
        if has_bfloat16():
            halves = b.fptrunc(value, ir.VectorType(BFloat(), self.lanes))
            b.store(halves, self._pointer(address, 2 * elements, halves.type)).align = 2
            return
        number = {n: self.all_integer(n) for n in (1, 16, 0x7FFF)}
        bits = b.bitcast(value, self.integers)
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

    def all_integer(self, number: int) -> Any:
        return ir.Constant(self.integers, [number] * self.lanes)

    def exp(self, x: Any) -> Any:
        """e^x of numbers <= 0, to float32's precision down to 2^-100. NaN stays NaN."""
        return self.exp2(self._builder.fmul(x, self.all(LOG2_E)), MOST_EXACT)

    def exp2(self, x: Any, degree: int) -> Any:
        """2^x of numbers <= 0, down to 2^-100: 2^part as a polynomial for a part between -1/2 and
        1/2, times 2^whole, made of its bits: adding 1.5 x 2^23 leaves it in the lowest ones. NaN
        stays NaN, in the part. (Taking that away again would round, but numba's flags would let
        the compiler take both away.)
        """
        b = self._builder
        least = self.all(_LEAST)
        x = b.select(b.fcmp_ordered(">", least, x), least, x)
        whole = b.fadd(x, self.all(1.5 * 2**23))
        rounded = call(b, f"llvm.rint.v{self.lanes}f32", self.vector, [x])
        part = b.fsub(x, rounded)
        power = self.all(_EXP2[degree])
        for factor in reversed(_EXP2[:degree]):
            power = self.multiply_add(power, part, self.all(factor))
        exponent = b.add(b.bitcast(whole, self.integers), self.all_integer(127))
        scale = b.bitcast(b.shl(exponent, self.all_integer(23)), self.vector)
        return b.fmul(power, scale)

    def larger(self, x: Any, y: Any) -> Any:
        return self._builder.select(self._builder.fcmp_ordered(">", x, y), x, y)

    def load_pairs(self, address: Any, elements: int) -> Any:
        """A vector of pairs of bfloat16 numbers, twice as many as lanes."""
        halves = ir.VectorType(BFloat(), 2 * self.lanes)
        return self._load(address, 2 * elements, halves, 2)

    def load_pair(self, address: Any) -> Any:
        """One pair of bfloat16 numbers, in all lanes."""
        pair = self.spread(self._load(address, 0, _FLOAT, 2))
        return self._builder.bitcast(pair, ir.VectorType(BFloat(), 2 * self.lanes))

    def multiply_add_pairs(self, x: Any, y: Any, z: Any) -> Any:
        """Of 16 lanes: both products of a pair and z, in float32."""
        name = "llvm.x86.avx512bf16.dpbf16ps.512"
        return call(self._builder, name, self.vector, [z, x, y])

    def sums(self, vectors: Sequence[Any]) -> Any:
        """The sum over each vector's lanes, as one short vector; a power of two of them, no more
        than lanes. Halves are added until there is one vector left, then within it:

            aaaa bbbb  ->  aabb  ->  with ccdd:  abcd
        """
        b, lanes, width, made = self._builder, range(self.lanes), self.lanes, list(vectors)
        while len(made) > 1:
            width //= 2
            low = [lane for lane in range(2 * self.lanes) if not lane & width]
            high = [lane + width for lane in low]
            halves = [
                [b.shuffle_vector(x, y, order_of(half)) for half in (low, high)]
                for x, y in zip(made[::2], made[1::2], strict=True)
            ]
            made = [b.fadd(*half) for half in halves]
        one, group = made[0], width
        while width > 1:
            width //= 2
            swapped = b.shuffle_vector(one, one, order_of([lane ^ width for lane in lanes]))
            one = b.fadd(one, swapped)
        return b.shuffle_vector(one, one, order_of(lanes[::group]))

    def sum(self, x: Any) -> Any:
        """The sum over a vector's lanes."""
        zero = ir.Constant(_FLOAT, -0.0)
        return self._reduced("fadd", [zero, x], ("reassoc", "nsz", "contract"))

    def largest(self, x: Any) -> Any:
        """The largest of a vector's lanes."""
        return self._reduced("fmax", [x], ("nsz",))

    def _reduced(self, operation: str, args: Sequence[Any], flags: Sequence[str]) -> Any:
        name = f"llvm.vector.reduce.{operation}.v{self.lanes}f32"
        return call(self._builder, name, _FLOAT, args, flags)

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


def order_of(lanes: Sequence[int]) -> Any:
    """Which lanes of two vectors, numbered through, a shuffled one has."""
    return ir.Constant(ir.VectorType(_INT32, len(lanes)), list(lanes))


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
            sums = [[ops.all(0)] * tokens for _ in range(queries)]
            for d in range(0, head_dim, ops.lanes):
                part = [ops.load(q, i * head_dim + d) for i in range(queries)]
                for t in range(tokens):
                    key = ops.load(at[t], d, bfloat16=bfloat16)
                    for i in range(queries):
                        sums[i][t] = ops.multiply_add(part[i], key, sums[i][t])
            for i in range(queries):
                row = ops.moved(scores, stride, i)
                if tokens <= ops.lanes:
                    ops.store(ops.sums(sums[i]), row, 0)
                else:
                    for t in range(tokens):
                        ops.store(ops.sum(sums[i][t]), row, t)
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
