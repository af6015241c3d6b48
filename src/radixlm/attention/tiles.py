"""Attention of many queries over one context: compiled, a tile of tokens at a time.

The queries of a few neighbouring tokens that share a key head, a block, meet the context tile by
tile; scores never leave the processor's nearest caches (FlashAttention-2, Dao, 2023, for the CPU):

    pool        7 8 3 4 5 6 9 1 2 ..    where slots say
                +-----tile-----+        keys transposed, values in pairs, once for the block
    strip of  +-+--------------+
    queries   | |    scores    |  ->  weights  x  values  ->  taken into what the strip has so far,
              +-+--------------+                              see `merge`
    next strip  ...

Where AMX multiplies a strip goes another way, see `tile_strips`.
A unit of work is one block, one key head and one piece of the context; threads take one after the
other from a counter.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from radixlm.attention.merge import ANSWER, STATE_BYTES, make_fold, make_write
from radixlm.attention.reads import READ_BYTES, ReadArguments
from radixlm.attention.tile_codes import make_pack_codes
from radixlm.attention.tile_layout import TILE, TileShape, fetch, make_pack, make_take, places_of
from radixlm.attention.tile_strips import make_tile_strip
from radixlm.kernels.amx import TILE_ROWS, TILE_UNITS, configure, release
from radixlm.kernels.dots import make_weigh
from radixlm.kernels.jit import compiled
from radixlm.kernels.strips import UNIT_BYTES, make_product
from radixlm.kernels.vectors import MOST_LANES, floats, inner, take_unit, thread_number, words

# A tile that is read next: addresses of its head's keys, values and slots, and how many there are.
_Ahead = tuple[int, int, int, int]


@compiled(ReadArguments)
def make_tile_kernel(shape: TileShape) -> Callable[[Any], None]:
    """The kernel for a shape. Takes a second to compile, once.

    reads: address of rows of int64, see `ContextRead`. slots: address of int32. scales: of a pool
    that is coded.
    """
    take, pack = make_take(shape), (make_pack_codes if shape.coded else make_pack)(shape)
    strip, close = make_tile_strip(shape) if shape.tiles else _make_vector_strip(shape)
    places, queries = places_of(shape), shape.queries
    head_bytes, kept_bytes = shape.head_bytes, shape.kept_bytes
    finish = _make_finish(shape)
    height, tiles = shape.strip, shape.tiles

    def attend(args: ReadArguments) -> None:
        heads = args.key_heads
        base = args.scratch + thread_number(args.counters) * places.end
        unit = take_unit(args.counters)
        if unit < args.items * heads:
            ahead = first_tile(args, unit, kept_bytes)
            fetch_tile(ahead, args, kept_bytes, 0, ahead[3])
            if tiles:
                configure(TILE_ROWS, TILE_ROWS, TILE_UNITS)
        while unit < args.items * heads:
            item, head = unit // heads, unit % heads
            read = words(args.reads + READ_BYTES * item)
            token, tokens, slots = read[0], read[1], args.slots + 4 * read[2]
            count, seen, part = read[3], read[4], read[6]
            q = args.q + token * args.q_stride + head * queries * head_bytes
            take(q, args.q_stride, tokens, base)
            keys, values = args.keys + head * kept_bytes, args.values + head * kept_bytes
            rows = tokens * queries
            for first in range(0, count, TILE):
                width = min(TILE, count - first)
                here = slots + 4 * first
                pack(keys, values, args.scales + 4 * head, heads, here, width, base)
                ahead = (keys, values, here + 4 * width, min(TILE, count - first - width))
                if not ahead[3]:
                    unit = take_unit(args.counters)
                    ahead = first_tile(args, min(unit, args.items * heads - 1), kept_bytes)
                for row in range(0, rows, height):
                    a, b = ahead[3] * row // rows, ahead[3] * min(row + height, rows) // rows
                    fetch_tile(ahead, args, kept_bytes, a, b)
                    strip(base, row, rows - 1, seen - first, width, first == 0)
            close(base, rows)
            finish(args, base, head, token, tokens, part)
        if tiles:
            release()

    return attend


@inner
def first_tile(args: ReadArguments, unit: int, head_bytes: int) -> _Ahead:
    """The tile that a unit reads first."""
    item, head = unit // args.key_heads, unit % args.key_heads
    read = words(args.reads + READ_BYTES * item)
    start = head * head_bytes
    return args.keys + start, args.values + start, args.slots + 4 * read[2], min(TILE, read[3])


@inner
def fetch_tile(ahead: _Ahead, args: ReadArguments, head_bytes: int, a: int, b: int) -> None:
    """Have one head's keys and values of the tokens from a to b of a tile fetched, and scales."""
    token_bytes, scale_bytes = args.key_heads * head_bytes, 8 * args.key_heads
    fetch(ahead[0], token_bytes, head_bytes, ahead[2], a, b)
    fetch(ahead[1], token_bytes, head_bytes, ahead[2], a, b)
    if args.scales != 0:
        fetch(args.scales, scale_bytes, scale_bytes, ahead[2], a, b)


def _make_vector_strip(shape: TileShape) -> tuple[Any, Any]:
    """strip(base, row, last, seen, count, begins): a strip's rows of a block over a tile of `count`
    tokens, of which the block's first token sees `seen`; `last` is the block's last row.

    A tile is weighed and mixed by itself, then taken into what its rows have so far: as if
    another thread, or another step, had done it.
    """
    places, units, pairs, queries = places_of(shape), shape.units, shape.pairs, shape.queries
    lanes = shape.vectors * MOST_LANES
    height, step, width = shape.strip, shape.step, shape.width * UNIT_BYTES
    scores, mix = make_product(height, shape.vectors, pairs=pairs), _make_mix(shape)
    fold = make_fold(shape.head_dim)
    weigh = make_weigh(shape.head_dim**-0.5, bfloat16=pairs, cap=shape.cap)
    q_bytes, panel_bytes = units * UNIT_BYTES, lanes * UNIT_BYTES
    row_bytes, weight_bytes = shape.score_bytes, shape.weight_bytes

    @inner
    def strip(base: int, row: int, last: int, seen: int, count: int, _begins: bool) -> None:
        widest = min(count, seen + min(row + height - 1, last) // queries)
        if widest <= 0:
            return
        rows = min(height, last - row + 1)
        q, made = base + places.queries + row * q_bytes, base + places.scores
        for c in range(0, widest, lanes):
            keys = base + places.keys + UNIT_BYTES * units * c
            scores(q, q_bytes, keys, panel_bytes, units, made + 4 * c, row_bytes)
        for r in range(rows):
            sees, of_tile = max(0, min(count, seen + (row + r) // queries)), r * STATE_BYTES
            weights, whole = base + places.weights + r * weight_bytes, -(-widest // step) * step
            weigh(made + r * row_bytes, sees, weights, whole, base + places.tile_states + of_tile)
        mix(base, widest)
        for r in range(rows):
            mixed, states = base + places.mixed + (row + r) * width, base + places.states
            of_tile = base + places.tile_states + r * STATE_BYTES
            if floats(of_tile)[1] != 0:
                fold(mixed, states + (row + r) * STATE_BYTES, made + r * width, of_tile)

    @inner
    def close(_base: int, _rows: int) -> None:
        return

    return strip, close


def _make_mix(shape: TileShape) -> Any:
    """mix(base, count): a strip's weights times the values of a tile's first tokens, into the place
    of its scores.
    """
    places, width = places_of(shape), shape.width
    vectors = min(shape.vectors, width // MOST_LANES)
    rest = width // MOST_LANES % vectors
    product, product_of_rest = (
        make_product(shape.strip, n, pairs=shape.pairs) for n in (vectors, rest or vectors)
    )
    step, row_bytes = vectors * MOST_LANES, width * UNIT_BYTES
    whole = width // step * step
    step_tokens = shape.step
    weight_bytes, step_units = shape.weight_bytes, shape.step // (2 if shape.pairs else 1)

    @inner
    def mix(base: int, count: int) -> None:
        units = -(-count // step_tokens) * step_units
        weights, values, mixed = base + places.weights, base + places.values, base + places.scores
        for d in range(0, whole, step):
            at, into = values + UNIT_BYTES * d, mixed + 4 * d
            product(weights, weight_bytes, at, row_bytes, units, into, row_bytes)
        if rest:
            at, into = values + UNIT_BYTES * whole, mixed + 4 * whole
            product_of_rest(weights, weight_bytes, at, row_bytes, units, into, row_bytes)

    return mix


def _make_finish(shape: TileShape) -> Any:
    """finish(args, base, head, token, tokens, part): write what a block's queries got."""
    places, queries, width = places_of(shape), shape.queries, shape.width
    write = make_write(shape.head_dim, bfloat16=shape.bfloat16)

    @inner
    def finish(args: Any, base: int, head: int, token: int, tokens: int, part: int) -> None:
        heads = args.key_heads * queries
        for row in range(tokens * queries):
            made, index = base + places.mixed + 4 * row * width, row // queries
            state = base + places.states + row * STATE_BYTES
            its_part = part if part == ANSWER else part + index
            its_head = head * queries + row % queries
            write(args, made, state, token + index, its_part, its_head, heads)

    return finish
