"""Attention of single tokens, read where their keys and values lie: compiled, for the CPU.

A token has a few queries per key head, too few for matrix products, and a context scattered over
the pool. Keys and values are read once, a tile of tokens with all its heads at a time, while the
next tile is being fetched:

    slots     7 8 3 4 | 5 6 9 1 | 2        of the request table, two ranges of it
              tile 0    tile 1
    dots      . . . .   . . . .   .        scores (queries of all heads, context)
    softmax   . . . .   . . . .   .        in place, its sum applied at the end
    mix       . . . .   . . . .   .   ->   (queries of all heads, head_dim)

Threads take one read after the other from a counter, so that long contexts and short ones need no
sharing out.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
from numba import cfunc, njit, types

from radixlm.attention.rows import ANSWER, clear, make_put
from radixlm.attention.softmax import make_row_weights, row_largest
from radixlm.attention.vectors import (
    FAST,
    LOG2_E,
    fetch_add,
    float_of_bits,
    floats,
    halves,
    integers,
    make_dots,
    make_mix,
    prefetch,
    words,
)

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

_MOST_QUERIES = 8
# A tile stays in the processor's nearest cache.
_TILE_BYTES = 12 << 10


def scratch_numbers(heads: int, head_dim: int, tokens: int) -> int:
    """float32 numbers that a thread writes on the way to `tokens` tokens' worth of attention:
    scores of all `heads` of queries, two sums of each, the scaled queries, the mixed values, and
    the slots. Of 16 tokens each or more: scores are computed in whole vectors.
    """
    return heads * (tokens + 2 + 2 * head_dim) + tokens


@functools.cache
def make_worker(queries: int, head_dim: int, *, bfloat16: bool) -> Any:
    """The compiled worker for a shape: `queries` per key head. Takes a second to make, once."""
    tiles = _make_tiles(queries, head_dim, bfloat16=bfloat16)
    row_weights = make_row_weights(bfloat16=False)
    finish = _make_finish(head_dim, bfloat16=bfloat16)
    element, scale = 2 if bfloat16 else 4, np.float32(LOG2_E)

    @cfunc(types.void(types.int64), **FAST)  # type: ignore[untyped-decorator]
    def worker(arguments: int) -> None:
        args = words(arguments)
        heads, length = args[KEY_HEADS] * queries, args[SCORES]
        thread = fetch_add(arguments + 8 * THREADS_SEEN)
        scores = args[SCRATCH] + thread * args[PER_THREAD]
        tops = scores + 4 * heads * length
        sums = tops + 4 * heads
        q = scores + 4 * heads * (length + 2)
        mixed = q + 4 * heads * head_dim
        slots = mixed + 4 * heads * head_dim
        while True:
            item = fetch_add(arguments + 8 * UNITS_TAKEN)
            if item >= args[ITEMS]:
                break
            read = words(args[READS] + 8 * READ_COLUMNS * item)
            part, token, row = read[0], read[1], read[2]
            a, b, c, d = read[3], read[4], read[5], read[6]
            count = b - a + d - c
            collect_slots(args[TABLE] + row * args[TABLE_STRIDE], a, b, c, d, slots)
            scaled(args[Q] + token * args[Q_STRIDE], q, heads * head_dim, head_dim, element)
            tiles(True, args[KEYS], args[KEY_HEADS], slots, count, q, scores, length)
            for i in range(heads):
                at = scores + 4 * i * length
                top = row_largest(at, count)
                floats(tops)[i] = top
                floats(sums)[i] = row_weights(at, count, scale, top, at, count)
            clear(mixed, heads * head_dim)
            tiles(False, args[VALUES], args[KEY_HEADS], slots, count, mixed, scores, length)
            finish(args, mixed, tops, token, part, heads)

    return worker


def _make_tiles(queries: int, head_dim: int, *, bfloat16: bool) -> Callable[..., Any]:
    """tiles(dots, pool, key heads, slots, n, side, scores, stride): scores of n tokens of keys and
    all heads of queries (`side`), or values mixed by them into `side`.
    """
    block = max(n for n in range(1, _MOST_QUERIES + 1) if queries % n == 0)
    score = _make_scores(block, head_dim, bfloat16=bfloat16)
    mix = _make_mix_of(block, head_dim, bfloat16=bfloat16)
    element = 2 if bfloat16 else 4

    @njit(**FAST)  # type: ignore[untyped-decorator]
    def tiles(
        dots: bool, pool: int, heads: int, slots: int, n: int, side: int, scores: int, stride: int
    ) -> None:
        token_bytes = heads * head_dim * element
        tile = max(4, _TILE_BYTES // token_bytes // 4 * 4)
        fetch(pool, token_bytes, slots, min(tile, n))
        for first in range(0, n, tile):
            width = min(tile, n - first)
            here = slots + 4 * first
            fetch(pool, token_bytes, here + 4 * width, min(tile, n - first - width))
            for i in range(0, heads * queries, block):
                of_head = pool + i // queries * head_dim * element
                rows, its_side = scores + 4 * (i * stride + first), side + 4 * i * head_dim
                if dots:
                    score(its_side, of_head, token_bytes, here, width, rows, stride)
                else:
                    mix(rows, stride, of_head, token_bytes, here, width, its_side)

    return tiles  # type: ignore[no-any-return]


@njit(**FAST)  # type: ignore[untyped-decorator]
def fetch(pool: int, token_bytes: int, at: int, n: int) -> None:
    """Have n tokens' keys or values fetched."""
    slots = integers(at)
    for t in range(n):
        token = pool + np.int64(slots[t]) * token_bytes
        for line in range(0, token_bytes, 64):
            prefetch(token + line)


@njit(**FAST)  # type: ignore[untyped-decorator]
def collect_slots(row: int, a: int, b: int, c: int, d: int, into: int) -> None:
    """The slots of tokens [a, b) and [c, d), one after the other."""
    slots = integers(row)
    mine = integers(into)
    for t in range(a, b):
        mine[t - a] = slots[t]
    for t in range(c, d):
        mine[b - a + t - c] = slots[t]


@njit(**FAST)  # type: ignore[untyped-decorator]
def scaled(q: int, into: int, numbers: int, head_dim: int, element: int) -> None:
    """One token's queries as float32, times 1 / sqrt(head_dim)."""
    scale = np.float32(1) / np.sqrt(np.float32(head_dim))
    made = floats(into)
    if element == 2:
        read = halves(q)
        for i in range(numbers):
            made[i] = float_of_bits(np.int32(read[i]) << np.int32(16)) * scale
    else:
        plain = floats(q)
        for i in range(numbers):
            made[i] = plain[i] * scale


def _make_finish(head_dim: int, *, bfloat16: bool) -> Callable[..., Any]:
    """finish(args, mixed, tops, token, part, heads): divide by the sum of weights and write."""
    element = 2 if bfloat16 else 4
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
                lse[0] = floats(tops)[i] + np.log(sums[i])

    return finish  # type: ignore[no-any-return]


def _make_scores(block: int, head_dim: int, *, bfloat16: bool) -> Callable[..., Any]:
    dots = make_dots(block, head_dim, 4, bfloat16=bfloat16)
    dot = make_dots(block, head_dim, 1, bfloat16=bfloat16)

    @njit(**FAST)  # type: ignore[untyped-decorator]
    def score(q: int, keys: int, size: int, at: int, n: int, scores: int, stride: int) -> None:
        slots = integers(at)
        whole = n - n % 4
        for t in range(0, whole, 4):
            four = (
                keys + np.int64(slots[t]) * size,
                keys + np.int64(slots[t + 1]) * size,
                keys + np.int64(slots[t + 2]) * size,
                keys + np.int64(slots[t + 3]) * size,
            )
            dots(q, four, scores + 4 * t, stride)
        for t in range(whole, n):
            dot(q, (keys + np.int64(slots[t]) * size,), scores + 4 * t, stride)

    return score  # type: ignore[no-any-return]


def _make_mix_of(block: int, head_dim: int, *, bfloat16: bool) -> Callable[..., Any]:
    mix = make_mix(block, head_dim, 4, bfloat16=bfloat16)
    mix_one = make_mix(block, head_dim, 1, bfloat16=bfloat16)

    @njit(**FAST)  # type: ignore[untyped-decorator]
    def mix_all(
        weights: int, stride: int, values: int, size: int, at: int, n: int, out: int
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
            mix(weights + 4 * t, stride, four, out)
        for t in range(whole, n):
            mix_one(weights + 4 * t, stride, (values + np.int64(slots[t]) * size,), out)

    return mix_all  # type: ignore[no-any-return]
