"""Attention on the CPU: code compiled for many queries in tiles, and for single ones."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import torch
from torch import Tensor

from radixlm.attention.direct import make_worker
from radixlm.attention.interface import Attend
from radixlm.attention.own_reads import OwnReads
from radixlm.attention.plan import AttentionPlan, RowSpan
from radixlm.attention.rows import Merge, PartRows
from radixlm.attention.sharing import SharedRead, Sharing
from radixlm.attention.team import team
from radixlm.attention.tile_layout import Shape
from radixlm.attention.tile_reads import TileRead, TileReads, cut
from radixlm.attention.tiles import make_tile_worker
from radixlm.memory.kv_pool import KVPool

# When to share; docs/adr/0012-cpu-kernels.md has the measurements. The compiled worker reads for so
# many tokens as fast, and what the others save, in tokens x heads x head_dim, pays for the calls.
FEWEST = {torch.bfloat16: 4, torch.float32: 8}
LEAST_SAVED = {torch.bfloat16: 3 << 22, torch.float32: 3 << 23}
# Queries and scores of a row and key head from which on tiles are the faster kernel.
_LEAST_QUERIES = 24
_LEAST_SCORES = 1 << 12


class CpuBackend:
    """Attention with code compiled for the pool's shape.

    n_heads: of queries. least_queries, least_scores: of a row's new tokens and one key head, from
    which on what it reads by itself is computed in tiles.
    """

    def __init__(
        self,
        pool: KVPool,
        n_heads: int,
        *,
        least_queries: int = _LEAST_QUERIES,
        least_scores: int = _LEAST_SCORES,
    ) -> None:
        saved = LEAST_SAVED[pool.dtype] // (n_heads * pool.head_dim)
        self.sharing = Sharing(FEWEST[pool.dtype], saved, least_view=sys.maxsize)
        self.group_tokens = 0  # rows with one new token: each by itself
        self._least = least_queries, least_scores
        self._pool = pool
        self._n_heads = n_heads
        self._team = team()
        bfloat16 = pool.dtype == torch.bfloat16
        self._shape = Shape(n_heads // pool.n_kv_heads, pool.head_dim, bfloat16)
        self._tiles = make_tile_worker(self._shape)
        self._direct = make_worker(self._shape.queries, pool.head_dim, bfloat16=bfloat16)

    def prepare(self, plan: AttentionPlan, table: Tensor, slots: Tensor) -> Attend:
        """See `Backend`."""
        spans = [*plan.chunks, *(span for group in plan.groups for span in group)]
        few = [span for span in spans if not self._is_large(span)]
        reads = [_own(span, table) for span in spans if self._is_large(span)]
        reads += [_shared(read) for read in plan.shared]
        block_tokens = self._shape.block_tokens
        blocks = cut(reads, self._pool.n_kv_heads, self._team.size, block_tokens)
        rows = PartRows(slots.numel())
        for read in plan.shared:
            rows.several[read.first : read.stop] = True
        for block in blocks:
            rows.several[block.first : block.stop] |= not block.whole
        parts: list[TileReads | OwnReads] = []
        if few:
            parts.append(
                OwnReads(self._direct, self._team, self._pool, self._n_heads, table, few, rows)
            )
        if blocks:
            parts.append(TileReads(self._tiles, self._team, self._pool, self._shape, blocks, rows))
        merge = None
        if rows.count:
            element = self._pool.dtype.itemsize
            merge = Merge(self._team, rows, self._n_heads, self._pool.head_dim, element)
        return CpuAttention(self._pool, slots, parts, merge)

    def _is_large(self, span: RowSpan) -> bool:
        queries, scores = self._least
        made = span.n_new * self._shape.queries
        return made >= queries and made * span.context >= scores


class CpuAttention:
    """One step's attention (an `Attend`): made for a plan, called once per layer.

    reads: each of the step's tokens has one that writes its answer, or several that `merge` makes
    it of.
    """

    def __init__(
        self,
        pool: KVPool,
        slots: Tensor,
        reads: Sequence[TileReads | OwnReads],
        merge: Merge | None,
    ) -> None:
        self._pool = pool
        self._slots = slots
        self._reads = reads
        self._merge = merge

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """See `Attend`: q (tokens, n_heads, head_dim) -> the same shape."""
        self._pool.write(layer, self._slots, k, v)
        answers = torch.empty(q.shape, dtype=q.dtype)
        for read in self._reads:
            read.attend(layer, q, answers, self._merge)
        if self._merge is not None:
            self._merge(answers)
        return answers


def _own(span: RowSpan, table: Tensor) -> TileRead:
    """A row's new tokens over all that it reads by itself, causal among the new ones."""
    row = table[span.table_row, : span.context + span.gap]
    if span.gap:
        row = torch.cat((row[: span.head], row[span.head + span.gap :]))
    seen = span.context - span.n_new + 1
    return TileRead(span.token, span.token + span.n_new, row, seen)


def _shared(read: SharedRead) -> TileRead:
    slots = torch.cat([torch.arange(*extent, dtype=torch.int32) for extent in read.extents])
    return TileRead(read.first, read.stop, slots, read.length)
