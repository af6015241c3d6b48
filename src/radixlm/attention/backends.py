"""What a model asks of attention: one call per layer; the CPU's backend, with code compiled for
many queries in tiles and for single ones; and which backend a machine gets.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from radixlm.attention.direct import make_direct_kernel
from radixlm.attention.merge import Merge, PartRows, make_merge_kernel
from radixlm.attention.plan import AttentionPlan, RowSpan, SharedRead, Sharing
from radixlm.attention.reads import Reads, TileRead, cut, direct_reads, tile_reads
from radixlm.attention.tile_layout import STRIP, Shape, places_of
from radixlm.attention.tiles import make_tile_kernel
from radixlm.attention.torch_backend import TorchBackend
from radixlm.kernels.openmp import team
from radixlm.memory.pools import KVPool

# When to share: fewest, shortest, least saved in tokens x heads x head_dim, measured in
# docs/adr/0012-cpu-kernels.md.
SHARING = dict.fromkeys((torch.bfloat16, torch.float32), (4, 256, 48 << 16))


class Attend(Protocol):
    """Attention of one step's new tokens over everything their rows have in the pool.

    layer: index of the decoder layer, from 0.
    q: (tokens, n_heads, head_dim), rotary applied.
    k, v: (tokens, n_kv_heads, head_dim) of the new tokens, k with rotary applied; they are written
        to the pool at this step's slots before anything is read.

    All three may be strided over tokens; heads and head_dim are contiguous. Scores are scaled by
    1 / sqrt(head_dim). Returns (tokens, n_heads, head_dim) in the type of q.
    """

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor: ...


class Backend(Protocol):
    """A way to compute attention over one pool, made once. sharing: what pays, for `make_plan`."""

    sharing: Sharing

    def prepare(self, plan: AttentionPlan, table: Tensor, slots: Tensor) -> Attend:
        """One step's attention.

        table: (rows, context) int32, the request table with this step applied.
        slots: (tokens,) int64, where the step's new tokens go.
        """
        ...


class CpuBackend:
    """Attention with code compiled for the pool's shape.

    n_heads: of queries. least_queries: of a row's new tokens and one key head, from which on what
    it reads by itself is computed in tiles; of fewer a strip is not full.
    """

    def __init__(self, pool: KVPool, n_heads: int, *, least_queries: int = STRIP) -> None:
        queries = n_heads // pool.n_kv_heads
        fewest, shortest, saved = SHARING[pool.dtype]
        self.sharing = Sharing(
            # Rows with more read tiles of their own as fast.
            largest=max(STRIP // queries, 1),
            fewest=fewest,
            shortest=shortest,
            least_saved=max(saved // (n_heads * pool.head_dim), 1),
            least_view=sys.maxsize,
        )
        self._least_queries = least_queries
        self._pool = pool
        self._n_heads = n_heads
        bfloat16 = pool.dtype == torch.bfloat16
        self._shape = Shape(queries, pool.head_dim, bfloat16)
        self._tiles = make_tile_kernel(self._shape)
        self._scratch: Tensor | None = None
        self._merge = make_merge_kernel(bfloat16=bfloat16)
        self._direct = None
        if queries < least_queries:
            self._direct = make_direct_kernel(queries, pool.head_dim, bfloat16=bfloat16)

    def prepare(self, plan: AttentionPlan, table: Tensor, slots: Tensor) -> CpuAttention:
        """See `Backend`."""
        least = self._least_queries
        few = [span for span in plan.rows if span.n_new * self._shape.queries < least]
        large = [
            _own(span, table) for span in plan.rows if span.n_new * self._shape.queries >= least
        ]
        large += [_shared(read) for read in plan.shared]
        blocks = cut(large, self._pool.n_kv_heads, team().size, self._shape.block_tokens)
        rows = PartRows(slots.numel())
        for read in plan.shared:
            rows.several[read.first : read.stop] = True
        for block in blocks:
            rows.several[block.first : block.stop] |= not block.whole
        reads = []
        if few and self._direct is not None:
            reads.append(direct_reads(self._direct, self._pool, self._n_heads, table, few, rows))
        if blocks:
            reads.append(tile_reads(self._tiles, self._pool, self._tile_scratch(), blocks, rows))
        merge = None
        if rows.count:
            merge = Merge(self._merge, rows, self._n_heads, self._pool.head_dim)
        return CpuAttention(self._pool, slots, reads, merge)

    def _tile_scratch(self) -> Tensor:
        """(threads, bytes). Kept: fresh memory in each step costs page faults."""
        threads = team().size
        if self._scratch is None or self._scratch.shape[0] != threads:
            size = (threads, places_of(self._shape).end)
            self._scratch = torch.empty(size, dtype=torch.uint8, device="cpu")
        return self._scratch


class CpuAttention:
    """One step's attention (an `Attend`): made for a plan, called once per layer.

    reads: each token has one that writes its answer, or several that `merge` makes it of.
    """

    def __init__(
        self, pool: KVPool, slots: Tensor, reads: Sequence[Reads], merge: Merge | None
    ) -> None:
        self._pool = pool
        self._slots = slots
        self._reads = reads
        self._merge = merge

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """See `Attend`: q (tokens, n_heads, head_dim) -> the same shape."""
        self._pool.write(layer, self._slots, k, v)
        answers = torch.empty(q.shape, dtype=q.dtype, device="cpu")
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
    runs = [torch.arange(*run, dtype=torch.int32, device="cpu") for run in read.extents]
    return TileRead(read.first, read.stop, torch.cat(runs), read.length)


def make_backend(pool: KVPool, n_heads: int) -> Backend:
    """The CPU's own where all of its parts know pools of this type, else torch's.

    n_heads: of queries.
    """
    if pool.device.type == "cpu" and pool.dtype in SHARING and team().is_whole:
        return CpuBackend(pool, n_heads)
    return TorchBackend(pool, n_heads)
