"""A single token's scores and mixed values, a tile of its context at a time, all heads of it.

While four tokens of one head are computed, those of the same head in the next tile are being
fetched: asked for all at once they would stand in each other's way.

    tile     | heads 0 1 2 |            read, in the nearest cache
    ahead                  | 0 1 2 |    asked for, a head's part while that head is computed
"""

from __future__ import annotations

import math
from collections import namedtuple
from collections.abc import Callable
from typing import Any

import numpy as np

from radixlm.attention.merge import make_write
from radixlm.attention.tile_layout import copy_floats, fetch
from radixlm.kernels.dots import (
    has_pairs,
    make_dots,
    make_mix,
    make_pair_mix,
    make_row_weights,
    row_largest,
)
from radixlm.kernels.jit import compiled
from radixlm.kernels.vectors import (
    LOG2_E,
    MOST_LANES,
    clear,
    floats,
    inner,
    integers,
    prefetch,
    take_unit,
    thread_number,
    words,
)

# The sums of four tokens with this many queries stay in registers.
_MOST_QUERIES = 7
# A tile and the next one stay in the processor's nearest cache.
_TILE_BYTES = 12 << 10
# What is read next: address of keys or values, of the int32 slots, and how many, at least one.
_Ahead = tuple[int, int, int]


_Arguments = namedtuple(
    "_Arguments",
    "counters items key_heads q q_stride keys values slots reads answers parts lse scratch longest "
    "per_thread",
)


@compiled(_Arguments)
def make_direct_kernel(queries: int, head_dim: int, *, bfloat16: bool) -> Callable[[Any], None]:
    """The kernel for a shape: `queries` per key head. Takes a second to compile, once.

    reads: address of rows of int64, see `Read`; of one token each. slots: address of int32; after a
    read's own there is one more.
    longest, per_thread: see `scratch_numbers`; the latter in bytes.
    """
    pairs = has_pairs(head_dim, bfloat16=bfloat16)
    score_tiles, mix_tiles = _make_tiles(queries, head_dim, bfloat16=bfloat16, pairs=pairs)
    row_weights = make_row_weights(bfloat16=pairs)
    write = make_write(head_dim, bfloat16=bfloat16)
    element = 2 if bfloat16 else 4
    widened, scale = bfloat16 and not pairs, np.float32(LOG2_E / math.sqrt(head_dim))

    def attend(args: _Arguments) -> None:
        heads, longest = args.key_heads * queries, args.longest
        scores = args.scratch + thread_number(args.counters) * args.per_thread
        wide_q = scores + 4 * heads * longest
        mixed = wide_q + 4 * heads * head_dim
        tops = floats(mixed + 4 * heads * head_dim)
        sums = floats(mixed + 4 * heads * head_dim + 4 * heads)
        size = args.key_heads * head_dim * element
        item = take_unit(args.counters)
        if item < args.items:
            read = words(args.reads + 48 * item)
            first = min(tile_tokens(size), read[3])
            fetch(args.keys, size, size, args.slots + 4 * read[2], 0, first)
        while item < args.items:
            read = words(args.reads + 48 * item)
            token, slots, count, part = read[0], args.slots + 4 * read[2], read[3], read[5]
            q = args.q + token * args.q_stride
            if widened:
                copy_floats(q, heads * head_dim, wide_q, heads * head_dim, True)
                q = wide_q
            mine = (args.values, slots, count)
            score_tiles(args.keys, args.key_heads, slots, count, q, scores, longest, mine)
            whole = -(-count // MOST_LANES) * MOST_LANES
            for i in range(heads):
                at = scores + 4 * i * longest
                tops[i] = row_largest(at, count)
                sums[i] = row_weights(at, count, scale, tops[i], at, whole)
            clear(mixed, heads * head_dim)
            item = take_unit(args.counters)
            read = words(args.reads + 48 * min(item, args.items - 1))
            later = (args.keys, args.slots + 4 * read[2], read[3])
            mix_tiles(args.values, args.key_heads, slots, count, mixed, scores, longest, later)
            for i in range(heads):
                write(args, mixed + 4 * i * head_dim, tops[i], sums[i], token, part, i, heads)

    return attend


def scratch_numbers(heads: int, head_dim: int, longest: int) -> int:
    """float32 numbers that a thread writes on the way to `longest` tokens' worth of attention:
    scores of all `heads` of queries, the queries, the mixed values, and two sums of each head.
    `longest` is a multiple of 16: scores are computed in whole vectors.
    """
    numbers = heads * (longest + 2 * head_dim + 2)
    return -(-numbers // MOST_LANES) * MOST_LANES


@inner
def tile_tokens(size: int) -> int:
    """Tokens of a tile, of `size` bytes each: a multiple of 4."""
    return max(4, _TILE_BYTES // size // 4 * 4)


@inner
def fetch_ahead(ahead: _Ahead, size: int, t: int, length: int) -> None:
    """Have `length` bytes of the token t that is ahead fetched, or of the last one."""
    slot = integers(ahead[1])[min(t, ahead[2] - 1)]
    at = ahead[0] + np.int64(slot) * size
    for line in range(0, length, 64):
        prefetch(at + line)


def _make_tiles(queries: int, head_dim: int, *, bfloat16: bool, pairs: bool) -> tuple[Any, Any]:
    """The two passes over a context: scores of its keys, and its values mixed.

    pairs: products are of pairs of bfloat16 numbers; queries and weights are bfloat16 then.
    """
    block = max(n for n in range(1, _MOST_QUERIES + 1) if queries % n == 0)
    element = 2 if bfloat16 else 4
    length = head_dim * element
    dots = (make_dots(block, head_dim, n, bfloat16=bfloat16, pairs=pairs) for n in (4, 1))
    score = _by_fours(length, *dots)
    if pairs:
        mix = make_pair_mix(block, head_dim)
    else:
        mix = _by_fours(length, *(make_mix(block, head_dim, n, bfloat16=bfloat16) for n in (4, 1)))

    def tiles_of(step: Any, side_bytes: int, row_bytes: int) -> Any:
        """tiles(pool, key heads, slots, n, side, rows, stride, after): one pass over n tokens for
        all heads. side: address of the queries or of what is mixed, numbers of `side_bytes`; rows:
        of scores or of weights, of `row_bytes`. after: what is read then; its first tile is
        fetched.
        """

        @inner
        def tiles(
            pool: int,
            heads: int,
            slots: int,
            n: int,
            side: int,
            rows: int,
            stride: int,
            after: _Ahead,
        ) -> None:
            size = heads * head_dim * element
            tile = tile_tokens(size)
            for first in range(0, n, tile):
                width, here = min(tile, n - first), slots + 4 * first
                ahead, ahead_at, ahead_n = pool, here + 4 * width, min(tile, n - first - width)
                if not ahead_n:
                    ahead, ahead_at, ahead_n = after[0], after[1], min(tile, after[2])
                for i in range(0, heads * queries, block):
                    head = i // queries * length
                    its_side = side + side_bytes * i * head_dim
                    row = rows + 4 * i * stride + row_bytes * first
                    later = (ahead + head, ahead_at, ahead_n)
                    step(its_side, pool + head, size, here, width, row, stride, later)
                fetch(ahead, size, size, ahead_at, width, ahead_n)

        return tiles

    return tiles_of(score, 2 if pairs else 4, 4), tiles_of(mix, 4, 2 if pairs else 4)


def _by_fours(length: int, four: Any, one: Any) -> Any:
    """step(side, pool, size, slots, n, row, stride, ahead): n tokens of one head, four at a time.

    four, one: as `make_dots` and `make_mix` give them. length: of a head's numbers, in bytes; size:
    from slot to slot, in bytes.
    """

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
                fetch_ahead(ahead, size, index, length)
            four(side, tokens, row + 4 * t, stride)
        for t in range(whole, n):
            fetch_ahead(ahead, size, t, length)
            one(side, (pool + np.int64(slots[t]) * size,), row + 4 * t, stride)

    return step
