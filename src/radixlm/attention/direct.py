"""A single token's scores and mixed values, a tile of its context at a time, all heads of it.

While four tokens of one head are computed, those of the same head in the next tile are being
fetched: asked for all at once they would stand in each other's way.

    tile     | heads 0 1 2 |            read, in the nearest cache
    ahead                  | 0 1 2 |    asked for, a head's part while that head is computed
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numba import njit

from radixlm.attention.rows import ANSWER, clear, make_put
from radixlm.attention.softmax import make_row_weights, row_largest
from radixlm.attention.tile_layout import copy_floats
from radixlm.kernels.jit import compiled
from radixlm.kernels.pairs import NUMBERS, make_pair_dots, make_pair_mix
from radixlm.kernels.vectors import (
    FAST,
    LOG2_E,
    MOST_LANES,
    fetch_add,
    floats,
    has_bfloat16,
    integers,
    make_dots,
    make_mix,
    prefetch,
    words,
)

# Sums of four tokens with so many queries stay in registers.
_MOST_QUERIES = 7
# A tile and the next one stay in the processor's nearest cache.
_TILE_BYTES = 12 << 10
# What is ahead: address of keys or values, of the int32 slots, and how many, at least one.
_Ahead = tuple[int, int, int]


def in_pairs(head_dim: int, *, bfloat16: bool) -> bool:
    """Whether products are of pairs of bfloat16 numbers."""
    return bfloat16 and has_bfloat16() and head_dim % NUMBERS == 0


def make_tiles(queries: int, head_dim: int, *, bfloat16: bool) -> Callable[..., Any]:
    """tiles(dots, pool, key heads, slots, n, side, scores, stride, after): scores of n tokens of
    keys and all heads of queries (`side`), or values mixed by them into `side`. after: what will be
    read then; its first tile is fetched.
    """
    pairs, element = in_pairs(head_dim, bfloat16=bfloat16), 2 if bfloat16 else 4
    block = max(n for n in range(1, _MOST_QUERIES + 1) if queries % n == 0)
    score = _make_scores(block, head_dim, bfloat16=bfloat16)
    mix = (
        make_pair_mix(block, head_dim)
        if pairs
        else _make_mix_of(block, head_dim, bfloat16=bfloat16)
    )
    q_bytes, weight_bytes = (2, 2) if pairs else (4, 4)

    @njit(**FAST)  # type: ignore[untyped-decorator]
    def tiles(
        dots: bool,
        pool: int,
        heads: int,
        slots: int,
        n: int,
        side: int,
        scores: int,
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
                head, row = i // queries * head_dim * element, scores + 4 * i * stride
                later = (ahead + head, ahead_at, ahead_n)
                if dots:
                    q, into = side + q_bytes * i * head_dim, row + 4 * first
                    score(q, pool + head, size, here, width, into, stride, later)
                else:
                    weights, out = row + weight_bytes * first, side + 4 * i * head_dim
                    mix(weights, stride, pool + head, size, here, width, out, later)
            fetch(ahead, size, ahead_at + 4 * width, ahead_n - width)

    return tiles  # type: ignore[no-any-return]


@njit(**FAST)  # type: ignore[untyped-decorator]
def tile_tokens(size: int) -> int:
    """Tokens of a tile, of so many bytes each: a multiple of 4."""
    return max(4, _TILE_BYTES // size // 4 * 4)


@njit(**FAST)  # type: ignore[untyped-decorator]
def fetch_ahead(ahead: _Ahead, size: int, t: int, length: int) -> None:
    """Have `length` bytes of the token t that is ahead fetched, or of the last one."""
    slot = integers(ahead[1])[min(t, ahead[2] - 1)]
    at = ahead[0] + np.int64(slot) * size
    for line in range(0, length, 64):
        prefetch(at + line)


@njit(**FAST)  # type: ignore[untyped-decorator]
def fetch(pool: int, token_bytes: int, at: int, n: int) -> None:
    """Have n tokens' keys or values fetched."""
    slots = integers(at)
    for t in range(n):
        token = pool + np.int64(slots[t]) * token_bytes
        for line in range(0, token_bytes, 64):
            prefetch(token + line)


def _make_scores(block: int, head_dim: int, *, bfloat16: bool) -> Callable[..., Any]:
    if in_pairs(head_dim, bfloat16=bfloat16):
        dots, dot = (make_pair_dots(block, head_dim, tokens) for tokens in (4, 1))
    else:
        dots, dot = (make_dots(block, head_dim, tokens, bfloat16=bfloat16) for tokens in (4, 1))
    length = head_dim * (2 if bfloat16 else 4)

    @njit(**FAST)  # type: ignore[untyped-decorator]
    def score(
        q: int,
        keys: int,
        size: int,
        at: int,
        n: int,
        scores: int,
        stride: int,
        ahead: _Ahead,
    ) -> None:
        slots = integers(at)
        whole = n - n % 4
        for t in range(0, whole, 4):
            four = (
                keys + np.int64(slots[t]) * size,
                keys + np.int64(slots[t + 1]) * size,
                keys + np.int64(slots[t + 2]) * size,
                keys + np.int64(slots[t + 3]) * size,
            )
            for index in range(t, t + 4):
                fetch_ahead(ahead, size, index, length)
            dots(q, four, scores + 4 * t, stride)
        for t in range(whole, n):
            fetch_ahead(ahead, size, t, length)
            dot(q, (keys + np.int64(slots[t]) * size,), scores + 4 * t, stride)

    return score  # type: ignore[no-any-return]


def _make_mix_of(block: int, head_dim: int, *, bfloat16: bool) -> Callable[..., Any]:
    mix = make_mix(block, head_dim, 4, bfloat16=bfloat16)
    mix_one = make_mix(block, head_dim, 1, bfloat16=bfloat16)
    length = head_dim * (2 if bfloat16 else 4)

    @njit(**FAST)  # type: ignore[untyped-decorator]
    def mix_all(
        weights: int,
        stride: int,
        values: int,
        size: int,
        at: int,
        n: int,
        out: int,
        ahead: _Ahead,
    ) -> None:
        slots = integers(at)
        whole = n - n % 4
        for t in range(0, whole, 4):
            four = (
                values + np.int64(slots[t]) * size,
                values + np.int64(slots[t + 1]) * size,
                values + np.int64(slots[t + 2]) * size,
                values + np.int64(slots[t + 3]) * size,
            )
            for index in range(t, t + 4):
                fetch_ahead(ahead, size, index, length)
            mix(weights + 4 * t, stride, four, out)
        for t in range(whole, n):
            fetch_ahead(ahead, size, t, length)
            mix_one(weights + 4 * t, stride, (values + np.int64(slots[t]) * size,), out)

    return mix_all  # type: ignore[no-any-return]


# The worker's arguments, int64 each: two counters, sizes, addresses. Strides are in bytes.
(
    THREADS_SEEN,
    UNITS_TAKEN,
    ITEMS,
    KEY_HEADS,
    Q,
    Q_STRIDE,
    KEYS,
    VALUES,
    TABLE,
    TABLE_STRIDE,
    READS,
    ANSWERS,
    PARTS,
    LSE,
    SCRATCH,
    SCORES,
    PER_THREAD,
    SIZE,
) = range(18)
# Columns of `READS` (items, 7) int64: the row of parts for the result, whose queries, whose slots,
# and which two ranges [a, b) and [c, d) of them. No range of all is empty.
READ_COLUMNS = 7


def scratch_numbers(heads: int, head_dim: int, tokens: int) -> int:
    """float32 numbers that a thread writes on the way to `tokens` tokens' worth of attention:
    scores of all `heads` of queries, the queries, the mixed values, the slots, with one more, and
    two sums of each head. `tokens` is a multiple of 16: scores are computed in whole vectors.
    """
    numbers = heads * (tokens + 2 * head_dim) + tokens + 1 + 2 * heads
    return -(-numbers // MOST_LANES) * MOST_LANES


@compiled
def make_worker(queries: int, head_dim: int, *, bfloat16: bool) -> Callable[[int], None]:
    """The compiled worker for a shape: `queries` per key head. Takes a second to make, once."""
    pairs = in_pairs(head_dim, bfloat16=bfloat16)
    tiles = make_tiles(queries, head_dim, bfloat16=bfloat16)
    row_weights = make_row_weights(bfloat16=pairs)
    finish = _make_finish(head_dim, bfloat16=bfloat16)
    element = 2 if bfloat16 else 4
    widened, scale = bfloat16 and not pairs, np.float32(LOG2_E / math.sqrt(head_dim))

    def worker(arguments: int) -> None:
        args = words(arguments)
        heads, length = args[KEY_HEADS] * queries, args[SCORES]
        thread = fetch_add(arguments + 8 * THREADS_SEEN)
        scores = args[SCRATCH] + thread * args[PER_THREAD]
        q = scores + 4 * heads * length
        mixed = q + 4 * heads * head_dim
        slots = mixed + 4 * heads * head_dim
        tops = slots + 4 * (length + 1)
        sums = tops + 4 * heads
        size = args[KEY_HEADS] * head_dim * element
        item = fetch_add(arguments + 8 * UNITS_TAKEN)
        if item < args[ITEMS]:
            slots_of, n = first_slots(args, item)
            fetch(args[KEYS], size, slots_of, min(tile_tokens(size), n))
        while item < args[ITEMS]:
            part, token, count = collect(args, item, slots)
            side = args[Q] + token * args[Q_STRIDE]
            if widened:
                copy_floats(side, heads * head_dim, q, heads * head_dim, True)
                side = q
            mine = (args[VALUES], slots, count)
            tiles(True, args[KEYS], args[KEY_HEADS], slots, count, side, scores, length, mine)
            whole = -(-count // MOST_LANES) * MOST_LANES
            for i in range(heads):
                at = scores + 4 * i * length
                top = row_largest(at, count)
                floats(tops)[i] = top
                floats(sums)[i] = row_weights(at, count, scale, top, at, whole)
            clear(mixed, heads * head_dim)
            item = fetch_add(arguments + 8 * UNITS_TAKEN)
            slots_of, n = first_slots(args, min(item, args[ITEMS] - 1))
            later = (args[KEYS], slots_of, n)
            tiles(False, args[VALUES], args[KEY_HEADS], slots, count, mixed, scores, length, later)
            finish(args, mixed, tops, token, part, heads)

    return worker


@njit(**FAST)  # type: ignore[untyped-decorator]
def first_slots(args: Any, item: int) -> tuple[int, int]:
    """Where the first slots that a read needs stand, and how many stand there."""
    read = words(args[READS] + 8 * READ_COLUMNS * item)
    row = args[TABLE] + read[2] * args[TABLE_STRIDE]
    if read[4] > read[3]:
        return row + 4 * read[3], read[4] - read[3]
    return row + 4 * read[5], read[6] - read[5]


@njit(**FAST)  # type: ignore[untyped-decorator]
def collect(args: Any, item: int, into: int) -> tuple[int, int, int]:
    """A read's slots, one after the other, the last one twice; its part, its token and how many
    slots there are.
    """
    read = words(args[READS] + 8 * READ_COLUMNS * item)
    slots = integers(args[TABLE] + read[2] * args[TABLE_STRIDE])
    mine = integers(into)
    count = 0
    for t in range(read[3], read[4]):
        mine[count] = slots[t]
        count += 1
    for t in range(read[5], read[6]):
        mine[count] = slots[t]
        count += 1
    mine[count] = mine[count - 1]
    return read[0], read[1], count


def _make_finish(head_dim: int, *, bfloat16: bool) -> Callable[..., Any]:
    """finish(args, mixed, tops, token, part, heads): divide by the sum of weights and write."""
    element, scale = 2 if bfloat16 else 4, np.float32(1 / math.sqrt(head_dim))
    put, put_part = make_put(bfloat16=bfloat16), make_put(bfloat16=False)

    @njit(**FAST)  # type: ignore[untyped-decorator]
    def finish(args: Any, mixed: int, tops: int, token: int, part: int, heads: int) -> None:
        sums = floats(tops + 4 * heads)
        for i in range(heads):
            made, inverse = mixed + 4 * i * head_dim, np.float32(1) / sums[i]
            if part == ANSWER:
                into = args[ANSWERS] + (token * heads + i) * head_dim * element
                put(made, inverse, head_dim, into)
            else:
                at = part * heads + i
                put_part(made, inverse, head_dim, args[PARTS] + at * head_dim * 4)
                lse = floats(args[LSE] + 4 * at)
                lse[0] = scale * floats(tops)[i] + np.log(sums[i])

    return finish  # type: ignore[no-any-return]
