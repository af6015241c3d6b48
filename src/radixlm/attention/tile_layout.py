"""A thread's scratch for attention in tiles, and how queries and a tile of the pool get into it."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils

from radixlm.attention.merge import STATE_BYTES, begin
from radixlm.kernels.amx import TILE_ROWS, TILE_UNITS
from radixlm.kernels.strips import UNIT_BYTES, make_transposed, paired, strip_vectors
from radixlm.kernels.vectors import (
    MOST_LANES,
    clear,
    emitted,
    float_of_bits,
    floats,
    halves,
    has_bfloat16,
    inner,
    integers,
    prefetch,
    words,
)

# Rows of queries whose sums stay in registers together, where AMX does not multiply them.
STRIP = 6
# Tokens; a whole number of a strip's vectors, and of AMX's tiles.
TILE = 512
LINE_BYTES = 64
# Of a row's weights, a vector of sums.
SUM_BYTES = 4 * MOST_LANES
_BLOCK_QUERIES = 384


class TileShape(NamedTuple):
    """queries: that share a key head, of one token. tiles: whether AMX multiplies. ordered: whether
    a context that is read in pieces, cut at tiles, is to give the same bits as read at once, which
    it does anyway where vectors multiply. coded: whether the pool is. cap: of scores, see
    `dots.capped`; 0: none.
    """

    queries: int
    head_dim: int
    bfloat16: bool
    tiles: bool
    ordered: bool = False
    coded: bool = False
    cap: float = 0.0

    @property
    def head_bytes(self) -> int:
        """The bytes of a query, a key or a value as the model has it."""
        return self.head_dim * (2 if self.bfloat16 else 4)

    @property
    def kept_bytes(self) -> int:
        """The bytes of a key or a value in the pool."""
        return self.head_dim if self.coded else self.head_bytes

    @property
    def block_tokens(self) -> int:
        """The most tokens of a block."""
        return max(1, _BLOCK_QUERIES // self.queries)

    @property
    def rows(self) -> int:
        """Queries of the largest block, in whole strips."""
        return -(-self.block_tokens * self.queries // self.strip) * self.strip

    @property
    def strip(self) -> int:
        """Rows of queries that meet a tile of the context together."""
        return 2 * TILE_ROWS if self.tiles else STRIP

    @property
    def vectors(self) -> int:
        """Vectors of scores that a strip computes together: the tokens of a panel of keys."""
        return 2 if self.tiles else strip_vectors()

    @property
    def pairs(self) -> bool:
        return self.tiles or (self.bfloat16 and has_bfloat16())

    @property
    def width(self) -> int:
        """Numbers of a value, in whole steps."""
        return -(-self.head_dim // self.step) * self.step

    @property
    def step(self) -> int:
        """Values have whole numbers of this many numbers, weights of this many tokens: vectors, or
        AMX's tiles of pairs.
        """
        return 2 * TILE_UNITS if self.tiles else MOST_LANES

    @property
    def units(self) -> int:
        """The units by which a query and a key are multiplied, one after the other; the last may be
        padded.
        """
        return self.width // 2 if self.pairs else self.width

    @property
    def score_bytes(self) -> int:
        """Bytes from one query's scores of a tile to the next one's. Powers of two would share the
        few places that the nearest cache has for addresses that far apart.
        """
        return TILE * UNIT_BYTES + LINE_BYTES

    @property
    def weight_bytes(self) -> int:
        """The same of weights."""
        return TILE * (2 if self.pairs else 4) + LINE_BYTES


class ScratchLayout(NamedTuple):
    """Bytes from the start of a thread's scratch. mixed, states: what a block has of its context so
    far, see `merge`. scores: of a strip; then what the strip has of a tile alone, with tile_states.
    tile_sums, sums, bases: where AMX multiplies, see `tile_strips`. rows: addresses of 16 keys,
    then their scales, if they have any.
    """

    keys: int
    values: int
    queries: int
    mixed: int
    states: int
    scores: int
    weights: int
    tile_sums: int
    tile_states: int
    rows: int
    sums: int
    bases: int
    end: int


def places_of(shape: TileShape) -> ScratchLayout:
    row = shape.width * UNIT_BYTES
    sizes = (
        TILE * row,
        TILE * row,
        shape.rows * row,
        shape.rows * row,
        shape.rows * STATE_BYTES,
        shape.strip * (shape.score_bytes + row),
        shape.strip * shape.weight_bytes,
        shape.strip * SUM_BYTES,
        shape.strip * STATE_BYTES,
        (8 + 4) * MOST_LANES,
        shape.rows * SUM_BYTES,
        shape.rows * 4,
    )
    starts = [0]
    for size in sizes:
        starts.append(starts[-1] + -(-size // 64) * 64)
    return ScratchLayout(*starts)


def make_take(shape: TileShape) -> Any:
    """take(q, stride, tokens, base): lay out a block's queries; nothing is read yet."""
    places, units, queries, head_dim = places_of(shape), shape.units, shape.queries, shape.head_dim
    width, bfloat16, pairs = shape.width, shape.bfloat16, shape.pairs
    element = 2 if bfloat16 else 4

    @inner
    def take(q: int, stride: int, tokens: int, base: int) -> None:
        for row in range(tokens * queries):
            read = q + row // queries * stride + row % queries * head_dim * element
            into = base + places.queries + row * units * UNIT_BYTES
            if pairs:
                copy_halves(read, head_dim, into, 2 * units)
            else:
                copy_floats(read, head_dim, into, units, bfloat16)
        rows = tokens * queries
        begin(base + places.mixed, base + places.states, rows, width)
        clear(base + places.sums, rows * MOST_LANES)

    return take


@inner
def fetch(pool: int, token_bytes: int, length: int, at: int, a: int, b: int) -> None:
    """Have `length` bytes of each of the tokens from a to b fetched, by the slots at an address."""
    slots = integers(at)
    for t in range(a, b):
        token = pool + np.int64(slots[t]) * token_bytes
        for line in range(0, length, 64):
            prefetch(token + line)


@emitted(types.void, *[types.int64] * 3)
def copy_bytes(builder: ir.IRBuilder, read: Any, size: Any, into: Any) -> None:
    """A loop in numba would copy one number at a time: it does not know that the places differ."""
    pointer = ir.IntType(8).as_pointer()
    places = (builder.inttoptr(address, pointer) for address in (into, read))
    cgutils.raw_memcpy(builder, *places, size, 1)


@inner
def copy_halves(read: int, count: int, into: int, width: int) -> None:
    """bfloat16 numbers, and zeros up to `width`."""
    copy_bytes(read, 2 * count, into)
    made = halves(into)
    for i in range(count, width):
        made[i] = 0


@inner
def copy_floats(read: int, count: int, into: int, width: int, bfloat16: bool) -> None:
    """float32 numbers, of bfloat16 ones if they are that, and zeros up to `width`."""
    made = floats(into)
    if bfloat16:
        numbers = halves(read)
        for i in range(count):
            made[i] = float_of_bits(np.int32(numbers[i]) << np.int32(16))
    else:
        copy_bytes(read, 4 * count, into)
    for i in range(count, width):
        made[i] = 0


def make_pack(shape: TileShape) -> Any:
    """pack(keys, values, scales, heads, slots, count, base): a tile of one head, laid out. keys,
    values, scales: of the head in the first slot; heads: of a token. `tile_codes` has the same for
    a pool that is coded.
    """
    places, kept = places_of(shape), shape.kept_bytes
    pack_keys, pack_values = _make_pack_keys(shape), _make_pack_values(shape)
    step = shape.step

    @inner
    def pack(
        keys: int, values: int, _scales: int, heads: int, at: int, count: int, base: int
    ) -> None:
        slots, token_bytes = integers(at), heads * kept
        rows = words(base + places.rows)
        for t in range(0, count, MOST_LANES):
            for index in range(MOST_LANES):
                rows[index] = keys + np.int64(slots[min(t + index, count - 1)]) * token_bytes
            pack_keys(base, t)
        for t in range(0, -(-count // step) * step, 2):
            one = values + np.int64(slots[min(t, count - 1)]) * token_bytes
            other = values + np.int64(slots[min(t + 1, count - 1)]) * token_bytes
            pack_values(one, other, base, t)

    return pack


def _make_pack_keys(shape: TileShape) -> Any:
    """pack_keys(base, t): 16 keys, at the addresses in scratch, as the tile's columns from t on.

    As many tokens as a strip is wide lie together, a panel, unit after unit: rows as long as the
    tile would share the cache's few places for addresses that many bytes apart.
    """
    places, units, head_dim = places_of(shape), shape.units, shape.head_dim
    pairs, bfloat16 = shape.pairs, shape.bfloat16
    transposed = make_transposed(widen=bfloat16 and not pairs)
    step = 32 if bfloat16 and not pairs else 64  # bytes of 16 units in the pool
    per_unit = 2 if pairs else 1
    panel = shape.vectors * MOST_LANES

    @inner
    def in_vectors(base: int, t: int) -> None:
        for group in range(units // MOST_LANES):
            place = (t // panel * units + group * MOST_LANES) * panel + t % panel
            into = base + places.keys + place * UNIT_BYTES
            transposed(base + places.rows, group * step, into, panel * UNIT_BYTES)

    @inner
    def one_by_one(base: int, t: int) -> None:
        rows = words(base + places.rows)
        row = base + places.scores
        for index in range(MOST_LANES):
            if pairs:
                copy_halves(rows[index], head_dim, row, 2 * units)
            else:
                copy_floats(rows[index], head_dim, row, units, bfloat16)
            made = integers(row)
            into = integers(base + places.keys)
            place = t // panel * units * panel + t % panel + index
            for unit in range(units):
                into[place + unit * panel] = made[unit]

    whole = head_dim % (per_unit * MOST_LANES) == 0
    return in_vectors if whole else one_by_one


def _make_pack_values(shape: TileShape) -> Any:
    """pack_values(one, other, base, t): the values of tokens t and t + 1 of a tile."""
    places, width, head_dim = places_of(shape), shape.width, shape.head_dim
    pairs, bfloat16 = shape.pairs, shape.bfloat16
    whole = head_dim == width

    @inner
    def as_pairs(one: int, other: int, base: int, t: int) -> None:
        into = base + places.values + t // 2 * width * UNIT_BYTES
        if whole:
            for d in range(0, width, MOST_LANES):
                paired(one + 2 * d, other + 2 * d, into + UNIT_BYTES * d)
        else:
            first = halves(one)
            second = halves(other)
            made = halves(into)
            for d in range(width):
                made[2 * d] = first[d] if d < head_dim else 0
                made[2 * d + 1] = second[d] if d < head_dim else 0

    @inner
    def as_floats(one: int, other: int, base: int, t: int) -> None:
        into = base + places.values + t * width * UNIT_BYTES
        copy_floats(one, head_dim, into, width, bfloat16)
        copy_floats(other, head_dim, into + width * UNIT_BYTES, width, bfloat16)

    return as_pairs if pairs else as_floats
