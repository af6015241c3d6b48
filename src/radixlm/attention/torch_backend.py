"""Attention by torch, on any device: queries meet what they read of the pool."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from radixlm.attention.attend import Attend, by_layer
from radixlm.attention.plan import AttentionPlan, Sharing
from radixlm.attention.torch_parts import attend_all, attend_part, merge
from radixlm.attention.torch_reads import (
    Chunk,
    Group,
    RowReads,
    Sources,
    shared_slots,
    shared_sources,
)
from radixlm.layers.linear import QueryKeyNorm
from radixlm.layers.rotary import Rotation
from radixlm.memory.pools import KVPool
from radixlm.memory.staging import Sending

# A run of slots of a shared node this long is read in place, shorter ones are gathered together.
LEAST_VIEW = 4096
# A gathered group is read again at once, so it should still lie in the processor's cache. Of 2 to 8
# MiB, 64 rows of 1,050 tokens were fastest at 4 in float32 and 2 in bfloat16 (1 MiB L2 per core);
# gathered in one piece they take twice as long. Counted in elements of keys and values together.
_CPU_GROUP_ELEMENTS = 1 << 20
_GPU_GROUP_ELEMENTS = 128 << 20
# When to share; docs/adr/0011-tree-attention.md has the measurements. A read of its own costs calls
# and merging: what a row must save, in tokens x heads x head_dim.
_CPU_LEAST_SAVED = 1 << 20
# In tokens x key heads x head_dim: beside an H100 the calls took the host a millisecond a layer, in
# which 2**28 of these numbers are read: 64 rows over 1,000 tokens, 2**26, were slower with than
# without. A row with several new tokens reads its context once for all of them anyway.
_GPU_LEAST_SAVED = 1 << 28


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
        if pool.device.type != "cpu":
            # It builds a plan for each length of a context, tens of milliseconds of the host's
            # time and memory that stays, and contexts grow in every step. torch knows no way to
            # leave it out but for the whole process.
            torch.backends.cuda.enable_cudnn_sdp(False)
            budget, largest = _GPU_GROUP_ELEMENTS, 1
            saved = _GPU_LEAST_SAVED // (pool.n_kv_heads * pool.head_dim)
        else:
            budget, largest = _CPU_GROUP_ELEMENTS, sys.maxsize
            saved = _CPU_LEAST_SAVED // (n_heads * pool.head_dim)
        self._group_tokens = group_tokens or budget // (2 * pool.n_kv_heads * pool.head_dim)
        self.sharing = Sharing(
            largest=largest, fewest=1, shortest=0, least_saved=saved, least_view=LEAST_VIEW
        )

    def prepare(
        self, plan: AttentionPlan, table: Tensor, slots: Tensor, staging: Sending | None = None, /
    ) -> Attend:
        """See `AttentionBackend`."""
        sending = staging or Sending(table.device)
        given = self._pool, table, slots, self._group_tokens, self._cap, sending
        apart = self._pool.windows is not None
        return by_layer(plan, self._windows, partial(TorchAttention, *given), apart=apart)

    def reading(
        self, plan: AttentionPlan, table: Tensor, slots: Tensor, staging: Sending | None = None
    ) -> TorchAttention:
        """The reads that `prepare` gives where no layer has a window."""
        sending = staging or Sending(table.device)
        given = self._pool, table, slots, self._group_tokens, self._cap, sending
        return TorchAttention(*given, plan, None, False)


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
    table, slots, sending: see `AttentionBackend`. group_tokens, cap: see `TorchBackend`. window,
    own: see `by_layer`.
    """

    def __init__(
        self,
        pool: KVPool,
        table: Tensor,
        slots: Tensor,
        group_tokens: int,
        cap: float,
        sending: Sending,
        plan: AttentionPlan,
        window: int | None,
        own: bool,
    ) -> None:
        self._pool, self._cap, self._slots = pool, cap, slots
        places = pool.window_slots if own else None
        rows = RowReads(plan.rows, group_tokens, sending)
        shared = sending.put(shared_slots(plan.shared, all_of_them=places is not None))

        def begin() -> None:
            if places is not None:
                self._slots = places[slots].long()
            self._chunks, self._groups = rows.begin(plan.shared, table, pool, window, places)
            sources = shared_sources(plan.shared, shared, places)
            self._shared = list(zip(plan.shared, sources, strict=True))
            parts: list[Chunk | Group] = [*self._chunks, *self._groups]
            read = [part.source for part in parts] + [source for _, source in self._shared]
            self._sources = Sources(pool, read)

        sending.after(begin)

    def __call__(
        self,
        layer: int,
        qkv: Tensor,
        rotation: Rotation,
        norm: QueryKeyNorm | None,
        sinks: Tensor | None = None,
    ) -> Tensor:
        """See `Attend`."""
        own = self._pool.shapes[layer].source is None
        q, k, v = parts_of(qkv, self._pool.n_kv_heads if own else 0, rotation, norm)
        if own:
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
            its_lse = (
                lse[new] if lse is not None and (chunk.in_parts or sinks is not None) else None
            )
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
    if norm is None:
        qk = rotation.turned(qk)
    else:
        qk = norm(rotation.turned(qk)) if norm.after else rotation.turned(norm(qk))
    q, k = qk.split_with_sizes((n_heads, n_kv_heads), dim=1)
    return rotation.multiplied(q), k, v


def _attend(
    q: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None, with_lse: bool, cap: float
) -> tuple[Tensor, Tensor | None]:
    """Attend as `attend_part` does; without an lse or a cap it is torch's fastest."""
    if with_lse or cap:
        return attend_part(q, keys, values, mask, q.shape[-1] ** -0.5, cap)
    return scaled_dot_product_attention(q, keys, values, mask), None


def _attend_chunk(
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    chunk: Chunk,
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
        if q.device.type != "cpu":
            mask = mask.contiguous()  # kernels want it aligned; CPU's take any strides
        block = queries[:, :, first:stop]
        part, part_lse = _attend(
            block, keys[:, :, :read], values[:, :, :read], mask, lse is not None, cap
        )
        out[:, :, first:stop] = part
        if lse is not None and part_lse is not None:
            lse[:, :, first:stop] = part_lse


def _attend_group(
    q: Tensor, keys: Tensor, values: Tensor, group: Group, with_lse: bool, cap: float
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
