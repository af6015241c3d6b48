"""A single token's scores and mixed values, a tile of its context at a time, all heads of it, from
where the pool has them.

A tile is read in sections that stay in the nearest cache. While a few tokens of one head are
computed, those of the same head in the next section are being fetched: asked for all at once they
would stand in each other's way.

    section  | heads 0 1 2 |            read, in the nearest cache
    ahead                  | 0 1 2 |    asked for, a head's part while that head is computed

Of a coded pool queries and weights become 16 bits with a scale; scales of keys and values are taken
into scores and weights, a tile at a time. Where one of a head's numbers is not finite its scale is
NaN, and so are scores, or mixed values.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from radixlm.attention.merge import STATE_BYTES, begin, make_fold, make_write
from radixlm.attention.reads import READ_BYTES, ReadArguments
from radixlm.attention.tile_layout import TILE, copy_floats, fetch
from radixlm.kernels.bytes import make_quantize
from radixlm.kernels.code_dots import (
    make_code_mix,
    make_code_scores,
    make_unscale,
    scale_scores,
    scale_weights,
    turn_codes,
)
from radixlm.kernels.dots import (
    has_pairs,
    make_fetch_ahead,
    make_mix,
    make_pair_mix,
    make_scores,
    make_weigh,
    put_in_order,
)
from radixlm.kernels.jit import compiled
from radixlm.kernels.strips import VECTOR_LANES
from radixlm.kernels.vectors import (
    MOST_LANES,
    clear,
    floats,
    inner,
    integers,
    take_unit,
    thread_number,
    words,
)

# Of one key head; their sums stay in registers.
_MOST_QUERIES = 8
# A section and the next one stay in the processor's nearest cache.
_SECTION_BYTES = 12 << 10
# Numbers from one row of scores to the next: a tile's alone would share places in the cache.
_SCORES = TILE + MOST_LANES
# What is read next: address of keys or values, of the int32 slots, and how many, at least one.
_Ahead = tuple[int, int, int]


@compiled(ReadArguments)
def make_direct_kernel(
    queries: int, head_dim: int, *, bfloat16: bool, coded: bool, cap: float = 0.0
) -> Callable[[Any], None]:
    """The kernel for a shape: `queries` per key head. Takes a second to compile, once.

    coded: the pool is, and `has_code_dots`; scales: its own. reads: address of rows of int64, see
    `ContextRead`; of one token each. slots: address of int32; after a read's own there are
    `MORE_SLOTS`.
    scratch: see `scratch_bytes`. cap: of scores; 0: none.
    """
    pairs = has_pairs(head_dim, bfloat16=bfloat16) and not coded
    score_tile, mix_tile = _make_passes(
        queries, head_dim, bfloat16=bfloat16, pairs=pairs, coded=coded
    )
    own = _make_coded if coded else partial(_make_plain, pairs=pairs)
    take_queries, weigh_rows, values_of = own(queries, head_dim, bfloat16=bfloat16, cap=cap)
    take_in = _make_take_in(head_dim)
    write = make_write(head_dim, bfloat16=bfloat16)
    element = 1 if coded else 2 if bfloat16 else 4
    each = inner(scratch_bytes)

    def attend(args: ReadArguments) -> None:
        heads, size = args.key_heads * queries, args.key_heads * head_dim * element
        numbers = heads * head_dim
        scores = args.scratch + thread_number(args.counters) * each(heads, head_dim)
        wide_q = scores + 4 * heads * _SCORES
        of_tile, mixed = wide_q + 4 * numbers, wide_q + 8 * numbers
        states = wide_q + 12 * numbers
        tile_states = states + STATE_BYTES * heads
        scales = tile_states + STATE_BYTES * heads
        item = take_unit(args.counters)
        if item < args.items:
            read = words(args.reads + READ_BYTES * item)
            fetch(args.keys, size, size, args.slots + 4 * read[2], 0, min(_section(size), read[3]))
        while item < args.items:
            read = words(args.reads + READ_BYTES * item)
            token, slots, count, part = read[0], args.slots + 4 * read[2], read[3], read[6]
            q = take_queries(args.q + token * args.q_stride, heads, wide_q, scales)
            begin(mixed, states, heads, head_dim)
            for first in range(0, count, TILE):
                width, here = min(TILE, count - first), slots + 4 * first
                values = (args.values, here, width)
                score_tile(args.keys, args.key_heads, here, width, q, scores, values)
                weigh_rows(args, here, width, scores, tile_states, scales)
                clear(of_tile, numbers)
                later = (args.keys, here + 4 * width, count - first - width)
                if not later[2]:
                    item = take_unit(args.counters)
                    read = words(args.reads + READ_BYTES * min(item, args.items - 1))
                    later = (args.keys, args.slots + 4 * read[2], read[3])
                mix_tile(args.values, args.key_heads, here, width, of_tile, scores, later)
                values_of(of_tile, heads, scales)
                take_in(mixed, states, of_tile, tile_states, heads)
            for i in range(heads):
                its_state = states + STATE_BYTES * i
                write(args, mixed + 4 * i * head_dim, its_state, token, part, i, heads)

    return attend


def _make_plain(
    queries: int, head_dim: int, *, bfloat16: bool, pairs: bool, cap: float
) -> tuple[Any, Any, Any]:
    """take_queries(q, heads, room, scales): where a token's queries are, as they are multiplied.
    weigh_rows(args, slots, count, scores, states, scales): scores of a tile become weights, in
    place. values_of(mixed, heads, scales): mixed values of a tile become float32, in order.
    """
    weigh = make_weigh(head_dim**-0.5, bfloat16=pairs, cap=cap)
    widened = bfloat16 and not pairs

    @inner
    def take_queries(q: int, heads: int, room: int, _scales: int) -> int:
        if widened:
            copy_floats(q, heads * head_dim, room, heads * head_dim, True)
            return room
        return q

    @inner
    def weigh_rows(
        args: ReadArguments, _slots: int, count: int, scores: int, states: int, _scales: int
    ) -> None:
        whole = -(-count // MOST_LANES) * MOST_LANES
        for i in range(args.key_heads * queries):
            at = scores + 4 * i * _SCORES
            weigh(at, count, at, whole, states + STATE_BYTES * i)

    @inner
    def values_of(mixed: int, heads: int, _scales: int) -> None:
        if pairs:
            put_in_order(mixed, heads * head_dim)

    return take_queries, weigh_rows, values_of


def _make_coded(queries: int, head_dim: int, *, bfloat16: bool, cap: float) -> tuple[Any, Any, Any]:
    """The same where the pool is coded."""
    take_queries = _make_code_queries(head_dim, bfloat16=bfloat16)
    return take_queries, _make_code_weigh(queries, head_dim, cap), _make_code_values(head_dim)


def _make_take_in(head_dim: int) -> Any:
    """take_in(mixed, states, of_tile, tile_states, heads): what a tile gave."""
    fold = make_fold(head_dim)

    @inner
    def take_in(mixed: int, states: int, of_tile: int, tile_states: int, heads: int) -> None:
        for i in range(heads):
            place, state = 4 * i * head_dim, STATE_BYTES * i
            fold(mixed + place, states + state, of_tile + place, tile_states + state)

    return take_in


def scratch_bytes(heads: int, head_dim: int) -> int:
    """The memory that a thread writes, as float32 numbers: scores of all `heads` of queries with a
    tile, the queries, mixed values and states of a tile and of the context so far, scales of
    queries, weights and a tile's tokens.
    """
    numbers = heads * (_SCORES + 3 * head_dim + 6) + 2 * TILE
    return -(-numbers // MOST_LANES) * MOST_LANES * 4


@inner
def _section(size: int) -> int:
    """Tokens of a section, of `size` bytes each: whole vectors of them."""
    return max(MOST_LANES, _SECTION_BYTES // size // MOST_LANES * MOST_LANES)


def _make_passes(
    queries: int, head_dim: int, *, bfloat16: bool, pairs: bool, coded: bool
) -> tuple[Any, Any]:
    """The two passes over a tile: scores of its keys, and its values mixed.

    pairs: products are of pairs of bfloat16 numbers; queries and weights are bfloat16 then. coded:
    both are in 16 bits.
    """
    block = max(n for n in range(1, _MOST_QUERIES + 1) if queries % n == 0)
    element = 1 if coded else 2 if bfloat16 else 4
    length = head_dim * element
    if coded:
        score = _by_vectors(make_code_scores(block, head_dim))
    else:
        score = _by_vectors(make_scores(block, head_dim, bfloat16=bfloat16, pairs=pairs))
    if coded:
        mix = make_code_mix(block, head_dim)
    elif pairs:
        mix = make_pair_mix(block, head_dim)
    else:
        mix = _by_fours(length, *(make_mix(block, head_dim, n, bfloat16=bfloat16) for n in (4, 1)))

    def pass_of(step: Any, side_bytes: int, row_bytes: int) -> Any:
        """tile(pool, key heads, slots, n, side, rows, after): one pass over n tokens for all heads.
        side: address of the queries or of what is mixed, numbers of `side_bytes`; rows: of scores
        or of weights, of `row_bytes`. after: what is read then; its first section is fetched.
        """

        @inner
        def tile(
            pool: int, heads: int, slots: int, n: int, side: int, rows: int, after: _Ahead
        ) -> None:
            size = heads * head_dim * element
            section = _section(size)
            for first in range(0, n, section):
                width, here = min(section, n - first), slots + 4 * first
                ahead, ahead_at, ahead_n = pool, here + 4 * width, min(section, n - first - width)
                if not ahead_n:
                    ahead, ahead_at, ahead_n = after[0], after[1], min(section, after[2])
                for i in range(0, heads * queries, block):
                    head = i // queries * length
                    its_side = side + side_bytes * i * head_dim
                    row = rows + 4 * i * _SCORES + row_bytes * first
                    later = (ahead + head, ahead_at, ahead_n)
                    step(its_side, pool + head, size, here, width, row, _SCORES, later)
                fetch(ahead, size, size, ahead_at, width, ahead_n)

        return tile

    halved = 2 if pairs or coded else 4
    return pass_of(score, halved, 4), pass_of(mix, 4, halved)


def _by_vectors(vector: Any) -> Any:
    """step(q, pool, size, slots, n, row, stride, ahead): scores of n tokens of one head, as many at
    a time as `make_scores` computes.
    """

    @inner
    def step(
        q: int, pool: int, size: int, at: int, n: int, row: int, stride: int, ahead: _Ahead
    ) -> None:
        for t in range(0, n, VECTOR_LANES):
            vector(q, pool, size, at + 4 * t, row + 4 * t, stride, t, ahead)

    return step


def _by_fours(length: int, four: Any, one: Any) -> Any:
    """step(side, pool, size, slots, n, row, stride, ahead): n tokens of one head, four at a time.

    four, one: as `make_mix` gives them. length: of a head's numbers, in bytes; size:
    from slot to slot, in bytes.
    """

    fetch_ahead = make_fetch_ahead(length)

    @inner
    def step(
        side: int, pool: int, size: int, at: int, n: int, row: int, stride: int, ahead: _Ahead
    ) -> None:
        slots = integers(at)
        whole = n - n % 4
        for t in range(0, whole, 4):
            tokens = (
                pool + np.int64(slots[t]) * size,
                pool + np.int64(slots[t + 1]) * size,
                pool + np.int64(slots[t + 2]) * size,
                pool + np.int64(slots[t + 3]) * size,
            )
            for index in range(t, t + 4):
                fetch_ahead(ahead, size, index)
            four(side, tokens, row + 4 * t, stride)
        for t in range(whole, n):
            fetch_ahead(ahead, size, t)
            one(side, (pool + np.int64(slots[t]) * size,), row + 4 * t, stride)

    return step


def _make_code_queries(head_dim: int, *, bfloat16: bool) -> Any:
    quantize, size = make_quantize(bfloat16=bfloat16, bits=16), head_dim * (2 if bfloat16 else 4)

    @inner
    def take_queries(q: int, heads: int, room: int, scales: int) -> int:
        for i in range(heads):
            quantize(q + i * size, head_dim, room + 2 * i * head_dim, scales + 4 * i)
        turn_codes(room, heads * head_dim)
        return room

    return take_queries


def _make_code_weigh(queries: int, head_dim: int, cap: float) -> Any:
    """states: each row's largest score and the sum of its weights. scales: address of each row's
    query's; they are followed by room for what each row's weights stand for, and for two scales of
    a tile's tokens. cap: of scores; 0: none.
    """
    weigh_row = make_weigh(head_dim**-0.5, bfloat16=False, cap=cap)
    quantize = make_quantize(bfloat16=False, bits=16)

    @inner
    def weigh_rows(
        args: ReadArguments, slots: int, count: int, scores: int, states: int, scales: int
    ) -> None:
        key_heads, whole = args.key_heads, -(-count // MOST_LANES) * MOST_LANES
        of_weights, of_keys = scales + 4 * key_heads * queries, scales + 8 * key_heads * queries
        of_values = of_keys + 4 * TILE
        for head in range(key_heads):
            keys = args.scales + 4 * head
            gather(keys, 2 * key_heads, slots, count, of_keys)
            gather(keys + 4 * key_heads, 2 * key_heads, slots, count, of_values)
            for i in range(head * queries, (head + 1) * queries):
                row = scores + 4 * i * _SCORES
                scale_scores(row, of_keys, count, floats(scales)[i])
                weigh_row(row, count, row, whole, states + STATE_BYTES * i)
                scale_weights(row, of_values, count)
                quantize(row, whole, row, of_weights + 4 * i)

    return weigh_rows


@inner
def gather(pool: int, stride: int, slots: int, count: int, into: int) -> None:
    """Numbers of these slots, `stride` numbers apart."""
    found, places, made = floats(pool), integers(slots), floats(into)
    for t in range(count):
        made[t] = found[np.int64(places[t]) * stride]


def _make_code_values(head_dim: int) -> Any:
    unscale = make_unscale(head_dim)

    @inner
    def values_of(mixed: int, heads: int, scales: int) -> None:
        for i in range(heads):
            unscale(mixed + 4 * i * head_dim, floats(scales)[heads + i])

    return values_of
