"""Queries turned by their positions, new keys turned and put into the pool, new values put there:
one pass over what the projection gave, where torch takes ten.

    row   | queries        | keys   | values |        of one token
            normed, turned   as q     as is
            in place,        into the pool, at the token's slot; coded: as int8, with a
            multiplied       scale for each head
"""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable
from typing import Any, Literal

import numpy as np
from llvmlite import ir
from numba import types

from radixlm.attention.tile_layout import copy_bytes
from radixlm.kernels.bytes import make_quantize
from radixlm.kernels.jit import compiled
from radixlm.kernels.vectors import (
    MOST_LANES,
    Lanes,
    emitted,
    float_of_bits,
    floats,
    inner,
    offset,
    over_rows,
    vectors_and_rest,
    words,
)

ROWS_PER_UNIT = 8
_INT64 = ir.IntType(64)

_Arguments = namedtuple(
    "_Arguments",
    "counters rows heads key_heads qkv stride table factors slots keys values scales "
    "q_weight k_weight eps after",
)


@compiled(_Arguments)
def make_place_kernel(head_dim: int, *, bfloat16: bool, coded: bool) -> Callable[[Any], None]:
    """rows: new tokens, `stride` bytes apart. table: of each token the cosines, then the sines.
    factors: what each token's queries are multiplied by, float32, if it is not 0.
    slots: address of int64, each in the pool. scales: of a pool that is coded. q_weight, k_weight:
    queries and keys are divided by their root mean square and multiplied by these first, or after
    they are turned, if they are not 0; eps: the bits of a float32.
    """
    size = head_dim * (2 if bfloat16 else 4)
    plain, first, last = (
        _make_turn(head_dim, bfloat16=bfloat16, normed=when) for when in ("", "before", "after")
    )
    squares = _make_squares(head_dim, bfloat16=bfloat16)

    @inner
    def turn(args: _Arguments, x: int, into: int, table: int, weight: int, factor: float) -> None:
        if weight == 0:
            plain(x, into, table, factor, weight)
        else:
            mean = squares(x) / np.float32(head_dim)
            factor = factor / np.sqrt(mean + float_of_bits(np.int32(args.eps)))
            if args.after:
                last(x, into, table, factor, weight)
            else:
                first(x, into, table, factor, weight)

    put = _make_put_coded(head_dim, turn, bfloat16=bfloat16) if coded else _make_put(size, turn)

    @inner
    def place(args: _Arguments, row: int) -> None:
        x, table = args.qkv + row * args.stride, args.table + row * size
        factor = floats(args.factors)[row] if args.factors else np.float32(1)
        for head in range(args.heads):
            turn(args, x + head * size, x + head * size, table, args.q_weight, factor)
        put(args, x + args.heads * size, table, words(args.slots)[row])

    return over_rows(place, ROWS_PER_UNIT)


def _make_put(size: int, turn: Any) -> Any:
    """put(args, x, table, slot): a token's keys, turned, and its values, `size` bytes a head."""

    @inner
    def put(args: _Arguments, x: int, table: int, slot: int) -> None:
        at = slot * args.key_heads * size
        for head in range(args.key_heads):
            into = args.keys + at + head * size
            turn(args, x + head * size, into, table, args.k_weight, np.float32(1))
        x += args.key_heads * size
        copy_bytes(x, args.key_heads * size, args.values + at)

    return put


def _make_put_coded(head_dim: int, turn: Any, *, bfloat16: bool) -> Any:
    """put(args, x, table, slot): the same in int8, with scales. Keys are turned in place first."""
    size, quantize = head_dim * (2 if bfloat16 else 4), make_quantize(bfloat16=bfloat16, bits=8)

    @inner
    def put(args: _Arguments, x: int, table: int, slot: int) -> None:
        heads = args.key_heads
        for head in range(heads):
            key, value = x + head * size, x + (heads + head) * size
            turn(args, key, key, table, args.k_weight, np.float32(1))
            into, scale = (
                (slot * heads + head) * head_dim,
                args.scales + 4 * (2 * slot * heads + head),
            )
            quantize(key, head_dim, args.keys + into, scale)
            quantize(value, head_dim, args.values + into, scale + 4 * heads)

    return put


def _make_turn(head_dim: int, *, bfloat16: bool, normed: Literal["", "before", "after"]) -> Any:
    """turn(x, into, table, factor, weight): the pairs (i, i + head_dim / 2) by their angles, of x
    multiplied by a factor; before or after that by weights.
    """
    half, element = head_dim // 2, 2 if bfloat16 else 4

    @emitted(types.void, *[types.int64] * 3, types.float32, types.int64)
    def turn(
        builder: ir.IRBuilder, x: Any, into: Any, table: Any, factor: Any, weight: Any
    ) -> None:
        def two(ops: Lanes, start: Any, index: Any) -> list[Any]:
            here = offset(builder, start, index, element)
            return [ops.load(here, place, bfloat16=bfloat16) for place in (0, half)]

        for ops, index in vectors_and_rest(builder, ir.Constant(_INT64, half)):

            def weighed(pair: list[Any], ops: Lanes = ops, index: Any = index) -> list[Any]:
                weights = two(ops, weight, index)
                return [builder.fmul(*each) for each in zip(pair, weights, strict=True)]

            spread, (cos, sin) = ops.spread(factor), two(ops, table, index)
            pair = [builder.fmul(one, spread) for one in two(ops, x, index)]
            low, high = weighed(pair) if normed == "before" else pair
            turned = [
                builder.fsub(builder.fmul(low, cos), builder.fmul(high, sin)),
                builder.fadd(builder.fmul(high, cos), builder.fmul(low, sin)),
            ]
            if normed == "after":
                turned = weighed(turned)
            at = offset(builder, into, index, element)
            for start, value in zip((0, half * element), turned, strict=True):
                there = builder.add(at, ir.Constant(_INT64, start))
                ops.put(value, there, bfloat16=bfloat16)

    return turn


def _make_squares(head_dim: int, *, bfloat16: bool) -> Any:
    """squares(x): their sum over a head."""

    @emitted(types.float32, types.int64)
    def squares(builder: ir.IRBuilder, x: Any) -> Any:
        ops, one = Lanes(builder, MOST_LANES), Lanes(builder, 1)
        total, rest = ops.all(0), one.all(0)
        whole = head_dim // MOST_LANES * MOST_LANES
        for place in range(0, whole, MOST_LANES):
            value = ops.load(x, place, bfloat16=bfloat16)
            total = ops.multiply_add(value, value, total)
        for place in range(whole, head_dim):
            value = one.load(x, place, bfloat16=bfloat16)
            rest = one.multiply_add(value, value, rest)
        return builder.fadd(ops.sum(total), one.sum(rest))

    return squares
