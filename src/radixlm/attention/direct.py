"""Attention of single tokens, read where their keys and values lie: compiled, for the CPU.

A token has a few queries per key head, too few for matrix products, and a context scattered over
the pool. Keys and values are read once, a tile of tokens with all its heads at a time, while the
next tile is being fetched:

    slots     7 8 3 4 | 5 6 9 1 | 2        of the request table, two ranges of it
              tile 0    tile 1
    dots      . . . .   . . . .   .        scores (queries of all heads, context)
    softmax   . . . .   . . . .   .        in place, its sum applied at the end
    mix       . . . .   . . . .   .   ->   out (queries of all heads, head_dim)

Threads take one read after the other from a counter, so that long contexts and short ones need no
sharing out.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
from numba import carray, cfunc, njit, types

from radixlm.attention.vectors import (
    as_pointer,
    fetch_add,
    float_of_bits,
    make_dots,
    make_exponentials,
    make_largest,
    make_mix,
    prefetch,
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
    OUT,
    LSE,
    SCRATCH,
    SCORES,
    PER_THREAD,
    SIZE,
) = range(17)
# Columns of `READS` (items, 7) int64: where the result goes, whose queries, whose slots, and which
# two ranges [a, b) and [c, d) of them.
READ_COLUMNS = 7

# No flag that lets the compiler believe that there are no NaN and no infinities: broken weights are
# to be seen in the logits.
_MATH = {"reassoc", "contract", "nsz", "arcp"}
FAST: dict[str, Any] = {"fastmath": _MATH, "boundscheck": False, "error_model": "numpy"}
_MOST_QUERIES = 8
# A tile stays in the processor's nearest cache.
_TILE_BYTES = 12 << 10


def scratch_numbers(heads: int, head_dim: int, tokens: int) -> int:
    """float32 numbers that a thread writes on the way to `tokens` tokens' worth of attention:
    scores of all `heads` of queries, two sums of each, the scaled queries, and the slots.
    """
    return heads * (tokens + 2 + head_dim) + tokens


@functools.cache
def make_worker(queries: int, head_dim: int, *, bfloat16: bool) -> Any:
    """The compiled worker for a shape: `queries` per key head. Takes a second to make, once."""
    tiles = _make_tiles(queries, head_dim, bfloat16=bfloat16)
    element = 2 if bfloat16 else 4

    @cfunc(types.void(types.CPointer(types.int64)), **FAST)  # type: ignore[untyped-decorator]
    def worker(arguments: Any) -> None:
        args = carray(arguments, (SIZE,))
        heads, length = args[KEY_HEADS] * queries, args[SCORES]
        thread = fetch_add(address_of(args, THREADS_SEEN))
        scores = args[SCRATCH] + thread * args[PER_THREAD]
        sums = carray(as_pointer(scores + 4 * heads * length), (2, heads), np.float32)
        q = scores + 4 * heads * (length + 2)
        slots = q + 4 * heads * head_dim
        reads = carray(as_pointer(args[READS]), (args[ITEMS], READ_COLUMNS), np.int64)
        while True:
            item = fetch_add(address_of(args, UNITS_TAKEN))
            if item >= args[ITEMS]:
                break
            target, token, row, a, b, c, d = reads[item]
            count = b - a + d - c
            out_at = args[OUT] + 4 * target * heads * head_dim
            out = carray(as_pointer(out_at), (heads, head_dim), np.float32)
            lse = carray(as_pointer(args[LSE] + 4 * target * heads), (heads,), np.float32)
            clear(out, lse)
            if count == 0:
                continue
            collect_slots(args[TABLE] + row * args[TABLE_STRIDE], a, b, c, d, slots)
            scaled(args[Q] + token * args[Q_STRIDE], q, heads * head_dim, head_dim, element)
            tiles(True, args[KEYS], args[KEY_HEADS], slots, count, q, scores, length)
            for i in range(heads):
                sums[0, i], sums[1, i] = exponentials(scores + 4 * i * length, count)
            tiles(False, args[VALUES], args[KEY_HEADS], slots, count, out_at, scores, length)
            finish(out, lse, sums)

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
    slots = carray(as_pointer(at), (n,), np.int32)
    for t in range(n):
        token = pool + np.int64(slots[t]) * token_bytes
        for line in range(0, token_bytes, 64):
            prefetch(token + line)


@njit(**FAST)  # type: ignore[untyped-decorator]
def collect_slots(row: int, a: int, b: int, c: int, d: int, into: int) -> None:
    """The slots of tokens [a, b) and [c, d), one after the other."""
    slots = carray(as_pointer(row), (max(b, d),), np.int32)
    mine = carray(as_pointer(into), (b - a + d - c,), np.int32)
    for t in range(a, b):
        mine[t - a] = slots[t]
    for t in range(c, d):
        mine[b - a + t - c] = slots[t]


@njit(**FAST)  # type: ignore[untyped-decorator]
def scaled(q: int, into: int, numbers: int, head_dim: int, element: int) -> None:
    """One token's queries as float32, times 1 / sqrt(head_dim)."""
    scale = np.float32(1) / np.sqrt(np.float32(head_dim))
    made = carray(as_pointer(into), (numbers,), np.float32)
    if element == 2:
        halves = carray(as_pointer(q), (numbers,), np.uint16)
        for i in range(numbers):
            made[i] = float_of_bits(np.int32(halves[i]) << np.int32(16)) * scale
    else:
        plain = carray(as_pointer(q), (numbers,), np.float32)
        for i in range(numbers):
            made[i] = plain[i] * scale


# Slices in compiled code read better than loops, but take numba half a second each.
@njit(**FAST)  # type: ignore[untyped-decorator]
def clear(out: Any, lse: Any) -> None:
    """What attention over nothing gives."""
    for i in range(out.shape[0]):
        lse[i] = -np.inf
        for k in range(out.shape[1]):
            out[i, k] = 0


@njit(**FAST)  # type: ignore[untyped-decorator]
def finish(out: Any, lse: Any, sums: Any) -> None:
    """Divide the mixed values by the sum of their weights."""
    for i in range(out.shape[0]):
        inverse = np.float32(1) / sums[1, i]
        for k in range(out.shape[1]):
            out[i, k] *= inverse
        lse[i] = sums[0, i] + np.log(sums[1, i])


@njit(**FAST)  # type: ignore[untyped-decorator]
def address_of(args: Any, index: int) -> Any:
    return args.ctypes.data + 8 * index


_four, _one = make_exponentials(4), make_exponentials(1)
_largest_of_four, _largest_of_one = make_largest(4), make_largest(1)


@njit(**FAST)  # type: ignore[untyped-decorator]
def exponentials(address: int, n: int) -> Any:
    """A row of n float32 scores becomes e^(score - largest). Returns the largest and the sum."""
    row = carray(as_pointer(address), (n,), np.float32)
    whole, almost = n - n % 64, n - n % 16
    top = row[n - 1]
    for t in range(0, whole, 64):
        top = max(top, _largest_of_four(address + 4 * t))
    for t in range(whole, almost, 16):
        top = max(top, _largest_of_one(address + 4 * t))
    for t in range(almost, n):
        top = max(top, row[t])
    total = np.float32(0)
    for t in range(0, whole, 64):
        total += _four(address + 4 * t, top)
    for t in range(whole, almost, 16):
        total += _one(address + 4 * t, top)
    for t in range(almost, n):
        row[t] = np.exp(row[t] - top)
        total += row[t]
    return top, total


def _make_scores(block: int, head_dim: int, *, bfloat16: bool) -> Callable[..., Any]:
    dots = make_dots(block, head_dim, 4, bfloat16=bfloat16)
    dot = make_dots(block, head_dim, 1, bfloat16=bfloat16)

    @njit(**FAST)  # type: ignore[untyped-decorator]
    def score(q: int, keys: int, size: int, at: int, n: int, scores: int, stride: int) -> None:
        slots = carray(as_pointer(at), (n,), np.int32)
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
        slots = carray(as_pointer(at), (n,), np.int32)
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
