"""Scores of keys for the queries of an index, see `index_keys`: on the CPU by code compiled for its
sizes, which reads keys where they lie; else by torch.

    sums   heads ->                     lanes are heads, whose queries are laid out unit after unit;
    key    | a | a | a | a |            a few keys' sums stay in registers, then
    next   | b | b | b | b |            score = the sum over lanes of weight x relu(sum)
"""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable
from typing import Any

import torch
from llvmlite import ir
from numba import types
from numba.core import cgutils
from torch import Tensor

from radixlm.attention.tile_layout import fetch
from radixlm.kernels.dots import value_at
from radixlm.kernels.jit import Kernel, compiled
from radixlm.kernels.openmp import Worker, threads_for
from radixlm.kernels.strips import UNIT_BYTES, Strip, strip_vectors
from radixlm.kernels.vectors import MOST_LANES, Lanes, emitted, inner, offset, over_rows
from radixlm.layers.index_keys import IndexSizes
from radixlm.memory.pools import KVPool

# Keys of a unit of work, a multiple of the keys of a strip, whatever its sizes.
_TILE = 480
# Scores of heads that torch writes out at once, of one query if that has more.
_MOST_SCORES = 1 << 22

_Arguments = namedtuple(
    "_Arguments", "counters rows count tokens slots keys queries weights scores stride"
)


class IndexScorer:
    """Scores of one pool's keys."""

    def __init__(self, sizes: IndexSizes, pool: KVPool) -> None:
        self._paired = pool.dtype == torch.bfloat16
        self._kernel: Kernel | None = None
        if pool.device.type == "cpu" and pool.dtype in (torch.bfloat16, torch.float32):
            self._kernel = make_index_kernel(sizes.heads, sizes.size, bfloat16=self._paired)

    def __call__(self, queries: Tensor, weights: Tensor, keys: Tensor, slots: Tensor) -> Tensor:
        """Score the keys that lie in `slots`, (context,) int32, of `keys` (capacity, size).

        queries: (n, heads, size) and weights: (n, heads), of the last n of these tokens. Each sees
        those up to itself: of later ones it has -inf. Returns (n, context) float32.
        """
        count, context = weights.shape[0], slots.numel()
        kernel = self._kernel
        if kernel is None:
            scores = _by_torch(queries, weights, keys.index_select(0, slots))
        else:
            scores = self._by_kernel(kernel, queries, weights, keys, slots)
        if count > 1:
            last = scores[:, context - count :]
            last.masked_fill_(torch.ones_like(last, dtype=torch.bool).triu_(1), -torch.inf)
        return scores

    def _by_kernel(
        self, kernel: Kernel, queries: Tensor, weights: Tensor, keys: Tensor, slots: Tensor
    ) -> Tensor:
        count, heads, _ = queries.shape
        lanes = -(-heads // MOST_LANES) * MOST_LANES
        units = queries.unflatten(2, (-1, 2 if self._paired else 1)).transpose(1, 2)
        laid = units.new_zeros(count, units.shape[1], lanes, units.shape[3])
        laid[:, :, :heads] = units
        padded = weights.new_zeros(count, lanes, dtype=torch.float32)
        padded[:, :heads] = weights
        # A strip's last keys may be none, whose scores come behind.
        scores = torch.empty(count, slots.numel() + _TILE, device="cpu")
        worker = Worker(
            kernel,
            rows=-(-slots.numel() // _TILE),
            count=slots.numel(),
            tokens=count,
            slots=slots.data_ptr(),
            keys=keys.data_ptr(),
            queries=laid.data_ptr(),
            weights=padded.data_ptr(),
            scores=scores.data_ptr(),
            stride=scores.stride(0) * scores.element_size(),
        )
        worker(threads_for(worker.arguments.rows, 1))
        return scores[:, : slots.numel()]


def _by_torch(queries: Tensor, weights: Tensor, keys: Tensor) -> Tensor:
    weights, made = weights.float()[:, None], keys.float().t()
    size = max(_MOST_SCORES // (weights.shape[2] * keys.shape[0]), 1)
    scores = []
    for some, by in zip(queries.float().split(size), weights.split(size), strict=True):
        of_heads = torch.mm(some.flatten(0, 1), made).relu_().unflatten(0, (-1, by.shape[2]))
        scores.append(torch.bmm(by, of_heads)[:, 0])
    return torch.cat(scores)


@compiled(_Arguments)
def make_index_kernel(heads: int, size: int, *, bfloat16: bool) -> Callable[[Any], None]:
    """The kernel for these sizes. rows: tiles of the context; count: keys; tokens: queries, whose
    scores are `stride` bytes apart. queries: address of units of all heads, zeros up to whole
    vectors; weights: of float32, likewise.
    """
    vectors = -(-heads // MOST_LANES)
    at_once = max(6 * strip_vectors() // vectors, 1)
    while _TILE % at_once:
        at_once -= 1
    length, of_weights = size * (2 if bfloat16 else 4), vectors * MOST_LANES * 4
    of_queries = length // UNIT_BYTES * vectors * MOST_LANES * UNIT_BYTES
    strip = _make_strip(vectors, at_once, length, pairs=bfloat16)

    @inner
    def tile(args: _Arguments, row: int) -> None:
        first = row * _TILE
        stop = min(first + _TILE, args.count)
        for t in range(first, stop, at_once):
            slots, left = args.slots + 4 * t, args.count - t
            fetch(args.keys, length, length, slots, min(at_once, left), min(2 * at_once, left))
            for token in range(args.tokens):
                queries, weights = args.queries + token * of_queries, args.weights
                into = args.scores + token * args.stride + 4 * t
                strip(args.keys, slots, left, queries, weights + token * of_weights, into)

    return over_rows(tile, 1)


def _make_strip(vectors: int, at_once: int, length: int, *, pairs: bool) -> Any:
    """strip(keys, slots, left, queries, weights, into): scores of `at_once` keys for one token; of
    `left` of them, which may be fewer, that mean anything. length: of a key in bytes.
    """

    @emitted(types.void, *[types.int64] * 6)
    def strip(builder: ir.IRBuilder, *given: Any) -> None:
        keys, slots, left, queries, weights, into = given
        int64 = ir.IntType(64)
        size, last = ir.Constant(int64, length), builder.sub(left, ir.Constant(int64, 1))
        made = Strip(builder, at_once, vectors, pairs=pairs)
        rows = []
        for index in range(at_once):
            place = ir.Constant(int64, index)
            place = builder.select(builder.icmp_signed("<", place, last), place, last)
            rows.append(value_at(builder, keys, size, offset(builder, slots, place, 4), 0))
        bytes_of_unit = ir.Constant(int64, vectors * MOST_LANES * UNIT_BYTES)
        with cgutils.for_range(builder, ir.Constant(int64, length // UNIT_BYTES)) as loop:
            made.add(rows, queries, bytes_of_unit, loop.index)
        ops = Lanes(builder, MOST_LANES)
        factors = [ops.load(weights, v * MOST_LANES) for v in range(vectors)]
        for index, sums in enumerate(made.sums()):
            total = ops.all(0)
            for factor, value in zip(factors, sums, strict=True):
                total = ops.multiply_add(factor, ops.larger(value, ops.all(0)), total)
            at = builder.add(into, ir.Constant(int64, 4 * index))
            builder.store(ops.sum(total), builder.inttoptr(at, ir.FloatType().as_pointer()))

    return strip
