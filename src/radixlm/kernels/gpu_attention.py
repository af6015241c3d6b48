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
    GROUP: tl.constexpr,
    KV: tl.constexpr,
    SIZE: tl.constexpr,
    VALUES: tl.constexpr,
    WINDOW: tl.constexpr,
    CAP: tl.constexpr,
    M: tl.constexpr,
    N: tl.constexpr,
    D: tl.constexpr,
    E: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Compute reads: a program takes every n-th unit of work, a read by GROUP heads of a key head.

    parts, states: a row of each head's sum, not divided, and the largest score and the sum of
    weights. sinks: or None. KIND: which reads. M: queries, a token's next to each other. D, E: as
    how many VALUES, and what a key has beside them, are computed; E 0: values are no latents.
    """
    UNITS: tl.constexpr = HEADS // GROUP
    count = tl.load(numbers + 2 * KIND) * UNITS
    reads = numbers + tl.load(numbers + 2 * KIND + 1)
    m, unit = tl.arange(0, M), tl.program_id(0).to(tl.int64)
    while unit < count:
        read, head = reads + unit // UNITS * FIELDS, unit % UNITS
        live, h = m // GROUP < tl.load(read + 1), head * GROUP + m % GROUP
        token = tl.load(read) + m // GROUP
        at = q + token * q_stride + h * SIZE
        rest = _numbers(at, live, VALUES, SIZE, E) if E > 0 else None
        acc, total, top = _over(
            _numbers(at, live, 0, VALUES, D), rest, keys, values, scales, table, places, read,
            head * KV // UNITS, scale, GROUP, KV, SIZE, VALUES, WINDOW, CAP, N, PRECISION,
        )  # fmt: skip
        part = tl.load(read + 6)
        if part < 0:
            if sinks is not None:
                acc, total = _with_sink(acc, total, top, tl.load(sinks + h, live, 0.0))
            _put(out + (token * HEADS + h) * VALUES, acc / total[:, None], live, VALUES)
        else:
            row = (part + m // GROUP) * HEADS + h
            _put(parts + row * VALUES, acc, live, VALUES)
            tl.store(states + 2 * row, top, live)
            tl.store(states + 2 * row + 1, total, live)
        unit += tl.num_programs(0)


@triton.jit
def _numbers(at, here, FIRST: tl.constexpr, STOP: tl.constexpr, D: tl.constexpr):
    """Numbers [FIRST, STOP) of each row that is `here`, as D; others, and behind them, are 0."""
    d = FIRST + tl.arange(0, D)[None, :]
    return tl.load(at[:, None] + d, here[:, None] & (d < STOP), 0)


@triton.jit
def _put(at, x, here, SIZE: tl.constexpr):
    d = tl.arange(0, x.shape[1])[None, :]
    tl.store(at[:, None] + d, x.to(at.dtype.element_ty), here[:, None] & (d < SIZE))


@triton.jit
def _over(
    x,
    rest,
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
    VALUES: tl.constexpr,
    WINDOW: tl.constexpr,
    CAP: tl.constexpr,
    N: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Queries of one key head, (M, D), over what a read names: sum, weights, largest scores.

    rest: (M, E) of queries over latents, whose first VALUES numbers are their value; or None.
    scales: of a pool in int8, places: of each slot the layers' own; or None. WINDOW: tokens that
    one sees, itself included, CAP: of scores; 0: none. N: tokens at a time.
    """
    M: tl.constexpr = x.shape[0]
    slots, length = table + tl.load(read + 2), tl.load(read + 3).to(tl.int32)
    seen = (tl.load(read + 4).to(tl.int32) + tl.arange(0, M) // GROUP)[:, None]
    acc, total = tl.zeros(x.shape, tl.float32), tl.zeros([M], tl.float32)
    top = tl.full([M], float("-inf"), tl.float32)
    for start in range(0, length, N):
        n = start + tl.arange(0, N)
        here = n < length
        slot = _slot(slots + n, here, places)
        row = slot * KV + head
        k = _numbers(keys + row * SIZE, here, 0, VALUES, x.shape[1])
        if scales is not None:
            k = k.to(tl.float32)
        s = dot(x, tl.trans(k.to(x.dtype)), PRECISION)
        if rest is not None:
            more = _numbers(keys + row * SIZE, here, VALUES, SIZE, rest.shape[1])
            s = dot(rest, tl.trans(more), PRECISION, s)
        s *= scale if CAP > 0 else scale * LOG2E
        if scales is not None:
            s = s * tl.load(scales + row + slot * KV, here, 0.0)[None, :]
        s = _shown(s, n[None, :], seen, here[None, :], WINDOW, CAP)
        new = tl.maximum(top, tl.max(s, 1))
        base = tl.where(new == float("-inf"), 0.0, new)
        p, shrink = tl.exp2(s - base[:, None]), tl.exp2(top - base)
        top, total = new, total * shrink + tl.sum(p, 1)
        v = k if rest is not None else _numbers(values + row * SIZE, here, 0, SIZE, x.shape[1])
        if scales is not None:
            v, p = v.to(tl.float32), p * tl.load(scales + row + slot * KV + KV, here, 0.0)[None, :]
        acc = dot(p.to(x.dtype), v.to(x.dtype), PRECISION, acc * shrink[:, None])
    return acc, total, top


@triton.jit
def _slot(at, here, places):
    slot = tl.load(at, here, 0)
    if places is not None:
        slot = tl.load(places + slot, here, 0)
    return slot.to(tl.int64)


@triton.jit
def _shown(s, n, seen, here, WINDOW: tl.constexpr, CAP: tl.constexpr):
    """Scores, capped, of what is seen."""
    if CAP > 0:
        s = (CAP * LOG2E) * (2 * tl.sigmoid(s * (2 / CAP)) - 1)
    shown = here & (n < seen)
    if WINDOW > 0:
        shown = shown & (n >= seen - WINDOW)
    return tl.where(shown, s, float("-inf"))


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
