"""Placing on a GPU, in Triton, as `attention.place` does it: queries and keys are normed and
turned, keys and values put into the pool.

Only a GPU's backend imports this module.
"""

from __future__ import annotations

import triton
import triton.language as tl

# A float32 of this size has no digits behind the point: adding it rounds, halves to even.
ROUNDING: tl.constexpr = tl.constexpr(12582912.0)


@triton.jit
def place(
    qkv,
    turns,
    factors,
    slots,
    places,
    keys,
    values,
    scales,
    q_weight,
    k_weight,
    eps,
    stride,
    HEADS: tl.constexpr,
    KV: tl.constexpr,
    SIZE: tl.constexpr,
    D: tl.constexpr,
    BLOCK: tl.constexpr,
    AFTER: tl.constexpr,
):
    """A program takes BLOCK heads of one token: of queries, keys, then values.

    slots: below 0 nothing is kept of a token. turns: of each the cosines, then the sines. factors,
    places, scales, weights: None where there are none. D: half of a head, or the next power of two.
    AFTER: norms come after turning.
    """
    HALF: tl.constexpr = SIZE // 2
    token = tl.program_id(0).to(tl.int64)
    h, d = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK), tl.arange(0, D)
    inside = d < HALF
    ok = (h < HEADS + 2 * KV)[:, None] & inside[None, :]
    is_q, is_v = (h < HEADS)[:, None], (h >= HEADS + KV)[:, None]
    at = qkv + token * stride + h[:, None] * SIZE + d[None, :]
    low, high = tl.load(at, ok, 0.0).to(tl.float32), tl.load(at + HALF, ok, 0.0).to(tl.float32)
    a, b = low, high  # both halves of a head
    if q_weight is not None and not AFTER:
        a, b = _normed(a, b, is_q, inside, d, q_weight, k_weight, eps, SIZE)
    cos = tl.load(turns + token * SIZE + d, inside, 0.0).to(tl.float32)[None, :]
    sin = tl.load(turns + token * SIZE + HALF + d, inside, 0.0).to(tl.float32)[None, :]
    a, b = a * cos - b * sin, b * cos + a * sin
    if q_weight is not None and AFTER:
        a, b = _normed(a, b, is_q, inside, d, q_weight, k_weight, eps, SIZE)
    if factors is not None:
        factor = tl.where(is_q, tl.load(factors + token), 1.0)
        a, b = a * factor, b * factor
    a, b = tl.where(is_v, low, a), tl.where(is_v, high, b)
    a, b = a.to(qkv.dtype.element_ty), b.to(qkv.dtype.element_ty)
    _put(at, a, b, ok & is_q, HALF)
    slot, is_k = tl.load(slots + token), ~(is_q | is_v)
    kept = slot >= 0
    if places is not None:
        slot = tl.load(places + slot, kept, 0).to(tl.int64)
    head = tl.where(h < HEADS + KV, h - HEADS, h - HEADS - KV)
    into = (slot * KV + head)[:, None] * SIZE + d[None, :]
    if scales is not None:
        a, b, scale = _codes(a.to(tl.float32), b.to(tl.float32))
        side = slot * 2 * KV + h - HEADS
        tl.store(scales + side, scale, (h >= HEADS) & (h < HEADS + 2 * KV) & kept)
    _put(keys + into, a, b, ok & is_k & kept, HALF)
    _put(values + into, a, b, ok & is_v & kept, HALF)


@triton.jit
def _codes(a, b):
    """Both halves of heads as int8, and their scales, as `KVPool` has them."""
    largest = tl.maximum(tl.max(tl.maximum(tl.abs(a), tl.abs(b)), 1), 2.0**-100)
    broken = tl.max(((a - a != 0) | (b - b != 0)).to(tl.int32), 1) > 0
    factor = (127.0 / largest)[:, None]
    scale = tl.where(broken, float("nan"), largest / 127.0)
    return _rounded(a * factor), _rounded(b * factor), scale


@triton.jit
def _normed(a, b, is_q, inside, d, q_weight, k_weight, eps, SIZE: tl.constexpr):
    """Heads divided by their root mean squares, times weights."""
    HALF: tl.constexpr = SIZE // 2
    squares = tl.sum(a * a, 1) + tl.sum(b * b, 1)
    by = (1 / tl.sqrt(squares / SIZE + eps))[:, None]
    of_q, of_k = tl.load(q_weight + d, inside, 0.0), tl.load(k_weight + d, inside, 0.0)
    first = tl.where(is_q, of_q[None, :], of_k[None, :]).to(tl.float32)
    of_q = tl.load(q_weight + HALF + d, inside, 0.0)
    of_k = tl.load(k_weight + HALF + d, inside, 0.0)
    second = tl.where(is_q, of_q[None, :], of_k[None, :]).to(tl.float32)
    return a * by * first, b * by * second


@triton.jit
def _put(at, a, b, ok, HALF: tl.constexpr):
    tl.store(at, a, ok)
    tl.store(at + HALF, b, ok)


@triton.jit
def _rounded(x):
    whole = (x + ROUNDING) - ROUNDING
    return tl.where(whole == whole, whole, 0.0).to(tl.int8)
