"""The state of a token's attention over a stretch of its context, and how two states become one
(FlashAttention-2, Dao, 2023; for parts of a context: Hydragen, Juravsky et al., 2024).

Of a stretch there are, for each head, its values weighted by 2^(scale (score - top)) and added up,
and its *state*: `top`, the score that weights are measured from, not scaled, which is the largest
or near enough (see `tile_strips`), and the sum of the weights. The answer is the one divided by the
other:

    answers   (tokens, heads, head_dim)      in the type of the queries
    parts     (rows, heads, head_dim)        float32: weighted values
    states    (rows, heads, 2)               float32

A token with one read has its answer at once. One with several (its own context and what it shares;
pieces of a long context) has a row of parts for each; a kernel adds them up, in the order of the
context: so the bits of a sum do not depend on who computed its parts, and when.
"""

from __future__ import annotations

import math
from collections import namedtuple
from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types

from radixlm.kernels.jit import compiled
from radixlm.kernels.vectors import (
    LOG2_E,
    MOST_EXACT,
    MOST_LANES,
    Lanes,
    clear,
    emitted,
    floats,
    inner,
    make_put,
    offset,
    over_rows,
    vectors_and_rest,
    words,
)

# A row of parts that means: the token's answer.
ANSWER = -1
STATE_BYTES = 8
_INT32, _INT64 = ir.IntType(32), ir.IntType(64)


@inner
def begin(mixed: int, states: int, rows: int, width: int) -> None:
    """Rows of `width` numbers that know of nothing yet."""
    clear(mixed, rows * width)
    for row in range(rows):
        state = floats(states + STATE_BYTES * row)
        state[0], state[1] = -np.inf, np.float32(0)


def make_fold(head_dim: int) -> Any:
    """fold(mixed, state, part, part_state): take what follows in the context into what comes before
    it. All are addresses.
    """
    scale = LOG2_E / math.sqrt(head_dim)

    @emitted(types.void, *[types.int64] * 4)
    def fold(builder: ir.IRBuilder, mixed: Any, state: Any, part: Any, part_state: Any) -> None:
        ops, first = Lanes(builder, MOST_LANES), ir.Constant(_INT32, 0)
        tops = [ops.load_one(at, 0) for at in (state, part_state)]
        top, factors = ops.larger(*tops), []
        for one in tops:
            below = builder.fmul(builder.fsub(one, top), ops.all(scale))
            power = ops.exp2(below, MOST_EXACT)
            factors.append(builder.extract_element(power, first))

        def joined(ops: Lanes, one: Any, other: Any) -> Any:
            before, after = (ops.spread(factor) for factor in factors)
            return ops.multiply_add(other, after, builder.fmul(one, before))

        total = joined(ops, ops.load_one(state, 1), ops.load_one(part_state, 1))
        for place, value in enumerate((top, total)):
            ops.store(builder.extract_element(value, first), state, place)
        for lanes, index in vectors_and_rest(builder, ir.Constant(_INT64, head_dim)):
            here, there = (offset(builder, at, index, 4) for at in (mixed, part))
            lanes.store(joined(lanes, lanes.load(here, 0), lanes.load(there, 0)), here, 0)

    return fold


def make_write(head_dim: int, *, bfloat16: bool) -> Any:
    """write(args, mixed, state, token, part, head, heads): one head's answer, or its part. args: a
    kernel's, with answers, parts, states and sinks.
    """
    put, put_part = _make_put_answer(head_dim, bfloat16=bfloat16), make_put(bfloat16=False)

    @inner
    def write(
        args: Any, mixed: int, state: int, token: int, part: int, head: int, heads: int
    ) -> None:
        if part == ANSWER:
            put(mixed, state, args.answers, token * heads + head, args.sinks, head)
        else:
            at = part * heads + head
            put_part(mixed, np.float32(1), head_dim, args.parts + at * head_dim * 4)
            words(args.states)[at] = words(state)[0]

    return write


def _make_put_answer(head_dim: int, *, bfloat16: bool) -> Any:
    """put_answer(mixed, state, answers, place, sinks, head). sinks: address of a float32 of each
    head, a score that has a weight and no value (Xiao et al., 2023); 0: there are none. They come
    in here, where all of a context is known.
    """
    put, element = make_put(bfloat16=bfloat16), 2 if bfloat16 else 4
    inverse = _make_inverse(head_dim)

    @inner
    def put_answer(mixed: int, state: int, answers: int, place: int, sinks: int, head: int) -> None:
        if sinks == 0:
            factor = np.float32(1) / floats(state)[1]
        else:
            factor = inverse(state, floats(sinks)[head])
        put(mixed, factor, head_dim, answers + place * head_dim * element)

    return put_answer


def _make_inverse(head_dim: int) -> Any:
    """inverse(state, sink): 1 over the sum of weights with that of a sink, measured from `top`.
    None of the powers is above 1, whichever is larger.
    """
    scale = LOG2_E / math.sqrt(head_dim)

    @emitted(types.float32, types.int64, types.float32)
    def inverse(builder: ir.IRBuilder, state: Any, sink: Any) -> Any:
        ops = Lanes(builder, MOST_LANES)
        top = builder.fmul(ops.load_one(state, 0), ops.all(scale))
        other = builder.fmul(ops.spread(sink), ops.all(LOG2_E))
        most = ops.larger(top, other)
        powers = [ops.exp2(builder.fsub(one, most), MOST_EXACT) for one in (top, other)]
        total = ops.multiply_add(ops.load_one(state, 1), powers[0], powers[1])
        return builder.extract_element(builder.fdiv(powers[0], total), ir.Constant(_INT32, 0))

    return inverse


_Arguments = namedtuple(
    "_Arguments", "counters rows heads token first parts_of parts states answers sinks"
)


@compiled(_Arguments)
def make_merge_kernel(head_dim: int, *, bfloat16: bool) -> Callable[[Any], None]:
    """The kernel for answers in this type, or float32. rows: tokens. token, first, parts_of: lists
    of int64, see `reads.number_parts`.
    """
    fold, put = make_fold(head_dim), _make_put_answer(head_dim, bfloat16=bfloat16)

    @inner
    def merge(args: _Arguments, row: int) -> None:
        begin, end = words(args.first)[row], words(args.first)[row + 1]
        parts_of = words(args.parts_of + 8 * begin)
        for head in range(args.heads):
            one = parts_of[0] * args.heads + head
            mixed, state = args.parts + 4 * one * head_dim, args.states + STATE_BYTES * one
            for index in range(1, end - begin):
                other = parts_of[index] * args.heads + head
                fold(
                    mixed,
                    state,
                    args.parts + 4 * other * head_dim,
                    args.states + STATE_BYTES * other,
                )
            place = words(args.token)[row] * args.heads + head
            put(mixed, state, args.answers, place, args.sinks, head)

    return over_rows(merge, 1)
