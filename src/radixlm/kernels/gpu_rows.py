"""Norms and gates of a GPU, in Triton: what torch does in two passes, in one.

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
