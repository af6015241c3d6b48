"""Attention by torch's own kernels: right on CPU and CUDA, for any mixture of rows."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from radixlm.attention.plan import AttentionPlan, RowSpan
from radixlm.core.batch import Extent
from radixlm.memory.kv_pool import KVPool

# A gathered group is read again at once, so it should still lie in the processor's cache. Of 2 to 8
# MiB, 64 rows of 1,050 tokens were fastest at 4 in float32 and 2 in bfloat16 (1 MiB L2 per core);
# gathered in one piece they take twice as long. Counted in elements of keys and values together.
_CPU_GROUP_ELEMENTS = 1 << 20
_GPU_GROUP_ELEMENTS = 128 << 20
# Queries per call within a chunk. A block reads only what lies before its own end, so that small
# blocks skip the masked half; on CPU 64 to 256 are as fast as the kernel's own causal mode.
_CPU_QUERY_BLOCK = 256
_GPU_QUERY_BLOCK = 2048


def group_tokens(pool: KVPool) -> int:
    """The padded tokens that a group of single-token rows should read at most, for `make_plan`."""
    budget = _CPU_GROUP_ELEMENTS if pool.device.type == "cpu" else _GPU_GROUP_ELEMENTS
    return budget // (2 * pool.n_kv_heads * pool.head_dim)


# Where keys and values are read: a run of the pool (a view), or a list of slots (a gather).
_Source = Extent | Tensor


class _Chunk(NamedTuple):
    """blocks: (first query, one past the last, tokens read, mask) within the row's new tokens."""

    first: int
    stop: int
    source: _Source
    blocks: tuple[tuple[int, int, int, Tensor], ...]


class _Group(NamedTuple):
    """rows: its place in the step's list of single-token rows; mask: None when nothing is padded"""

    rows: slice
    width: int
    source: _Source
    mask: Tensor | None


class TorchAttention:
    """One step's attention (an `Attend`): made for a plan, called once per layer.

    Grouped queries need no kernel of their own: of one token, the queries that share a key head
    are so many queries of one head; of many tokens, they are heads over a key that is expanded
    with stride 0.

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
        singles = [span.token for group in plan.groups for span in group]
        self._singles = torch.tensor(singles, dtype=torch.int64, device=pool.device)
        sources = [chunk.source for chunk in self._chunks]
        sources += [group.source for group in self._groups]
        gathered = max((s.numel() for s in sources if isinstance(s, Tensor)), default=0)
        shape = (gathered, pool.n_kv_heads, pool.head_dim)
        # Written anew in each layer: fresh memory per gather costs more in page faults than it.
        self._scratch = (
            torch.empty(shape, dtype=pool.dtype, device=pool.device),
            torch.empty(shape, dtype=pool.dtype, device=pool.device),
        )

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """See `Attend`: q (tokens, n_heads, head_dim) -> the same shape."""
        self._pool.write(layer, self._slots, k, v)
        out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
        for chunk in self._chunks:
            keys, values = self._read(layer, chunk.source)
            new = slice(chunk.first, chunk.stop)
            _attend_chunk(q[new], keys, values, chunk, out[new])
        if self._groups:
            single = q.index_select(0, self._singles)
            done = torch.empty_like(single)
            for group in self._groups:
                keys, values = self._read(layer, group.source)
                done[group.rows] = _attend_group(single[group.rows], keys, values, group)
            out.index_copy_(0, self._singles, done)
        return out

    def _read(self, layer: int, source: _Source) -> tuple[Tensor, Tensor]:
        """Keys and values, (tokens, n_kv_heads, head_dim) each; a gather's hold till the next."""
        keys, values = self._pool.keys[layer], self._pool.values[layer]
        if isinstance(source, Extent):
            run = slice(*source)
            return keys[run], values[run]
        into_keys, into_values = (buffer[: source.numel()] for buffer in self._scratch)
        torch.index_select(keys, 0, source, out=into_keys)
        torch.index_select(values, 0, source, out=into_values)
        return into_keys, into_values


def _attend_chunk(q: Tensor, keys: Tensor, values: Tensor, chunk: _Chunk, out: Tensor) -> None:
    """One row's new tokens, (n, n_heads, head_dim), over its context (tokens, n_kv_heads, …)."""
    n, n_heads, head_dim = q.shape
    tokens, n_kv = keys.shape[:2]
    shared = n_heads // n_kv
    queries = q.view(n, n_kv, shared, head_dim).permute(1, 2, 0, 3)
    expanded = (n_kv, shared, tokens, head_dim)
    keys = keys.transpose(0, 1).unsqueeze(1).expand(expanded)
    values = values.transpose(0, 1).unsqueeze(1).expand(expanded)
    result = out.view(n, n_kv, shared, head_dim).permute(1, 2, 0, 3)
    for first, stop, read, mask in chunk.blocks:
        result[:, :, first:stop] = scaled_dot_product_attention(
            queries[:, :, first:stop], keys[:, :, :read], values[:, :, :read], mask
        )


def _attend_group(q: Tensor, keys: Tensor, values: Tensor, group: _Group) -> Tensor:
    """Single tokens, (rows, n_heads, head_dim), each over its own `width` tokens of keys."""
    rows, _, head_dim = q.shape
    n_kv = keys.shape[1]
    context = (rows, group.width, n_kv, head_dim)
    return scaled_dot_product_attention(
        q.view(rows, n_kv, -1, head_dim),
        keys.view(context).transpose(1, 2),
        values.view(context).transpose(1, 2),
        group.mask,
    ).reshape(q.shape)


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
        source = span.view or table[span.table_row, : span.context].long()
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
    shape = torch.tensor(
        [(span.table_row, span.context) for span in spans], dtype=torch.int64, device=table.device
    )
    table_rows, lengths = shape[:, :1], shape[:, 1:]
    width = spans[0].context
    position = torch.arange(width, device=table.device)
    slots = table[table_rows, torch.minimum(position, lengths - 1)].long().flatten()
    mask = None
    if spans[-1].context < width:
        padding = (position >= lengths)[:, None, None, :]
        mask = torch.zeros(padding.shape, dtype=pool.dtype, device=pool.device)
        mask.masked_fill_(padding, float("-inf"))
    return _Group(rows, width, slots, mask)
