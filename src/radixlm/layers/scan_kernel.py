"""Scans of `scans`, compiled: token by token, over parts of a head's state that stay in the nearest
cache.

    state    columns 0..63 | 64..127 |     one pass for each token: state * decay + key x change,
    key 0      s s s s s s |               what its query finds there, and what the next token's key
    key 1      s s s s s s |               reads, of which that one's change is made
    ...

Chunks as products of matrices, which is how GPUs do it, take more operations. Like this a state has
the same bits wherever a request was cut: several tokens are as many steps of one.
"""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable
from typing import Any, NamedTuple

from llvmlite import ir
from numba import types
from numba.core import cgutils

from radixlm.kernels.jit import compiled
from radixlm.kernels.strips import VECTOR_LANES
from radixlm.kernels.vectors import (
    Lanes,
    emitted,
    inner,
    lanes_of,
    offset,
    over_rows,
    prefetch_line,
    vectors_and_rest,
)
from radixlm.layers.step_states import through_parts

# Added to the squares of a key or query before it is brought to length 1.
LEAST = 1e-6
_INT64 = ir.IntType(64)
# The address of a part of a state, and the bytes from row to row.
_PART = types.UniTuple(types.int64, 2)
# Of a part of a state, and the sums of its columns that stay in registers.
_PART_BYTES, _MOST_VECTORS = 32 << 10, 6
# Tokens whose factors are made before all parts of a state go through them, and the most bytes of
# decays by channel among these: a thread's stack has them.
_AT_ONCE, _DECAY_BYTES = 64, 128 << 10
_FACTORS = 4
_FACTOR_BYTES = 4 * _FACTORS
# Tokens for which a part of a state is put together: where it lies, its rows are so far apart that
# they compete for the same places of the cache.
_LEAST_TOGETHER = 8

_Arguments = namedtuple(
    "_Arguments",
    "counters rows table heads repeats queries keys values stride decay beta skip states slot read",
)


class ScanShape(NamedTuple):
    """The sizes of a head's state. delta: tokens correct what their keys read, and keys and queries
    are brought to length 1. by_channel: each number of a key has a decay of its own.
    """

    key: int
    value: int
    delta: bool
    by_channel: bool = False

    @property
    def lanes(self) -> int:
        """Columns of a vector."""
        return min(lanes_of(self.value), VECTOR_LANES)

    @property
    def vectors(self) -> int:
        """Vectors of a part; all parts are alike."""
        room = _PART_BYTES // (4 * self.key * self.lanes)
        most, whole = max(1, min(_MOST_VECTORS, room)), self.value // self.lanes
        return next(count for count in range(most, 0, -1) if whole % count == 0)

    @property
    def part_bytes(self) -> int:
        """Bytes of a part that is put together; 0: it would be too much for a thread's stack."""
        size = 4 * self.key * self.vectors * self.lanes
        return size if size <= _PART_BYTES else 0

    @property
    def least_together(self) -> int:
        """Tokens from which on it is put together."""
        return _LEAST_TOGETHER if self.part_bytes else _AT_ONCE + 1


@compiled(_Arguments)
def scan_kernel(shape: ScanShape) -> Callable[[Any], None]:
    """rows: units of work, one for each head of each row of the table, see `StepStates`; slots of
    states have `slot` bytes. queries, keys, values: float32, `stride` bytes from token to token;
    `repeats` heads share a key. decay, beta, read: of tokens and heads, contiguous, see
    `ScanInputs`. skip: 0 if there is none.
    """
    key_bytes, value_bytes = 4 * shape.key, 4 * shape.value
    width = 4 * shape.vectors * shape.lanes
    decay_bytes = key_bytes if shape.by_channel else 4
    at_once = max(1, min(_AT_ONCE, _DECAY_BYTES // key_bytes))
    prepare, fetch, keep = _make_prepare(shape, decay_bytes), _make_fetch(shape), _make_keep(shape)
    find, step, move = _make_find(shape), _make_step(shape), _make_move(shape)
    of_factors, of_found = _room(at_once * _FACTOR_BYTES), _room(width)
    of_decays = _room(at_once * key_bytes if shape.by_channel else 4)
    of_part, least = _room(shape.part_bytes or 4), shape.least_together

    @inner
    def scan_part(args: _Arguments, head: int, first: int, stop: int, slot: int, copy: int) -> None:
        state = args.states + slot * args.slot + head * shape.key * value_bytes
        factors, decays, found, part = of_factors(), of_decays(), of_found(), of_part()
        read_bytes = args.heads * value_bytes
        for begin in range(first, stop, at_once):
            count, at = min(stop - begin, at_once), head // args.repeats * key_bytes
            at += begin * args.stride
            queries, keys = args.queries + at, args.keys + at
            prepare(args, head, begin, count, factors, decays)
            for column in range(0, value_bytes, width):
                values = args.values + begin * args.stride + head * value_bytes + column
                read = args.read + (begin * args.heads + head) * value_bytes + column
                its = state + column, value_bytes
                if count >= least:
                    move(its, (part, width))
                    its = part, width
                find(its, keys, decays, found)
                for t in range(count):
                    by, after = t * args.stride, min(t + 1, count - 1)
                    if column == 0:
                        ahead, later = by + _AT_ONCE * args.stride, (t + _AT_ONCE) * read_bytes
                        fetch(keys + ahead, queries + ahead, values + ahead, read + later)
                    step(
                        its,
                        (queries + by, keys + by, keys + after * args.stride, values + by),
                        factors + t * _FACTOR_BYTES,
                        (decays + t * decay_bytes, decays + after * decay_bytes),
                        found,
                        read + t * read_bytes,
                    )
                if count >= least:
                    move(its, (state + column, value_bytes))

        if copy >= 0:
            keep(state, args.states + copy * args.slot + head * shape.key * value_bytes)

    through = through_parts(scan_part)

    @inner
    def scan(args: _Arguments, unit: int) -> None:
        through(args, unit // args.heads, unit % args.heads)

    return over_rows(scan, 1)


def _room(size: int) -> Any:
    """room(): the address of `size` bytes, for as long as the function that asks runs."""

    @emitted(types.int64)
    def room(builder: ir.IRBuilder) -> Any:
        # An array it would fill with zeros, byte by byte.
        at = cgutils.alloca_once(builder, ir.IntType(8), ir.Constant(_INT64, size))
        at.align = 64
        return builder.ptrtoint(at, _INT64)

    return room


def _make_prepare(shape: ScanShape, decay_bytes: int) -> Any:
    """prepare(args, head, begin, count, factors, decays): those of some tokens."""
    make_factors, fade = _make_factors(shape), _make_fade(shape.key if shape.by_channel else 0)
    key_bytes = 4 * shape.key

    @inner
    def prepare(
        args: _Arguments, head: int, begin: int, count: int, factors: int, decays: int
    ) -> None:
        key_head, skip = head // args.repeats * key_bytes, args.skip + 4 * head * (args.skip != 0)
        for t in range(count):
            number, by = (begin + t) * args.heads + head, (begin + t) * args.stride + key_head
            queries, keys = args.queries + by, args.keys + by
            decay, beta = args.decay + number * decay_bytes, args.beta + 4 * number
            make_factors(queries, keys, decay, beta, skip, factors + t * _FACTOR_BYTES)
            fade(decay, decays + t * decay_bytes)

    return prepare


def _make_factors(shape: ScanShape) -> Any:
    """factors(queries, keys, decay, beta, skip, into): of a token's decay, of what its key finds
    (without corrections: of its values, in what it reads), of its change, of what it reads.
    """

    @emitted(types.void, *[types.int64] * 6)
    def factors(builder: ir.IRBuilder, *given: Any) -> None:
        queries, keys, decay, beta, skip, into = given
        one = Lanes(builder, 1)
        left, beta = one.exp(one.load(decay, 0)), one.load(beta, 0)
        if shape.delta:
            key, query = (_inverse_length(builder, each, shape.key) for each in (keys, queries))
            of_found = key if shape.by_channel else builder.fmul(left, key)
            query = builder.fmul(query, one.all(shape.key**-0.5))
            made = left, of_found, builder.fmul(beta, key), query
        else:
            skips = cgutils.alloca_once_value(builder, one.all(0))
            with builder.if_then(builder.icmp_signed("!=", skip, ir.Constant(_INT64, 0))):
                builder.store(one.load(skip, 0), skips)
            made = left, builder.load(skips), beta, one.all(1)
        for place, factor in enumerate(made):
            one.store(factor, into, place)

    return factors


def _inverse_length(builder: ir.IRBuilder, x: Any, size: int) -> Any:
    """One over the length of `size` numbers."""
    ops, one = Lanes(builder, min(lanes_of(size), VECTOR_LANES)), Lanes(builder, 1)
    total = ops.all(0)
    for place in range(0, size, ops.lanes):
        number = ops.load(x, place)
        total = ops.multiply_add(number, number, total)
    squares = builder.fadd(one.spread(ops.sum(total)), one.all(LEAST))
    return builder.fdiv(one.all(1), one.root(squares))


def _make_fade(size: int) -> Any:
    """fade(decay, into): a token's decays of `size` channels, of their logarithms."""

    @emitted(types.void, types.int64, types.int64)
    def fade(builder: ir.IRBuilder, decay: Any, into: Any) -> None:
        if size:
            for ops, index in vectors_and_rest(builder, ir.Constant(_INT64, size)):
                read, at = (offset(builder, each, index, 4) for each in (decay, into))
                ops.store(ops.exp(ops.load(read, 0)), at, 0)

    return fade


class _StatePart:
    """Code for one pass over a part of a state."""

    def __init__(self, builder: ir.IRBuilder, shape: ScanShape) -> None:
        self._builder, self._shape = builder, shape
        self.ops = Lanes(builder, shape.lanes)

    def sums(self) -> list[Any]:
        zero = self.ops.all(0)
        return [cgutils.alloca_once_value(self._builder, zero) for _ in range(self._shape.vectors)]

    def load(self, address: Any) -> list[Any]:
        return [self.ops.load(address, v * self.ops.lanes) for v in range(self._shape.vectors)]

    def store(self, vectors: list[Any], address: Any) -> None:
        for v, vector in enumerate(vectors):
            self.ops.store(vector, address, v * self.ops.lanes)

    def add(self, factor: Any, vectors: list[Any], sums: list[Any]) -> None:
        for vector, total in zip(vectors, sums, strict=True):
            made = self.ops.multiply_add(factor, vector, self._builder.load(total))
            self._builder.store(made, total)

    def one(self, address: Any, index: Any) -> Any:
        """The number of a key or query, in all lanes."""
        return self.ops.load_one(offset(self._builder, address, index, 4), 0)

    def faded(self, keys: Any, decays: Any, index: Any) -> Any:
        """A key's number, which reads the state as it is once it has faded."""
        key = self.one(keys, index)
        if self._shape.by_channel:
            key = self._builder.fmul(key, self.one(decays, index))
        return key


def _make_fetch(shape: ScanShape) -> Any:
    """fetch(keys, queries, values, read): bring near what a later token needs, which a head has in
    pages that no other token of it is in.
    """

    @emitted(types.void, *[types.int64] * 4)
    def fetch(builder: ir.IRBuilder, *addresses: Any) -> None:
        sizes = shape.key, shape.key, shape.value, shape.value
        for address, size in zip(addresses, sizes, strict=True):
            for line in range(0, 4 * size, 64):
                prefetch_line(builder, builder.add(address, ir.Constant(_INT64, line)))

    return fetch


def _make_move(shape: ScanShape) -> Any:
    """move(part, into): a part of a state. Each is an address and the bytes from row to row."""

    @emitted(types.void, _PART, _PART)
    def move(builder: ir.IRBuilder, *both: Any) -> None:
        part = _StatePart(builder, shape)
        with cgutils.for_range(builder, ir.Constant(_INT64, shape.key)) as loop:
            source, into = (_row(builder, each, loop.index) for each in both)
            part.store(part.load(source), into)

    return move


def _make_keep(shape: ScanShape) -> Any:
    """keep(state, into): a copy of a head's state."""

    @emitted(types.void, types.int64, types.int64)
    def keep(builder: ir.IRBuilder, *both: Any) -> None:
        for ops, index in vectors_and_rest(builder, ir.Constant(_INT64, shape.key * shape.value)):
            source, into = (offset(builder, each, index, 4) for each in both)
            ops.store(ops.load(source, 0), into, 0)

    return keep


def _row(builder: ir.IRBuilder, part: Any, index: Any) -> Any:
    """The address of a row of a part of a state."""
    address, row_bytes = cgutils.unpack_tuple(builder, part)
    return builder.add(address, builder.mul(index, row_bytes))


def _make_find(shape: ScanShape) -> Any:
    """find(part, keys, decays, found): what a token's key reads in a part of the state."""

    @emitted(types.void, _PART, *[types.int64] * 3)
    def find(builder: ir.IRBuilder, state: Any, keys: Any, decays: Any, found: Any) -> None:
        if shape.delta:
            part = _StatePart(builder, shape)
            sums = part.sums()
            with cgutils.for_range(builder, ir.Constant(_INT64, shape.key)) as loop:
                at = _row(builder, state, loop.index)
                part.add(part.faded(keys, decays, loop.index), part.load(at), sums)
            part.store([builder.load(total) for total in sums], found)

    return find


def _make_step(shape: ScanShape) -> Any:
    """step(part, (queries, keys, keys after, values), factors, (decays, decays after), found,
    read): takes one token through a part of the state. found: what its key reads there, before;
    what the next token's key does, after.
    """
    four, two = (types.UniTuple(types.int64, count) for count in (4, 2))

    @emitted(types.void, _PART, four, types.int64, two, types.int64, types.int64)
    def step(builder: ir.IRBuilder, *given: Any) -> None:
        state, inputs, factors, of_decays, found, read = given
        queries, keys, after, values = cgutils.unpack_tuple(builder, inputs)
        decays, decays_after = cgutils.unpack_tuple(builder, of_decays)
        part = _StatePart(builder, shape)
        ops, values = part.ops, part.load(values)
        left, of_found, of_change, of_read = (ops.load_one(factors, n) for n in range(_FACTORS))
        changes = values
        if shape.delta:
            wrong = [builder.fmul(each, of_found) for each in part.load(found)]
            changes = [builder.fsub(*pair) for pair in zip(values, wrong, strict=True)]
        changes = [builder.fmul(each, of_change) for each in changes]
        reads, finds = part.sums(), part.sums()
        with cgutils.for_range(builder, ir.Constant(_INT64, shape.key)) as loop:
            at = _row(builder, state, loop.index)
            key = part.one(keys, loop.index)
            decay = part.one(decays, loop.index) if shape.by_channel else left
            faded = [builder.fmul(each, decay) for each in part.load(at)]
            made = [ops.multiply_add(key, *pair) for pair in zip(changes, faded, strict=True)]
            part.store(made, at)
            part.add(part.one(queries, loop.index), made, reads)
            if shape.delta:
                part.add(part.faded(after, decays_after, loop.index), made, finds)
        made = [builder.fmul(builder.load(total), of_read) for total in reads]
        if shape.delta:
            part.store([builder.load(total) for total in finds], found)
        else:
            skipped = zip(values, made, strict=True)
            made = [ops.multiply_add(of_found, *pair) for pair in skipped]
        part.store(made, read)

    return step
