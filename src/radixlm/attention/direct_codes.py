"""The attention of single tokens to a coded pool: queries and weights become 16 bits with a scale;
scales of keys and values are taken into scores and weights, a tile at a time.

Where one of a head's numbers is not finite its scale is NaN, and so are scores, or mixed values.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from radixlm.attention.merge import STATE_BYTES
from radixlm.attention.tile_layout import TILE
from radixlm.kernels.bytes import make_quantize
from radixlm.kernels.code_dots import make_unscale, scale_scores, scale_weights, turn_codes
from radixlm.kernels.dots import make_weigh
from radixlm.kernels.vectors import MOST_LANES, floats, inner, integers


def make_code_queries(head_dim: int, *, bfloat16: bool) -> Any:
    """take(q, heads, codes, scales): a token's queries."""
    quantize, size = make_quantize(bfloat16=bfloat16, bits=16), head_dim * (2 if bfloat16 else 4)

    @inner
    def take(q: int, heads: int, codes: int, scales: int) -> None:
        for i in range(heads):
            quantize(q + i * size, head_dim, codes + 2 * i * head_dim, scales + 4 * i)
        turn_codes(codes, heads * head_dim)

    return take


def make_code_weigh(queries: int, head_dim: int, row_numbers: int, cap: float) -> Any:
    """weigh(pool_scales, slots, count, scores, states, key_heads, scales): a tile's scores, rows of
    `row_numbers`, become weights of 16 bits in place.

    pool_scales, slots: of the tile. states: each row's largest score and the sum of its weights.
    scales: address of each row's query's; they are followed by room for what each row's weights
    stand for, and for two scales of a tile's tokens. cap: of scores; 0: none.
    """
    weigh_row = make_weigh(head_dim**-0.5, bfloat16=False, cap=cap)
    quantize = make_quantize(bfloat16=False, bits=16)

    @inner
    def weigh(
        pool_scales: int,
        slots: int,
        count: int,
        scores: int,
        states: int,
        key_heads: int,
        scales: int,
    ) -> None:
        heads, whole = key_heads * queries, -(-count // MOST_LANES) * MOST_LANES
        of_weights, of_keys = scales + 4 * heads, scales + 8 * heads
        of_values = of_keys + 4 * TILE
        for head in range(key_heads):
            gather(pool_scales + 4 * head, 2 * key_heads, slots, count, of_keys)
            gather(pool_scales + 4 * (key_heads + head), 2 * key_heads, slots, count, of_values)
            for i in range(head * queries, (head + 1) * queries):
                row = scores + 4 * i * row_numbers
                scale_scores(row, of_keys, count, floats(scales)[i])
                weigh_row(row, count, row, whole, states + STATE_BYTES * i)
                scale_weights(row, of_values, count)
                quantize(row, whole, row, of_weights + 4 * i)

    return weigh


@inner
def gather(pool: int, stride: int, slots: int, count: int, into: int) -> None:
    """Numbers of these slots, `stride` numbers apart."""
    found, places, made = floats(pool), integers(slots), floats(into)
    for t in range(count):
        made[t] = found[np.int64(places[t]) * stride]


def make_code_values(head_dim: int) -> Any:
    """finish(mixed, heads, scales): sums of codes become numbers. scales: see `make_code_weigh`."""
    unscale = make_unscale(head_dim)

    @inner
    def finish(mixed: int, heads: int, scales: int) -> None:
        for i in range(heads):
            unscale(mixed + 4 * i * head_dim, floats(scales)[heads + i])

    return finish
