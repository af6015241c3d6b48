"""Products of a strip of queries with a tile of tokens, whose sums stay in registers.

What one lane multiplies at once is a unit, 32 bits wide: a pair of bfloat16 numbers on processors
that multiply pairs, else one float32 number.

    product(a, b):     unit 0   1   2 ...         b, a tile, a vector of lanes per unit:
                strip  +---+---+---+              - keys transposed: lanes are tokens
                of     | a | a | a |  each x b    - values: lanes are numbers of a value, units are
                rows   +---+---+---+                tokens, or pairs of tokens

Both are laid out by `make_transposed` and `paired` when a tile is read from the pool.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils

from radixlm.kernels.vectors import (
    MOST_LANES,
    Lanes,
    emitted,
    offset,
    order_of,
    processor_has,
    vectors_and_rest,
)

_INT64 = ir.IntType(64)
UNIT_BYTES = 4
# Of a vector that is one register.
VECTOR_LANES = MOST_LANES if processor_has("avx512f") else 8


def strip_vectors() -> int:
    """Vectors of lanes per row of a strip, such that six rows of sums stay in registers."""
    return 4 if processor_has("avx512f") else 1


Join = Callable[[Lanes, list[Any]], list[Any]]


class Strip:
    """Code for one product: sums of all rows and vectors, as variables that become registers.

    lanes: of a vector. widened: rows are float32, and units pairs.
    """

    def __init__(
        self,
        builder: ir.IRBuilder,
        rows: int,
        vectors: int,
        *,
        pairs: bool,
        lanes: int = MOST_LANES,
        widened: bool = False,
    ) -> None:
        self._builder, self._widened = builder, widened
        self._ops = ops = Lanes(builder, lanes)
        if pairs:
            self._load, self._load_one = ops.load_pairs, ops.load_pair
            self._multiply_add, self._numbers = ops.multiply_add_pairs, 2 * lanes
        else:
            self._load, self._load_one = ops.load, ops.load_one
            self._multiply_add, self._numbers = ops.multiply_add, lanes
        self._grid = [
            [cgutils.alloca_once_value(builder, ops.all(0)) for _ in range(vectors)]
            for _ in range(rows)
        ]

    def take_one(self, at: Any) -> None:
        """Begin all rows with the same numbers."""
        for v, _ in enumerate(self._grid[0]):
            value = self._ops.load(at, v * self._ops.lanes)
            for row in self._grid:
                self._builder.store(value, row[v])

    def add(self, rows: Sequence[Any], b: Any, b_stride: Any, unit: Any) -> None:
        """One unit of each row, at these addresses, times b's vectors of it."""
        builder = self._builder
        at = builder.add(b, builder.mul(unit, b_stride))
        vectors = [self._load(at, v * self._numbers) for v in range(len(self._grid[0]))]
        if self._widened:
            self._add_widened(rows, vectors, unit)
            return
        for address, row in zip(rows, self._grid, strict=True):
            factor = self._load_one(offset(builder, address, unit, UNIT_BYTES), 0)
            for vector, variable in zip(vectors, row, strict=True):
                total = builder.load(variable)
                builder.store(self._multiply_add(factor, vector, total), variable)

    def _add_widened(self, rows: Sequence[Any], vectors: Sequence[Any], unit: Any) -> None:
        """All first numbers of pairs, then all second ones: fewer registers than both at once."""
        builder, ops = self._builder, self._ops
        for place, numbers in enumerate(zip(*map(ops.widened, vectors), strict=True)):
            for address, row in zip(rows, self._grid, strict=True):
                factor = ops.load_one(offset(builder, address, unit, 2 * UNIT_BYTES), place)
                for number, variable in zip(numbers, row, strict=True):
                    total = builder.load(variable)
                    builder.store(ops.multiply_add(factor, number, total), variable)

    def sums(self) -> Iterator[list[Any]]:
        """List the vectors of each row."""
        for row in self._grid:
            yield [self._builder.load(variable) for variable in row]

    def store(
        self, rows: Sequence[Any], *, bfloat16: bool = False, join: Join | None = None
    ) -> None:
        """join: makes a row's vectors others before they are written."""
        for at, values in zip(rows, self.sums(), strict=True):
            for v, value in enumerate(join(self._ops, values) if join else values):
                here = ir.Constant(_INT64, v * self._ops.lanes * (2 if bfloat16 else 4))
                self._ops.put(value, self._builder.add(at, here), bfloat16=bfloat16)


def make_product(rows: int, vectors: int, *, pairs: bool) -> Any:
    """product(a, a_stride, b, b_stride, units, into, stride): of `rows` rows with `vectors` x 16
    lanes; into[r] = sum over u of a[r, u] b[u]. Strides are in bytes.
    """

    @emitted(types.void, *[types.int64] * 7)
    def product(builder: ir.IRBuilder, *values: Any) -> None:
        a, a_stride, b, b_stride, units, into, stride = values
        strip = Strip(builder, rows, vectors, pairs=pairs)
        a_rows = [offset(builder, a, a_stride, row) for row in range(rows)]
        into_rows = [offset(builder, into, stride, row) for row in range(rows)]
        with cgutils.for_range(builder, units) as loop:
            strip.add(a_rows, b, b_stride, loop.index)
        strip.store(into_rows)

    return product


def make_transposed(*, widen: bool) -> Any:
    """transposed(rows, start, into, stride): 16 units of 16 rows become 16 rows of 16 tokens.

    rows: address of 16 addresses; start: bytes into each. widen: read bfloat16, write float32.
    """

    @emitted(types.void, *[types.int64] * 4)
    def transposed(builder: ir.IRBuilder, rows: Any, start: Any, into: Any, stride: Any) -> None:
        ops = Lanes(builder, MOST_LANES)
        matrix = []
        for index in range(MOST_LANES):
            place = builder.add(rows, ir.Constant(_INT64, 8 * index))
            row = builder.load(builder.inttoptr(place, _INT64.as_pointer()))
            matrix.append(ops.load(builder.add(row, start), 0, bfloat16=widen))
        for index, vector in enumerate(turned(builder, matrix)):
            ops.store(vector, offset(builder, into, stride, index), 0)

    return transposed


def turned(builder: ir.IRBuilder, matrix: Sequence[Any]) -> list[Any]:
    """A square matrix transposed: blocks across the diagonal change places, ever smaller ones.

    A B  ->  A C   then within each block, and so on: log2(n) x n shuffles
    C D      B D
    """
    rows, size = list(matrix), len(matrix)
    lanes, half = range(size), size // 2
    while half:
        low = [lane if not lane & half else size + lane - half for lane in lanes]
        high = [lane + half if not lane & half else size + lane for lane in lanes]
        for index in lanes:
            if index & half:
                continue
            pair = rows[index], rows[index + half]
            for place, order in ((index, low), (index + half, high)):
                rows[place] = builder.shuffle_vector(*pair, order_of(order))
        half //= 2
    return rows


@emitted(types.void, *[types.int64] * 3)
def paired(builder: ir.IRBuilder, one: Any, other: Any, into: Any) -> None:
    """16 bfloat16 numbers of one token and of the next: 16 pairs."""
    ops = Lanes(builder, MOST_LANES)
    lower = builder.bitcast(ops.load(one, 0, bfloat16=True), ops.integers)
    upper = builder.bitcast(ops.load(other, 0, bfloat16=True), ops.integers)
    ops.store(builder.or_(builder.lshr(lower, ops.all_integer(16)), upper), into, 0)


@emitted(types.void, *[types.int64] * 3)
def widen(builder: ir.IRBuilder, numbers: Any, count: Any, into: Any) -> None:
    """Write bfloat16 numbers as float32."""
    for ops, index in vectors_and_rest(builder, count):
        made = ops.load(offset(builder, numbers, index, 2), 0, bfloat16=True)
        ops.store(made, offset(builder, into, index, 4), 0)


@emitted(types.void, *[types.int64] * 4)
def widen_pairs(builder: ir.IRBuilder, units: Any, count: Any, lanes: Any, into: Any) -> None:
    """Write units of pairs, `lanes` each, as twice as many units of one float32 number."""
    ops, zero = Lanes(builder, VECTOR_LANES), ir.Constant(_INT64, 0)
    step = ir.Constant(_INT64, VECTOR_LANES)
    with cgutils.for_range(builder, count) as unit:
        start = builder.mul(unit.index, lanes)
        with cgutils.for_range_slice(builder, zero, lanes, step, _INT64) as (lane, _):
            at = offset(builder, units, builder.add(start, lane), UNIT_BYTES)
            place = builder.add(builder.mul(start, ir.Constant(_INT64, 2)), lane)
            for vector in ops.widened(ops.load_pairs(at, 0)):
                ops.store(vector, offset(builder, into, place, UNIT_BYTES), 0)
                place = builder.add(place, lanes)
