"""Where compiled attention leaves what a token got from one read, and how that becomes its answer.

A token with one read has its answer at once. One with several (its own context and what it shares;
pieces of a long context) has a row of parts for each, and a kernel adds them up by their
log-sum-exp (see `torch_backend`):

    answers   (tokens, heads, head_dim)      in the type of the queries
    parts     (rows, heads, head_dim)        float32, normalized
    lse       (rows, heads)                  float32
"""

from __future__ import annotations

import math
from collections import namedtuple
from collections.abc import Callable
from typing import Any

import numpy as np

from radixlm.kernels.jit import compiled
from radixlm.kernels.vectors import floats, inner, make_put, over_rows, words

# A row of parts that means: the token's answer.
ANSWER = -1


def make_write(head_dim: int, *, bfloat16: bool) -> Any:
    """write(args, mixed, top, total, token, part, head, heads): one head's mixed values, float32,
    divided by the sum of weights; top: the largest score, not scaled; args: a kernel's, with
    answers, parts and lse.
    """
    element, scale = 2 if bfloat16 else 4, np.float32(1 / math.sqrt(head_dim))
    put, put_part = make_put(bfloat16=bfloat16), make_put(bfloat16=False)

    @inner
    def write(
        args: Any,
        mixed: int,
        top: float,
        total: float,
        token: int,
        part: int,
        head: int,
        heads: int,
    ) -> None:
        inverse = np.float32(1) / total if total != 0 else np.float32(0)
        if part == ANSWER:
            at = token * heads + head
            put(mixed, inverse, head_dim, args.answers + at * head_dim * element)
        else:
            at = part * heads + head
            put_part(mixed, inverse, head_dim, args.parts + at * head_dim * 4)
            floats(args.lse)[at] = scale * top + np.log(total)

    return write


_Arguments = namedtuple(
    "_Arguments", "counters rows heads head_dim token first parts_of parts lse answers"
)


@compiled(_Arguments)
def make_merge_kernel(*, bfloat16: bool) -> Callable[[Any], None]:
    """The kernel for answers in this type, or float32. rows: tokens. token, first, parts_of: lists
    of int64, see `reads.number_parts`.
    """
    put, element = make_put(bfloat16=bfloat16), 2 if bfloat16 else 4

    @inner
    def merge(args: _Arguments, row: int) -> None:
        size = args.head_dim
        begin, end = words(args.first)[row], words(args.first)[row + 1]
        parts_of = words(args.parts_of + 8 * begin)
        for head in range(args.heads):
            total = _added_up(args, parts_of, end - begin, head)
            made = args.parts + 4 * (parts_of[0] * args.heads + head) * size
            into = (words(args.token)[row] * args.heads + head) * size * element
            put(made, np.float32(1) / total, size, args.answers + into)

    return over_rows(merge, 1)


@inner
def _added_up(args: _Arguments, rows: Any, count: int, head: int) -> Any:
    """The first row of one head becomes the sum of all, weighted; returns the sum of weights."""
    lse, heads, size = floats(args.lse), args.heads, args.head_dim
    top = lse[rows[0] * heads + head]
    for index in range(1, count):
        top = max(top, lse[rows[index] * heads + head])
    total = np.float32(0)
    into = floats(args.parts + 4 * (rows[0] * heads + head) * size)
    for index in range(count):
        at = rows[index] * heads + head
        weight = np.exp(lse[at] - top)
        total += weight
        part = floats(args.parts + 4 * at * size)
        for i in range(size):
            into[i] = weight * part[i] + (into[i] if index else np.float32(0))
    return total
