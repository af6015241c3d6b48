"""Attention by torch, on any device: what of the pool is read, and the queries that meet it."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from radixlm.attention.flash import attend_all, attend_part, merge
from radixlm.attention.plan import AttentionPlan, RowSpan, SharedRead, Sharing
from radixlm.core.batch import Extent
from radixlm.memory.pools import KVPool

# A run of slots of a shared node this long is read in place, shorter ones are gathered together.
LEAST_VIEW = 4096

# A run of the pool (a view), or a list of slots (a gather).
Source = Extent | Tensor


# A gathered group is read again at once, so it should still lie in the processor's cache. Of 2 to 8
# MiB, 64 rows of 1,050 tokens were fastest at 4 in float32 and 2 in bfloat16 (1 MiB L2 per core);
# gathered in one piece they take twice as long. Counted in elements of keys and values together.
_CPU_GROUP_ELEMENTS = 1 << 20
_GPU_GROUP_ELEMENTS = 128 << 20
# Queries per call within a chunk. A block reads only what lies before its own end, so that small
# blocks skip the masked half; on CPU 64 to 256 are as fast as the kernel's own causal mode.
_CPU_QUERY_BLOCK = 256
_GPU_QUERY_BLOCK = 2048
# When to share; docs/adr/0011-tree-attention.md has the measurements. A read of its own costs calls
# and merging: what a row must save, in tokens x heads x head_dim. On CUDA nothing was measured.
_LEAST_SAVED = 1 << 20


class Sources:
    """Reads a pool at the sources of one step, one after the other."""

    def __init__(self, pool: KVPool, sources: Iterable[Source]) -> None:
        self._pool = pool
        gathered = max((s.numel() for s in sources if isinstance(s, Tensor)), default=0)
        shape = (gathered, pool.n_kv_heads, pool.head_dim)
        # Written anew in each layer: fresh memory per gather costs more in page faults than it.
        self._scratch = tuple(
            torch.empty(shape, dtype=pool.dtype, device=pool.device) for _ in range(2)
        )

    def read(self, layer: int, source: Source) -> tuple[Tensor, Tensor]:
        """Keys and values, (tokens, n_kv_heads, head_dim) each; a gather's hold till the next."""
        keys, values = self._pool.keys[layer], self._pool.values[layer]
        if isinstance(source, Extent):
            run = slice(*source)
            return keys[run], values[run]
        into_keys, into_values = (buffer[: source.numel()] for buffer in self._scratch)
        torch.index_select(keys, 0, source, out=into_keys)
        torch.index_select(values, 0, source, out=into_values)
        return into_keys, into_values


def shared_source(read: SharedRead, pool: KVPool) -> Source:
    """A view when it is one run of slots, else a gather."""
    if len(read.extents) == 1:
        return read.extents[0]
    return torch.cat([torch.arange(*extent) for extent in read.extents]).to(pool.device)


def stacked_queries(q: Tensor, n_kv_heads: int) -> Tensor:
    """Queries that share a key head stand one below the other, those of all tokens, scaled:

    q     (n_kv_heads, tokens, queries of a key head, head_dim), from (tokens, n_heads, head_dim)
    keys  (n_kv_heads, tokens of the context, head_dim)
    """
    tokens, n_heads, head_dim = q.shape
    queries = q.new_empty((n_kv_heads, tokens, n_heads // n_kv_heads, head_dim))
    by_key = q.view(tokens, n_kv_heads, n_heads // n_kv_heads, head_dim).transpose(0, 1)
    return torch.mul(by_key, head_dim**-0.5, out=queries)


class _Chunk(NamedTuple):
    """blocks: (first query, one past the last, tokens read, mask) within the row's new tokens."""

    first: int
    stop: int
    source: Source
    blocks: tuple[tuple[int, int, int, Tensor], ...]


class _Group(NamedTuple):
    """rows: its place in the step's list of single-token rows; mask: None when nothing is padded"""

    rows: slice
    width: int
    source: Source
    mask: Tensor | None


class TorchBackend:
    """Attention on any device. n_heads: of queries."""

    def __init__(self, pool: KVPool, n_heads: int) -> None:
        self._pool = pool
        budget = _CPU_GROUP_ELEMENTS if pool.device.type == "cpu" else _GPU_GROUP_ELEMENTS
        self.group_tokens = budget // (2 * pool.n_kv_heads * pool.head_dim)
        saved = _LEAST_SAVED // (n_heads * pool.head_dim)
        self.sharing = Sharing(
            largest=sys.maxsize, fewest=1, shortest=0, least_saved=saved, least_view=LEAST_VIEW
        )

    def prepare(self, plan: AttentionPlan, table: Tensor, slots: Tensor) -> TorchAttention:
        """See `Backend`."""
        return TorchAttention(self._pool, table, plan, slots)


class TorchAttention:
    """One step's attention (an `Attend`): made for a plan, called once per layer.

    Each row attends to what it reads by itself, then what rows read together is merged in, one
    read after the other; where nothing is shared, nothing is merged and the first part is all.

    Grouped queries need no kernel of their own: of one token, those that share a key head are
    several queries of one head; of many tokens, they are heads over a key expanded with stride 0.

    The causal mask is one (block, longest context) triangle aligned at the bottom right. Cutting
    off rows above and columns to the left keeps the alignment, so it serves every block of every
    row:

        .  .  .  .  x  x          last 2 rows, last 4 columns:    .  .  .  x
        .  .  .  .  .  x                                          .  .  .  .
        .  .  .  .  .  .          ('.' may be read, x not)

    pool: receives the new tokens' keys and values, then is read.
    table: (rows, context) int32, the request table with this step applied.
    slots: (tokens,) int64, where the step's new tokens go.
    """

    def __init__(self, pool: KVPool, table: Tensor, plan: AttentionPlan, slots: Tensor) -> None:
        self._pool = pool
        self._slots = slots
        self._chunks = _chunks(plan.chunks, table, pool)
        self._groups = _groups(plan.groups, table, pool)
        self._shared = [(read, shared_source(read, pool)) for read in plan.shared]
        singles = [span.token for group in plan.groups for span in group]
        self._singles = torch.tensor(singles, dtype=torch.int64, device=pool.device)
        sources = [chunk.source for chunk in self._chunks]
        sources += [group.source for group in self._groups]
        sources += [source for _, source in self._shared]
        self._sources = Sources(pool, sources)

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """See `Attend`: q (tokens, n_heads, head_dim) -> the same shape."""
        self._pool.write(layer, self._slots, k, v)
        if not self._shared:
            out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
            self._attend_own(layer, q, out, None)
            return out
        out = torch.empty(q.shape, dtype=torch.float32, device=q.device)
        lse = torch.empty(q.shape[:2], dtype=torch.float32, device=q.device)
        self._attend_own(layer, q, out, lse)
        self._merge_shared(layer, q, out, lse)
        return out.to(q.dtype)

    def _attend_own(self, layer: int, q: Tensor, out: Tensor, lse: Tensor | None) -> None:
        """What each row reads by itself, into out (tokens, n_heads, head_dim) and, where there is
        more to be merged, lse (tokens, n_heads).
        """
        for chunk in self._chunks:
            keys, values = self._sources.read(layer, chunk.source)
            new = slice(chunk.first, chunk.stop)
            _attend_chunk(q[new], keys, values, chunk, out[new], None if lse is None else lse[new])
        if self._groups:
            single = q.index_select(0, self._singles)
            done = torch.empty(single.shape, dtype=out.dtype, device=q.device)
            done_lse = None if lse is None else done.new_empty(done.shape[:2])
            for group in self._groups:
                keys, values = self._sources.read(layer, group.source)
                part_lse = None if done_lse is None else done_lse[group.rows]
                _attend_group(single[group.rows], keys, values, group, done[group.rows], part_lse)
            out.index_copy_(0, self._singles, done)
            if lse is not None and done_lse is not None:
                lse.index_copy_(0, self._singles, done_lse)

    def _merge_shared(self, layer: int, q: Tensor, out: Tensor, lse: Tensor) -> None:
        """Merge what rows read together into what each has by itself."""
        n_kv = self._pool.n_kv_heads
        queries = stacked_queries(q, n_kv)
        out, lse = out.unflatten(1, (n_kv, -1)), lse.unflatten(1, (n_kv, -1))
        for read, source in self._shared:
            keys, values = self._sources.read(layer, source)
            rows = slice(read.first, read.stop)
            theirs = queries[:, rows]
            part, part_lse = attend_all(theirs.flatten(1, 2), keys, values)
            part, part_lse = part.view_as(theirs), part_lse.view(theirs.shape[:3])
            merge(out[rows], lse[rows], part.transpose(0, 1), part_lse.transpose(0, 1))


def _attend(
    q: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None, out: Tensor, lse: Tensor | None
) -> None:
    """Scaled dot product attention into `out` and, if it is wanted, `lse`."""
    if lse is None:
        out.copy_(scaled_dot_product_attention(q, keys, values, mask))
    else:
        part, part_lse = attend_part(q, keys, values, mask, q.shape[-1] ** -0.5)
        out.copy_(part)
        lse.copy_(part_lse)


def _attend_chunk(
    q: Tensor, keys: Tensor, values: Tensor, chunk: _Chunk, out: Tensor, lse: Tensor | None
) -> None:
    """One row's new tokens, (n, n_heads, head_dim), over its context (tokens, n_kv_heads, …)."""
    n, n_heads, head_dim = q.shape
    tokens, n_kv = keys.shape[:2]
    shared = n_heads // n_kv
    queries = q.view(n, n_kv, shared, head_dim).permute(1, 2, 0, 3)
    expanded = (n_kv, shared, tokens, head_dim)
    keys = keys.transpose(0, 1).unsqueeze(1).expand(expanded)
    values = values.transpose(0, 1).unsqueeze(1).expand(expanded)
    out = out.view(n, n_kv, shared, head_dim).permute(1, 2, 0, 3)
    lse = None if lse is None else lse.view(n, n_kv, shared).permute(1, 2, 0)
    for first, stop, read, mask in chunk.blocks:
        _attend(
            queries[:, :, first:stop],
            keys[:, :, :read],
            values[:, :, :read],
            mask,
            out[:, :, first:stop],
            None if lse is None else lse[:, :, first:stop],
        )


def _attend_group(
    q: Tensor, keys: Tensor, values: Tensor, group: _Group, out: Tensor, lse: Tensor | None
) -> None:
    """Single tokens, (rows, n_heads, head_dim), each over its own `width` tokens of keys."""
    rows, _, head_dim = q.shape
    n_kv = keys.shape[1]
    context = (rows, group.width, n_kv, head_dim)
    _attend(
        q.view(rows, n_kv, -1, head_dim),
        keys.view(context).transpose(1, 2),
        values.view(context).transpose(1, 2),
        group.mask,
        out.view(rows, n_kv, -1, head_dim),
        None if lse is None else lse.view(rows, n_kv, -1),
    )


def _chunks(spans: Sequence[RowSpan], table: Tensor, pool: KVPool) -> list[_Chunk]:
    if not spans:
        return []
    limit = _CPU_QUERY_BLOCK if pool.device.type == "cpu" else _GPU_QUERY_BLOCK
    height = min(limit, max(span.n_new for span in spans))
    width = max(span.context for span in spans)
    barred = torch.full((height, width), float("-inf"), dtype=pool.dtype, device=pool.device)
    triangle = barred.triu_(width - height + 1)
    chunks = []
    for span in spans:
        start = span.context - span.n_new
        blocks = []
        for first, stop in pairwise([*range(0, span.n_new, height), span.n_new]):
            mask = triangle[height - (stop - first) :, width - (start + stop) :]
            # CUDA's kernels want an aligned mask; CPU's take any strides.
            mask = mask if pool.device.type == "cpu" else mask.contiguous()
            blocks.append((first, stop, start + stop, mask))
        source = span.view or _slots_of([span], table).flatten()
        chunks.append(_Chunk(span.token, span.token + span.n_new, source, tuple(blocks)))
    return chunks


def _groups(groups: Sequence[tuple[RowSpan, ...]], table: Tensor, pool: KVPool) -> list[_Group]:
    made = []
    first = 0
    for spans in groups:
        rows = slice(first, first + len(spans))
        first = rows.stop
        width = spans[0].context
        if len(spans) == 1 and spans[0].view is not None:
            made.append(_Group(rows, width, spans[0].view, None))
        else:
            made.append(_gathered_group(rows, spans, table, pool))
    return made


def _gathered_group(rows: slice, spans: Sequence[RowSpan], table: Tensor, pool: KVPool) -> _Group:
    """Padding repeats a row's own last slot: nothing of another request is ever touched."""
    width = spans[0].context
    slots = _slots_of(spans, table).flatten()
    mask = None
    if spans[-1].context < width:
        position = torch.arange(width, device=table.device)
        lengths = torch.tensor([span.context for span in spans], device=table.device)
        padding = (position >= lengths[:, None])[:, None, None, :]
        mask = torch.zeros(padding.shape, dtype=pool.dtype, device=pool.device)
        mask.masked_fill_(padding, float("-inf"))
    return _Group(rows, width, slots, mask)


def _slots_of(spans: Sequence[RowSpan], table: Tensor) -> Tensor:
    """(spans, longest context) int64: the slots that each row reads by itself."""
    places = [(span.table_row, span.context, span.head, span.gap) for span in spans]
    made = torch.tensor(places, dtype=torch.int64, device=table.device)
    rows, lengths, heads, gaps = made[:, :, None].unbind(1)
    position = torch.arange(spans[0].context, device=table.device)
    position = torch.minimum(position, lengths - 1)
    position = torch.where(position < heads, position, position + gaps)
    return table[rows, position].long()
