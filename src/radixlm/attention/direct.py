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

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numba import njit

from radixlm.attention.direct_tiles import fetch, in_pairs, make_tiles, tile_tokens
from radixlm.attention.kernels import compiled
from radixlm.attention.rows import ANSWER, clear, make_put
from radixlm.attention.softmax import make_row_weights, row_largest
from radixlm.attention.tile_layout import copy_floats
from radixlm.attention.vectors import (
    FAST,
    LOG2_E,
    MOST_LANES,
    fetch_add,
    floats,
    integers,
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
