"""Attention by torch, on any device: what of the pool is read, and the queries that meet it."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from radixlm.attention.attend import Attend, by_layer
from radixlm.attention.plan import AttentionPlan, RowSpan, SharedRead, Sharing
from radixlm.attention.torch_parts import attend_all, attend_part, merge
from radixlm.core.batch import Extent
from radixlm.layers.linear import QueryKeyNorm
from radixlm.layers.rotary import Rotation
from radixlm.memory.pools import KVPool

# A run of slots of a shared node this long is read in place, shorter ones are gathered together.
LEAST_VIEW = 4096
# Rows are padded to the longest of their group: a row joins while it fills 3/4 of it, or misses
# so few tokens that a call of its own would cost more.
_LEAST_FILL = 0.75
_FREE_PADDING = 64
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

# A run of the pool (a view), or a list of slots (a gather).
Source = Extent | Tensor


class Sources:
    """Reads a pool at the sources of one step, one after the other."""

    def __init__(self, pool: KVPool, sources: Iterable[Source]) -> None:
        self._pool = pool
        gathered = max((s.numel() for s in sources if isinstance(s, Tensor)), default=0)
        shape = (0 if pool.coded else gathered, pool.n_kv_heads, pool.head_dim)
        # Written anew in each layer: fresh memory per gather costs more in page faults than it.
        self._scratch = tuple(
            torch.empty(shape, dtype=pool.dtype, device=pool.device) for _ in range(2)
        )

    def read(self, layer: int, source: Source) -> tuple[Tensor, Tensor]:
        """Keys and values, (tokens, n_kv_heads, head_dim) each; a gather's hold till the next."""
        if self._pool.coded or isinstance(source, Extent):
            return self._pool.read(layer, slice(*source) if isinstance(source, Extent) else source)
        keys, values = self._pool.keys[layer], self._pool.values[layer]
        into_keys, into_values = (buffer[: source.numel()] for buffer in self._scratch)
        torch.index_select(keys, 0, source, out=into_keys)
        torch.index_select(values, 0, source, out=into_values)
        return into_keys, into_values


class _Chunk(NamedTuple):
    """blocks: (first query, one past the last, tokens read, mask) within the row's new tokens."""

    new: slice
    source: Source
    blocks: tuple[tuple[int, int, int, Tensor], ...]


class _Group(NamedTuple):
    """Rows with one new token and similar contexts, a padded batch. tokens: (rows,) int64, the new
    ones; mask: None when nothing is padded.
    """

    tokens: Tensor
    width: int
    source: Source
    mask: Tensor | None


class TorchBackend:
    """Attention on any device. n_heads: of queries; windows: see `by_layer`; cap: of scores, 0:
    none; group_tokens: the most padded tokens that a group reads, unless it is one row.
    """

    def __init__(
        self,
        pool: KVPool,
        n_heads: int,
        *,
        windows: Sequence[int | None] = (),
        cap: float = 0.0,
        group_tokens: int | None = None,
    ) -> None:
        self._pool, self._windows, self._cap = pool, windows, cap
        budget = _CPU_GROUP_ELEMENTS if pool.device.type == "cpu" else _GPU_GROUP_ELEMENTS
        self._group_tokens = group_tokens or budget // (2 * pool.n_kv_heads * pool.head_dim)
        saved = _LEAST_SAVED // (n_heads * pool.head_dim)
        self.sharing = Sharing(
            largest=sys.maxsize, fewest=1, shortest=0, least_saved=saved, least_view=LEAST_VIEW
        )

    def prepare(self, plan: AttentionPlan, table: Tensor, slots: Tensor) -> Attend:
        """See `Backend`."""
        return by_layer(
            plan,
            self._windows,
            partial(TorchAttention, self._pool, table, slots, self._group_tokens, self._cap),
            apart=self._pool.windows is not None,
        )

    def reading(self, plan: AttentionPlan, table: Tensor, slots: Tensor) -> TorchAttention:
        """What `prepare` gives where no layer has a window."""
        cap = self._cap
        return TorchAttention(self._pool, table, slots, self._group_tokens, cap, plan, None, False)


class TorchAttention:
    """One step's attention (an `Attend`): made for a plan, called once per layer.

    Each row attends to what it reads by itself, then what rows read together is merged in, one
    read after the other; where nothing is shared, nothing is merged and the first part is all.

        tokens of the step   | c c c c | d | d | c c c | d |
                               chunk 0   |   |   chunk 1  |     chunks: several new tokens
                                         +---+---- ... ---+     groups of single ones

    Grouped queries need no kernel of their own: of one token, those that share a key head are
    several queries of one head; of many tokens, they are heads over a key expanded with stride 0.

    The causal mask is one (block, longest context) triangle aligned at the bottom right. Cutting
    off rows above and columns to the left keeps the alignment, so it serves every block of every
    row:

        .  .  .  .  x  x          last 2 rows, last 4 columns:    .  .  .  x
        .  .  .  .  .  x                                          .  .  .  .
        .  .  .  .  .  .          ('.' may be read, x not)

    pool: receives the new tokens' keys and values, then is read.
    table, slots: see `Backend`. group_tokens, cap: see `TorchBackend`. window, own: see `by_layer`.
    """

    def __init__(
        self,
        pool: KVPool,
        table: Tensor,
        slots: Tensor,
        group_tokens: int,
        cap: float,
        plan: AttentionPlan,
        window: int | None,
        own: bool,
    ) -> None:
        self._pool, self._cap = pool, cap
        places = pool.window_slots if own else None
        self._slots = slots if places is None else places[slots].long()
        several = [span for span in plan.rows if span.n_new > 1]
        self._chunks = list(_chunks(several, table, pool, window, places))
        singles = [span for span in plan.rows if span.n_new == 1]
        self._groups = [
            _group(spans, table, pool, places) for spans in grouped(singles, group_tokens)
        ]
        self._shared = [(read, _shared_source(read, pool, places)) for read in plan.shared]
        parts: list[_Chunk | _Group] = [*self._chunks, *self._groups]
        sources = [part.source for part in parts] + [source for _, source in self._shared]
        self._sources = Sources(pool, sources)

    def __call__(
        self,
        layer: int,
        qkv: Tensor,
        rotation: Rotation,
        norm: QueryKeyNorm | None,
        sinks: Tensor | None = None,
    ) -> Tensor:
        """See `Attend`."""
        q, k, v = parts_of(qkv, self._pool.n_kv_heads, rotation, norm)
        self._pool.write(layer, self._slots, k, v)
        return self._read(layer, q, sinks)

    def read(self, layer: int, q: Tensor, sinks: Tensor | None = None) -> Tensor:
        """See `Reading`."""
        return self._read(layer, q.unflatten(1, (-1, self._pool.head_dim)), sinks)

    def _read(self, layer: int, q: Tensor, sinks: Tensor | None) -> Tensor:
        in_parts = bool(self._shared) or sinks is not None
        dtype = torch.float32 if in_parts else q.dtype
        out = torch.empty(q.shape, dtype=dtype, device=q.device)
        lse = out.new_empty(q.shape[:2]) if in_parts else None
        for chunk in self._chunks:
            keys, values = self._sources.read(layer, chunk.source)
            new = chunk.new
            its_lse = None if lse is None else lse[new]
            _attend_chunk(q[new], keys, values, chunk, out[new], its_lse, self._cap)
        for group in self._groups:
            keys, values = self._sources.read(layer, group.source)
            single = q.index_select(0, group.tokens)
            part, part_lse = _attend_group(single, keys, values, group, lse is not None, self._cap)
            out.index_copy_(0, group.tokens, part.to(dtype))
            if lse is not None and part_lse is not None:
                lse.index_copy_(0, group.tokens, part_lse)
        if lse is not None:
            self._merge_shared(layer, q, out, lse)
            if sinks is not None:
                out.mul_((lse - sinks).sigmoid_().unsqueeze(2))
        return out.to(q.dtype).flatten(1)

    def _merge_shared(self, layer: int, q: Tensor, out: Tensor, lse: Tensor) -> None:
        """Merge what rows read together into what each has by itself.

        Queries that share a key head stand one below the other, those of all tokens:
        (n_kv_heads, tokens, queries of a key head, head_dim).
        """
        n_kv = self._pool.n_kv_heads
        by_key = q.unflatten(1, (n_kv, -1)).transpose(0, 1)
        queries = torch.mul(by_key, q.shape[-1] ** -0.5, out=q.new_empty(by_key.shape))
        out, lse = out.unflatten(1, (n_kv, -1)), lse.unflatten(1, (n_kv, -1))
        for read, source in self._shared:
            keys, values = self._sources.read(layer, source)
            rows = slice(read.first, read.stop)
            theirs = queries[:, rows]
            part, part_lse = attend_all(theirs.flatten(1, 2), keys, values, self._cap)
            part, part_lse = part.view_as(theirs), part_lse.view(theirs.shape[:3])
            merge(out[rows], lse[rows], part.transpose(0, 1), part_lse.transpose(0, 1))


def parts_of(
    qkv: Tensor, n_kv_heads: int, rotation: Rotation, norm: QueryKeyNorm | None
) -> tuple[Tensor, ...]:
    """See `Attend`: queries, keys and values, (tokens, heads of it, head_dim), as they are used."""
    heads = qkv.unflatten(1, (-1, rotation.table.shape[1]))
    n_heads = heads.shape[1] - 2 * n_kv_heads
    qk, v = heads.split_with_sizes((n_heads + n_kv_heads, n_kv_heads), dim=1)
    qk = rotation.turned(qk if norm is None else norm(qk))
    return *qk.split_with_sizes((n_heads, n_kv_heads), dim=1), v


def _attend(
    q: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None, with_lse: bool, cap: float
) -> tuple[Tensor, Tensor | None]:
    """As `attend_part`; without an lse or a cap it is torch's fastest."""
    if with_lse or cap:
        return attend_part(q, keys, values, mask, q.shape[-1] ** -0.5, cap)
    return scaled_dot_product_attention(q, keys, values, mask), None


def _attend_chunk(
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    chunk: _Chunk,
    out: Tensor,
    lse: Tensor | None,
    cap: float,
) -> None:
    """One row's new tokens, (n, n_heads, head_dim), over its context (tokens, n_kv_heads, …), into
    out and lse.
    """
    n_kv = keys.shape[1]
    queries, out = (each.unflatten(1, (n_kv, -1)).permute(1, 2, 0, 3) for each in (q, out))
    lse = None if lse is None else lse.unflatten(1, (n_kv, -1)).permute(1, 2, 0)
    keys, values = (
        each.transpose(0, 1).unsqueeze(1).expand(-1, queries.shape[1], -1, -1)
        for each in (keys, values)
    )
    for first, stop, read, mask in chunk.blocks:
        block = queries[:, :, first:stop]
        part, part_lse = _attend(
            block, keys[:, :, :read], values[:, :, :read], mask, lse is not None, cap
        )
        out[:, :, first:stop] = part
        if lse is not None and part_lse is not None:
            lse[:, :, first:stop] = part_lse


def _attend_group(
    q: Tensor, keys: Tensor, values: Tensor, group: _Group, with_lse: bool, cap: float
) -> tuple[Tensor, Tensor | None]:
    """Single tokens, (rows, n_heads, head_dim), each over its own `width` tokens of keys."""
    rows, _, head_dim = q.shape
    context = (rows, group.width, keys.shape[1], head_dim)
    part, lse = _attend(
        q.view(rows, keys.shape[1], -1, head_dim),
        keys.view(context).transpose(1, 2),
        values.view(context).transpose(1, 2),
        group.mask,
        with_lse,
        cap,
    )
    return part.flatten(1, 2), None if lse is None else lse.flatten(1, 2)


def grouped(spans: Iterable[RowSpan], group_tokens: int) -> list[list[RowSpan]]:
    """Longest first, so that a group's first row gives its width and waste is easy to bound."""
    groups: list[list[RowSpan]] = []
    for span in sorted(spans, key=lambda span: -span.context):
        width = groups[-1][0].context if groups else 0
        similar = span.context >= _LEAST_FILL * width or width - span.context <= _FREE_PADDING
        if groups and similar and (len(groups[-1]) + 1) * width <= group_tokens:
            groups[-1].append(span)
        else:
            groups.append([span])
    return groups


def _chunks(
    spans: Sequence[RowSpan],
    table: Tensor,
    pool: KVPool,
    window: int | None,
    places: Tensor | None,
) -> Iterator[_Chunk]:
    limit = _CPU_QUERY_BLOCK if pool.device.type == "cpu" else _GPU_QUERY_BLOCK
    height = min(limit, max((span.n_new for span in spans), default=0))
    width = max((span.context for span in spans), default=0)
    barred = torch.full((height, width), float("-inf"), dtype=pool.dtype, device=pool.device)
    triangle = barred.triu(width - height + 1)
    if window is not None:
        triangle += barred.tril_(width - height - window)
    for span in spans:
        start = span.context - span.n_new
        blocks = []
        for first, stop in pairwise([*range(0, span.n_new, height), span.n_new]):
            mask = triangle[height - (stop - first) :, width - (start + stop) :]
            # CUDA's kernels want an aligned mask; CPU's take any strides.
            mask = mask if pool.device.type == "cpu" else mask.contiguous()
            blocks.append((first, stop, start + stop, mask))
        new = slice(span.token, span.token + span.n_new)
        yield _Chunk(new, _source_of([span], table, places), tuple(blocks))


def _source_of(spans: Sequence[RowSpan], table: Tensor, places: Tensor | None) -> Source:
    """Where that lies which rows read by themselves. places: of layers with slots of their own."""
    view = view_of(spans[0]) if len(spans) == 1 and places is None else None
    if view is not None:
        return view
    slots = _slots_of(spans, table).flatten()
    return slots if places is None else places[slots].long()


def _group(spans: Sequence[RowSpan], table: Tensor, pool: KVPool, places: Tensor | None) -> _Group:
    """Padding repeats a row's own last slot: nothing of another request is ever touched."""
    width = spans[0].context
    tokens = torch.tensor([span.token for span in spans], device=pool.device)
    mask = None
    if spans[-1].context < width:
        position = torch.arange(width, device=table.device)
        lengths = torch.tensor([span.context for span in spans], device=table.device)
        padding = (position >= lengths[:, None])[:, None, None, :]
        mask = torch.zeros(padding.shape, dtype=pool.dtype, device=pool.device)
        mask.masked_fill_(padding, float("-inf"))
    return _Group(tokens, width, _source_of(spans, table, places), mask)


def view_of(span: RowSpan) -> Extent | None:
    """The one run of slots that is all that a row reads by itself, if it is one. A segment's runs
    never touch, so one that has several of them (a long answer can have thousands) settles it.
    """
    own = [segment for segment in span.segments if segment.stop > span.start]
    start = stop = own[0].extents[0].start
    for segment in own:
        if len(segment.extents) > 1 or segment.extents[0].start != stop:
            return None
        stop = segment.extents[0].stop
    return Extent(start + max(span.start - own[0].start, 0), stop)


def _slots_of(spans: Sequence[RowSpan], table: Tensor) -> Tensor:
    """(spans, longest context) int64: the slots that each row reads by itself."""
    places = [(span.table_row, span.context, span.start) for span in spans]
    made = torch.tensor(places, dtype=torch.int64, device=table.device)
    rows, lengths, starts = made[:, :, None].unbind(1)
    position = torch.arange(spans[0].context, device=table.device)
    position = torch.minimum(position, lengths - 1)
    return table[rows, starts + position].long()


def _shared_source(read: SharedRead, pool: KVPool, places: Tensor | None) -> Source:
    """A view when it is one run of slots, else a gather. places: see `_source_of`."""
    if len(read.extents) == 1 and places is None:
        return read.extents[0]
    slots = torch.cat([torch.arange(*extent) for extent in read.extents]).to(pool.device)
    return slots if places is None else places[slots].long()
