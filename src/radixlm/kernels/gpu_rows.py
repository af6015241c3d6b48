"""Norms, gates and rows of latents on a GPU, in Triton: what torch does in several passes, in one.

Only what runs on a GPU imports this module.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def add_norm(hidden, added, weight, out, eps, SIZE: tl.constexpr, D: tl.constexpr):
    """hidden += added, unless that is None, then out = hidden / rms(hidden) * weight; of a row for
    each program, D the next power of two after its SIZE.
    """
    at = tl.program_id(0).to(tl.int64) * SIZE
    d = tl.arange(0, D)
    inside = d < SIZE
    x = tl.load(hidden + at + d, inside, 0.0).to(tl.float32)
    if added is not None:
        x += tl.load(added + at + d, inside, 0.0).to(tl.float32)
        rounded = x.to(hidden.dtype.element_ty)
        tl.store(hidden + at + d, rounded, inside)
        x = rounded.to(tl.float32)
    by = 1 / tl.sqrt(tl.sum(x * x, 0) / SIZE + eps)
    made = x * by * tl.load(weight + d, inside, 0.0).to(tl.float32)
    tl.store(out + at + d, made.to(out.dtype.element_ty), inside)


@triton.jit
def gated(gate_up, out, SIZE: tl.constexpr, BLOCK: tl.constexpr):
    """silu(gate) * up of rows of SIZE gates, then as many that they multiply; a program has BLOCK
    numbers of a row.
    """
    row = tl.program_id(0).to(tl.int64)
    d = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = d < SIZE
    at = gate_up + row * 2 * SIZE + d
    gate = tl.load(at, inside, 0.0).to(tl.float32)
    up = tl.load(at + SIZE, inside, 0.0).to(tl.float32)
    made = gate * tl.sigmoid(gate) * up
    tl.store(out + row * SIZE + d, made.to(out.dtype.element_ty), inside)


@triton.jit
def place_latents(
    qkv,
    turns,
    factors,
    slots,
    keys,
    stride,
    HEADS: tl.constexpr,
    PLAIN: tl.constexpr,
    RANK: tl.constexpr,
    TURNED: tl.constexpr,
    P: tl.constexpr,
    R: tl.constexpr,
    T: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Turn queries, in place, and a token's row, which is put into the pool unless its slot is
    below 0: a program takes BLOCK heads of a token, of which the one after all queries is the row.

    Of a query PLAIN numbers come before those that turn, of the row RANK. factors: see `Rotation`.
    P, R: the next power of two, T: of half of TURNED.
    """
    HALF: tl.constexpr = TURNED // 2
    token = tl.program_id(0).to(tl.int64)
    h, t = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)[:, None], tl.arange(0, T)[None, :]
    slot, is_q = tl.load(slots + token), h < HEADS
    kept = (h == HEADS) & (slot >= 0)
    head, into = qkv + token * stride + h * (PLAIN + TURNED), keys + slot * (RANK + TURNED)
    at, inside = head + tl.where(is_q, PLAIN, RANK) + t, t < HALF
    ok = (is_q | kept) & inside
    a, b = tl.load(at, ok, 0.0).to(tl.float32), tl.load(at + HALF, ok, 0.0).to(tl.float32)
    cos = tl.load(turns + token * TURNED + t, inside, 0.0).to(tl.float32)
    sin = tl.load(turns + token * TURNED + HALF + t, inside, 0.0).to(tl.float32)
    a, b = a * cos - b * sin, b * cos + a * sin
    if factors is not None:
        factor, p = tl.load(factors + token), tl.arange(0, P)[None, :]
        plain = is_q & (p < PLAIN)
        tl.store(head + p, tl.load(head + p, plain, 0.0).to(tl.float32) * factor, plain)
        factor = tl.where(is_q, factor, 1.0)
        a, b = a * factor, b * factor
    at = tl.where(is_q, at, into + RANK + t)
    tl.store(at, a, ok)
    tl.store(at + HALF, b, ok)
    r = tl.arange(0, R)
    ours = (r < RANK) & (slot >= 0) & (tl.program_id(1) == HEADS // BLOCK)
    row = qkv + token * stride + HEADS * (PLAIN + TURNED)
    tl.store(into + r, tl.load(row + r, ours, 0.0), ours)
