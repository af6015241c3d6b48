"""Attention on a GPU, in Triton: reads of contexts, and how parts of them become one.

Only a GPU's backend imports this module. Grids are fixed: how much there is to do is read from
`numbers`, in the device's memory, which begins with

    0, 1    reads of few tokens: how many, and where in `numbers` they begin
    2, 3    reads of many tokens, likewise
    4 to 7  tokens that have parts: how many; where the list of them begins, that of their first
            parts, and that of the parts' rows

A read is `FIELDS` numbers, see `attention.reads.ContextRead`; its slots begin at a place of the
request table. Scores are in base 2, sums in float32.

Loops over a context are `for`, which Triton pipelines, those over work `while`, which it does not.
"""

from __future__ import annotations

import triton
import triton.language as tl

FIELDS: tl.constexpr = tl.constexpr(7)
LOG2E: tl.constexpr = tl.constexpr(1.4426950408889634)


@triton.jit
def attend(
    q,
    keys,
    values,
    scales,
    table,
    places,
    numbers,
    out,
    parts,
    states,
    sinks,
    q_stride,
    scale,
    KIND: tl.constexpr,
    HEADS: tl.constexpr,
    KV: tl.constexpr,
    SIZE: tl.constexpr,
    WINDOW: tl.constexpr,
    CAP: tl.constexpr,
    M: tl.constexpr,
    N: tl.constexpr,
    D: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Compute reads: a program takes every n-th unit of work, a read of one key head.

    parts, states: a row of each head's sum, not divided, and the largest score and the sum of
    weights. sinks: or None. KIND: which reads. SIZE: of heads, of which D are computed. M: queries,
    those of a token that share a key head next to each other. Others: see `_over`.
    """
    GROUP: tl.constexpr = HEADS // KV
    count = tl.load(numbers + 2 * KIND) * KV
    reads = numbers + tl.load(numbers + 2 * KIND + 1)
    m, d = tl.arange(0, M), tl.arange(0, D)
    unit = tl.program_id(0).to(tl.int64)
    while unit < count:
        read, head = reads + unit // KV * FIELDS, unit % KV
        live, h = m // GROUP < tl.load(read + 1), head * GROUP + m % GROUP
        whole = live[:, None] & (d < SIZE)[None, :]
        token = tl.load(read) + m // GROUP
        x = tl.load(q + token[:, None] * q_stride + h[:, None] * SIZE + d[None, :], whole, 0.0)
        acc, total, top = _over(
            x, keys, values, scales, table, places, read, head, scale, GROUP, KV, SIZE,
            WINDOW, CAP, M, N, D, PRECISION,
        )  # fmt: skip
        part = tl.load(read + 6)
        if part < 0:
            if sinks is not None:
                acc, total = _with_sink(acc, total, top, tl.load(sinks + h, live, 0.0))
            into = (token * HEADS + h)[:, None] * SIZE + d[None, :]
            tl.store(out + into, (acc / total[:, None]).to(out.dtype.element_ty), whole)
        else:
            row = (part + m // GROUP) * HEADS + h
            tl.store(parts + row[:, None] * SIZE + d[None, :], acc, whole)
            tl.store(states + 2 * row, top, live)
            tl.store(states + 2 * row + 1, total, live)
        unit += tl.num_programs(0)


@triton.jit
def _over(
    x,
    keys,
    values,
    scales,
    table,
    places,
    read,
    head,
    scale,
    GROUP: tl.constexpr,
    KV: tl.constexpr,
    SIZE: tl.constexpr,
    WINDOW: tl.constexpr,
    CAP: tl.constexpr,
    M: tl.constexpr,
    N: tl.constexpr,
    D: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Queries of one key head, (M, D), over what a read names: sum, weights, largest scores.

    scales: of a pool in int8, places: of each slot the layers' own; or None. WINDOW: tokens that
    one sees, itself included, CAP: of scores; 0: none. N: tokens at a time.
    """
    slots, length = table + tl.load(read + 2), tl.load(read + 3).to(tl.int32)
    seen = (tl.load(read + 4).to(tl.int32) + tl.arange(0, M) // GROUP)[:, None]
    d = tl.arange(0, D)
    inside = d < SIZE
    acc, total = tl.zeros([M, D], tl.float32), tl.zeros([M], tl.float32)
    top = tl.full([M], float("-inf"), tl.float32)
    for start in range(0, length, N):
        n = start + tl.arange(0, N)
        here = n < length
        slot = tl.load(slots + n, here, 0)
        if places is not None:
            slot = tl.load(places + slot, here, 0)
        slot = slot.to(tl.int64)
        row = slot * KV + head
        k = tl.load(keys + row[None, :] * SIZE + d[:, None], here[None, :] & inside[:, None], 0)
        if scales is not None:
            k = k.to(tl.float32)
        s = dot(x, k.to(x.dtype), PRECISION) * (scale if CAP > 0 else scale * LOG2E)
        if scales is not None:
            s = s * tl.load(scales + row + slot * KV, here, 0.0)[None, :]
        if CAP > 0:
            s = (CAP * LOG2E) * (2 * tl.sigmoid(s * (2 / CAP)) - 1)
        shown = here[None, :] & (n[None, :] < seen)
        if WINDOW > 0:
            shown = shown & (n[None, :] >= seen - WINDOW)
        s = tl.where(shown, s, float("-inf"))
        new = tl.maximum(top, tl.max(s, 1))
        base = tl.where(new == float("-inf"), 0.0, new)
        p, shrink = tl.exp2(s - base[:, None]), tl.exp2(top - base)
        top, total = new, total * shrink + tl.sum(p, 1)
        v = tl.load(values + row[:, None] * SIZE + d[None, :], here[:, None] & inside[None, :], 0)
        if scales is not None:
            v, p = v.to(tl.float32), p * tl.load(scales + row + slot * KV + KV, here, 0.0)[None, :]
        acc = dot(p.to(x.dtype), v.to(x.dtype), PRECISION, acc * shrink[:, None])
    return acc, total, top


@triton.jit
def dot(a, b, PRECISION: tl.constexpr, acc=None):
    """a @ b + acc. PRECISION: of float32; wide: in float32, since the interpreter's bfloat16 is
    wrong.
    """
    if PRECISION == "wide":
        made = tl.dot(a.to(tl.float32), b.to(tl.float32))
        return made if acc is None else made + acc
    return tl.dot(a, b, acc, input_precision=PRECISION)


@triton.jit
def _with_sink(acc, total, top, sink):
    """Take scores without values in: one for each row of `acc`."""
    sink = sink * LOG2E
    new = tl.maximum(top, sink)
    shrink = tl.exp2(top - new)
    return acc * shrink[:, None], total * shrink + tl.exp2(sink - new)


@triton.jit
def merge(
    numbers,
    parts,
    states,
    out,
    sinks,
    HEADS: tl.constexpr,
    SIZE: tl.constexpr,
    D: tl.constexpr,
    J: tl.constexpr,
):
    """Add up the parts of tokens that have several, in their order, J at a time. A program takes
    every n-th head of all tokens.
    """
    count = tl.load(numbers + 4) * HEADS
    tokens, begins = numbers + tl.load(numbers + 5), numbers + tl.load(numbers + 6)
    rows = numbers + tl.load(numbers + 7)
    j, d = tl.arange(0, J), tl.arange(0, D)
    inside = d < SIZE
    unit = tl.program_id(0).to(tl.int64)
    while unit < count:
        index, head = unit // HEADS, unit % HEADS
        low, high = tl.load(begins + index), tl.load(begins + index + 1)
        top = tl.full([1], float("-inf"), tl.float32)
        total = tl.zeros([1], tl.float32)
        acc = tl.zeros([1, D], tl.float32)
        while low < high:
            here = low + j < high
            row = tl.load(rows + low + j, here, 0) * HEADS + head
            its_top = tl.load(states + 2 * row, here, float("-inf"))
            its_total = tl.load(states + 2 * row + 1, here, 0.0)
            part = tl.load(
                parts + row[:, None] * SIZE + d[None, :], here[:, None] & inside[None, :], 0.0
            )
            new = tl.maximum(top, tl.max(its_top, 0))
            base = tl.where(new == float("-inf"), 0.0, new)
            weight, shrink = tl.exp2(its_top - base), tl.exp2(top - base)
            top, total = new, total * shrink + tl.sum(its_total * weight, 0)
            acc = acc * shrink[:, None] + tl.sum(part * weight[:, None], 0)[None, :]
            low += J
        if sinks is not None:
            acc, total = _with_sink(acc, total, top, tl.load(sinks + head))
        into = (tl.load(tokens + index) * HEADS + head) * SIZE + d[None, :]
        made = (acc / total[:, None]).to(out.dtype.element_ty)
        tl.store(out + into, made, inside[None, :])
        unit += tl.num_programs(0)
