"""Attention of single tokens, read where their keys and values lie: compiled, for the CPU.

A token has a few queries per key head, too few for matrix products, and a context scattered over
the pool. Everything about one token and key head fits into the processor's nearest cache:

    slots   | 7 | 8 | 3 | 4 | 5 | 9 |          of the request table, two ranges of it
    dots      .   .   .   .   .   .            scores (queries, context)
    softmax   .   .   .   .   .   .            in place, its sum applied at the end
    mix       .   .   .   .   .   .   -> out   (queries, head_dim)

Threads take one (token, head) after the other from a counter, so that long contexts and short ones
need no sharing out.
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
    SIZE,
) = range(16)
# Columns of `READS` (items, 7) int64: where the result goes, whose queries, whose slots, and which
# two ranges [a, b) and [c, d) of them.
READ_COLUMNS = 7

FAST = {"fastmath": True, "boundscheck": False, "error_model": "numpy"}
_MOST_QUERIES = 8


def scratch_numbers(queries: int, head_dim: int, scores: int) -> int:
    """float32 numbers that a thread writes on the way: scores, their two sums, scaled queries."""
    return queries * (scores + 2 + head_dim)


@functools.cache
def make_worker(queries: int, head_dim: int, *, bfloat16: bool) -> Any:
    """The compiled worker for a shape: `queries` per key head. Takes a second to make, once."""
    block = max(n for n in range(1, _MOST_QUERIES + 1) if queries % n == 0)
    score = _make_scores(block, head_dim, bfloat16=bfloat16)
    collect = _make_collect(block, head_dim, bfloat16=bfloat16)
    take = _make_take(queries * head_dim, bfloat16=bfloat16)
    scale = np.float32(head_dim**-0.5)
    element = 2 if bfloat16 else 4
    numbers = queries * head_dim

    @cfunc(types.void(types.CPointer(types.int64)))  # type: ignore[untyped-decorator]
    def worker(arguments: Any) -> None:
        args = carray(arguments, (SIZE,))
        heads, length = args[KEY_HEADS], args[SCORES]
        token_bytes = heads * head_dim * element
        per_thread = 4 * (queries * (length + 2) + numbers)  # `scratch_numbers`
        scratch = args[SCRATCH] + fetch_add(arguments_address(args, THREADS_SEEN)) * per_thread
        q = scratch + 4 * queries * (length + 2)
        sums = carray(as_pointer(scratch + 4 * queries * length), (2, queries), np.float32)
        reads = carray(as_pointer(args[READS]), (args[ITEMS], READ_COLUMNS), np.int64)
        while True:
            unit = fetch_add(arguments_address(args, UNITS_TAKEN))
            if unit >= args[ITEMS] * heads:
                break
            head = unit % heads
            target, token, row, a, b, c, d = reads[unit // heads]
            first, count = b - a, b - a + d - c
            slots = args[TABLE] + row * args[TABLE_STRIDE]
            take(args[Q] + token * args[Q_STRIDE] + head * numbers * element, q, scale)
            keys = args[KEYS] + head * head_dim * element
            for i in range(0, queries, block):
                rows, its_q = scratch + 4 * i * length, q + 4 * i * head_dim
                score(its_q, keys, token_bytes, slots + 4 * a, first, rows, length)
                score(its_q, keys, token_bytes, slots + 4 * c, d - c, rows + 4 * first, length)
            place = target * heads + head
            values = args[VALUES] + head * head_dim * element
            out = carray(
                as_pointer(args[OUT] + 4 * place * numbers), (queries, head_dim), np.float32
            )
            out[:] = 0
            lse = carray(as_pointer(args[LSE] + 4 * place * queries), (queries,), np.float32)
            if count == 0:
                lse[:] = -np.inf
                continue
            for i in range(queries):
                sums[0, i], sums[1, i] = exponentials(scratch + 4 * i * length, count)
            for i in range(0, queries, block):
                rows, its_out = (
                    scratch + 4 * i * length,
                    args[OUT] + 4 * (place * numbers + i * head_dim),
                )
                collect(rows, length, values, token_bytes, slots + 4 * a, first, its_out)
                collect(
                    rows + 4 * first, length, values, token_bytes, slots + 4 * c, d - c, its_out
                )
            finish(out, lse, sums)

    return worker


@njit(**FAST)  # type: ignore[untyped-decorator]
def finish(out: Any, lse: Any, sums: Any) -> None:
    """Divide the mixed values by the sum of their weights."""
    for i in range(out.shape[0]):
        inverse = np.float32(1) / sums[1, i]
        for k in range(out.shape[1]):
            out[i, k] *= inverse
        lse[i] = sums[0, i] + np.log(sums[1, i])


@njit(**FAST)  # type: ignore[untyped-decorator]
def arguments_address(args: Any, index: int) -> Any:
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


def _make_take(numbers: int, *, bfloat16: bool) -> Callable[..., Any]:
    """take(q, into, scale): one token's queries of a key head, scaled, as float32."""

    @njit(**FAST)  # type: ignore[untyped-decorator]
    def take(q: int, into: int, scale: Any) -> None:
        scaled = carray(as_pointer(into), (numbers,), np.float32)
        if bfloat16:
            halves = carray(as_pointer(q), (numbers,), np.uint16)
            for i in range(numbers):
                scaled[i] = float_of_bits(np.int32(halves[i]) << np.int32(16)) * scale
        else:
            plain = carray(as_pointer(q), (numbers,), np.float32)
            for i in range(numbers):
                scaled[i] = plain[i] * scale

    return take  # type: ignore[no-any-return]


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


def _make_collect(block: int, head_dim: int, *, bfloat16: bool) -> Callable[..., Any]:
    mix = make_mix(block, head_dim, 4, bfloat16=bfloat16)
    mix_one = make_mix(block, head_dim, 1, bfloat16=bfloat16)

    @njit(**FAST)  # type: ignore[untyped-decorator]
    def collect(
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

    return collect  # type: ignore[no-any-return]
