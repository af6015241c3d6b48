"""Attention on the CPU: matrix products for many queries, compiled code for few."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from radixlm.attention.direct import make_worker
from radixlm.attention.flash import merge
from radixlm.attention.interface import Attend
from radixlm.attention.own_reads import OwnReads
from radixlm.attention.plan import AttentionPlan, RowSpan
from radixlm.attention.products import MOST_ROWS, Block, Products, whole
from radixlm.attention.sharing import SharedRead, Sharing
from radixlm.attention.sources import LEAST_VIEW, Source, Sources, shared_source, stacked_queries
from radixlm.attention.team import team
from radixlm.memory.kv_pool import KVPool

# When to share; docs/adr/0012-cpu-kernels.md has the measurements. The compiled worker reads for so
# many tokens as fast, and what the others save, in tokens x heads x head_dim, pays for the calls.
FEWEST = {torch.bfloat16: 4, torch.float32: 8}
LEAST_SAVED = {torch.bfloat16: 3 << 22, torch.float32: 3 << 23}
# Queries and scores of a row and key head from which on products are the faster kernel.
_LEAST_QUERIES = 24
_LEAST_SCORES = 1 << 16
# New tokens per product within a chunk: a block reads only what lies before its own end.
_CHUNK_TOKENS = 128


class _Read(NamedTuple):
    """New tokens [first, stop) of the step, the blocks of their queries, and what they read.

    shared: whether what the tokens have by themselves is already there, to be merged with.
    """

    first: int
    stop: int
    source: Source
    blocks: Sequence[Block]
    shared: bool


class CpuBackend:
    """Attention with oneDNN's products and a compiled worker.

    n_heads: of queries. least_queries, least_scores: of a row's new tokens and one key head, from
    which on products compute what it reads by itself.
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
        self.sharing = Sharing(FEWEST[pool.dtype], saved, LEAST_VIEW)
        self.group_tokens = 0  # rows with one new token: each by itself
        self._least = least_queries, least_scores
        self._pool = pool
        self._n_heads = n_heads
        self._queries = n_heads // pool.n_kv_heads
        self._team = team()
        self._products = Products(self._team, pool.dtype)
        self._worker = make_worker(
            self._queries, pool.head_dim, bfloat16=pool.dtype == torch.bfloat16
        )

    def prepare(self, plan: AttentionPlan, table: Tensor, slots: Tensor) -> Attend:
        """See `Backend`."""
        spans = [*plan.chunks, *(span for group in plan.groups for span in group)]
        many = [span for span in spans if self._is_large(span)]
        few = [span for span in spans if not self._is_large(span)]
        own = None
        if few:
            own = OwnReads(self._worker, self._team, self._pool, self._n_heads, table, few)
        reads = [self._chunk(span, table) for span in many]
        reads += [self._shared(read) for read in plan.shared]
        return CpuAttention(self._pool, self._products, slots, own, reads)

    def _is_large(self, span: RowSpan) -> bool:
        queries, scores = self._least
        made = span.n_new * self._queries
        return made >= queries and made * span.context >= scores

    def _chunk(self, span: RowSpan, table: Tensor) -> _Read:
        """A row's new tokens over all that it reads by itself, causal among the new ones."""
        blocks = []
        before = span.context - span.n_new
        height = max(1, min(_CHUNK_TOKENS, MOST_ROWS // self._queries))
        for first in range(0, span.n_new, height):
            stop = min(first + height, span.n_new)
            rows = (first * self._queries, stop * self._queries)
            blocks.append(Block(*rows, before + stop, self._queries))
        source = span.view or _own_slots(span, table)
        return _Read(span.token, span.token + span.n_new, source, blocks, shared=False)

    def _shared(self, read: SharedRead) -> _Read:
        source = shared_source(read, self._pool)
        blocks = whole((read.stop - read.first) * self._queries, read.length)
        return _Read(read.first, read.stop, source, blocks, shared=True)


class CpuAttention:
    """One step's attention (an `Attend`): made for a plan, called once per layer.

    Every token has what it reads by itself, from the compiled worker or from products; then what
    rows read together is merged in, one read after the other.

    own, reads: in this order, what is read by itself before what is shared.
    """

    def __init__(
        self,
        pool: KVPool,
        products: Products,
        slots: Tensor,
        own: OwnReads | None,
        reads: Sequence[_Read],
    ) -> None:
        self._pool = pool
        self._products = products
        self._slots = slots
        self._own = own
        self._reads = reads
        self._merges = any(read.shared for read in reads)
        self._sources = Sources(pool, [read.source for read in reads])

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """See `Attend`: q (tokens, n_heads, head_dim) -> the same shape."""
        self._pool.write(layer, self._slots, k, v)
        exact = self._own is not None or self._merges
        out = torch.empty(q.shape, dtype=torch.float32 if exact else q.dtype)
        lse = torch.empty(q.shape[:2], dtype=torch.float32)
        if self._own is not None:
            self._own.attend(layer, q, out, lse)
        if self._reads:
            self._compute_reads(layer, q, out, lse)
        return out.to(q.dtype)

    def _compute_reads(self, layer: int, q: Tensor, out: Tensor, lse: Tensor) -> None:
        """By products; each read's results are set, or merged with what is there."""
        n_kv = self._pool.n_kv_heads
        queries = stacked_queries(q, n_kv)
        out, lse = out.unflatten(1, (n_kv, -1)), lse.unflatten(1, (n_kv, -1))
        for read in self._reads:
            keys, values = self._sources.read(layer, read.source)
            rows = slice(read.first, read.stop)
            part = queries[:, rows]
            made, made_lse = torch.empty_like(part), None
            if self._merges:
                made_lse = torch.empty(part.shape[:3], dtype=torch.float32)
            self._products.attend(
                part.flatten(1, 2),
                keys,
                values,
                read.blocks,
                made.flatten(1, 2),
                None if made_lse is None else made_lse.flatten(1, 2),
            )
            if read.shared and made_lse is not None:
                merge(out[rows], lse[rows], made.transpose(0, 1), made_lse.transpose(0, 1))
            else:
                out[rows] = made.transpose(0, 1)
                if made_lse is not None:
                    lse[rows] = made_lse.transpose(0, 1)


def _own_slots(span: RowSpan, table: Tensor) -> Tensor:
    """(context,) int64: the slots that a row reads by itself."""
    end = span.context + span.gap
    row = table[span.table_row]
    return torch.cat((row[: span.head], row[span.head + span.gap : end])).long()
