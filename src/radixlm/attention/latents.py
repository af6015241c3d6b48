"""Attention over a pool of latents, see `expansion`.

Few new tokens meet latents absorbed: as one key head of `row` numbers, which all heads of all
readers of a node read once, by the kernels that other models have. Many new tokens of one row meet
keys and values that are made of its context again, piece by piece: a pair of a query and a key then
costs a third, or less. Which it is the plan says, row by row. Where there is an index, tokens with
more before them than they read meet absorbed what they chose, see `indexed_reads`.
"""

from __future__ import annotations

import math
import sys
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from radixlm.attention.attend import Attend, Reading
from radixlm.attention.index_scores import IndexScorer
from radixlm.attention.indexed_reads import ChoosingRow, IndexedReads, choosing
from radixlm.attention.plan import AttentionPlan, RowSpan, Sharing
from radixlm.attention.reads import Numbers
from radixlm.attention.torch_parts import attend_part, merge
from radixlm.kernels.gpu_launch import Launch, aligned, power_of_two, row_kernel
from radixlm.layers.expansion import Expansion, LatentSizes
from radixlm.layers.index_keys import IndexSizes
from radixlm.layers.linear import QueryKeyNorm
from radixlm.layers.rotary import Rotation
from radixlm.memory.pools import KVPool
from radixlm.memory.staging import NoPlaceError, Sending

# Tokens of a context that are expanded together.
_PIECE = 512
# Fewer new tokens are not worth calls of their own.
_LEAST_NEW = 16
# A product of expanding takes as long as this many of the absorbed: docs/adr/0038-latents.md.
_DEARER = 2
# Of queries, that a program of a GPU places.
_HEADS_AT_ONCE = 8


class LatentReader(Protocol):
    """A reader of latents as they are: a backend of a pool whose values are its keys."""

    sharing: Sharing

    def reading(
        self, plan: AttentionPlan, table: Tensor, slots: Tensor, staging: Sending | None = None, /
    ) -> Reading:
        """slots: as many as the plan has tokens, which the reader does not write. staging: see
        `AttentionBackend`.
        """
        ...


class LatentBackend:
    """An `AttentionBackend` of a pool of latents. expansions: of each layer. reader: of the same
    pool, for as many heads. index: by which tokens choose what they read; None: they read all.
    """

    def __init__(
        self,
        pool: KVPool,
        expansions: Sequence[Expansion],
        reader: LatentReader,
        index: IndexSizes | None = None,
    ) -> None:
        self._pool, self._expansions, self._reader = pool, expansions, reader
        self._index, self._scorer = index, None if index is None else IndexScorer(index, pool)
        self._place = row_kernel("place_latents", pool.device.type)
        largest = min(reader.sharing.largest, least_expanded(expansions[0].sizes) - 1)
        self.sharing = reader.sharing._replace(largest=max(largest, 1))

    def prepare(
        self, plan: AttentionPlan, table: Tensor, slots: Tensor, staging: Sending | None = None, /
    ) -> Attend:
        """See `AttentionBackend`. Raises NoPlaceError for rows whose context is expanded in a step
        of a fixed size: their calls are not those of others.
        """
        sending, sizes = staging or Sending(table.device), self._expansions[0].sizes
        rows, indexed = list(plan.rows), None
        if self._index is not None and self._scorer is not None:
            rows, choose = _parted(plan.rows, self._index.chosen, table)
            given = self._pool, self._index, self._scorer, self._reader
            indexed = IndexedReads(*given, slots, choose, sending)
        large = [span for span in rows if pays_expanded(span, sizes)]
        if large and sending.tokens:
            raise NoPlaceError("a context is expanded")
        small = [span for span in rows if span not in large]
        few, tokens = plan, None
        if small != list(plan.rows):
            few, numbers = _only(plan, small)
            tokens = sending.put(numbers)
        reading = None
        if few.rows:
            its = slots if tokens is None else slots[: tokens.numel()]
            reading = self._reader.reading(few, table, its, sending)
        whole = [_Whole(span, table[span.table_row, : span.end]) for span in large]
        return LatentAttention(
            self._pool, self._expansions, slots, tokens, reading, whole, indexed, self._place
        )


def least_expanded(sizes: LatentSizes) -> int:
    """The fewest new tokens that gain by an expanded context, however long that is: a token of it
    is expanded by `rank x (plain + values)` products for a head, and then saves each of them some.
    """
    saved = _saved(sizes)
    made = _DEARER * sizes.rank * (sizes.plain + sizes.values)
    return max(-(-made // saved), _LEAST_NEW) if saved > 0 else sys.maxsize


def pays_expanded(span: RowSpan, sizes: LatentSizes) -> bool:
    """Whether a row's context is expanded: it reads all of that by itself, and what pairs of a
    query and a key save is more than what tokens before the new ones cost. (New tokens are
    multiplied by as much either way.)
    """
    n, before = span.n_new, span.context - span.n_new
    if span.start or n < _LEAST_NEW:
        return False
    cost = _DEARER * before * sizes.rank * (sizes.plain + sizes.values)
    return cost < _saved(sizes) * (n * before + n * (n + 1) // 2)


def _saved(sizes: LatentSizes) -> int:
    """Products of one query and one key, and of its weight and its value."""
    return 2 * (sizes.row - max(sizes.key, sizes.values))


def _parted(
    rows: Sequence[RowSpan], chosen: int, table: Tensor
) -> tuple[list[RowSpan], list[ChoosingRow]]:
    """Rows without their new tokens that choose what they read, and these. Chosen is of the whole
    context, whether it is read with others or not.
    """
    others, made = [], []
    for span in rows:
        if count := choosing(span, chosen):
            slots, stop = table[span.table_row, : span.end], span.token + span.n_new
            made.append(ChoosingRow(stop - count, stop, slots))
        if count < span.n_new:
            n_new, context = span.n_new - count, span.context - count
            others.append(span._replace(n_new=n_new, context=context))
    return others, made


def _only(plan: AttentionPlan, rows: Sequence[RowSpan]) -> tuple[AttentionPlan, Numbers]:
    """The plan of these rows, as if they were all, and which tokens of the step they have. rows: of
    the plan, perhaps without their last new tokens.
    """
    made: list[RowSpan] = []
    tokens: list[int] = []
    for span in rows:
        made.append(span._replace(token=len(tokens)))
        tokens += range(span.token, span.token + span.n_new)
    shared = []
    for read in plan.shared:
        first, stop = bisect_left(tokens, read.first), bisect_left(tokens, read.stop)
        if first < stop:
            shared.append(read._replace(first=first, stop=stop))
    few = AttentionPlan(tuple(shared), tuple(made), sum(span.end for span in made))
    return few, np.array(tokens, dtype=np.int64)


class _Whole(NamedTuple):
    """A row whose context is expanded. slots: (context,) int32."""

    span: RowSpan
    slots: Tensor


class LatentAttention:
    """One step's attention (an `Attend`): made for a plan, called once per layer.

    qkv: of each new token the heads' queries, plain and then turned numbers, and its latent row.
    Behind these there may be what the index has of it. tokens: those of the step that `reading` is
    for; None: all. whole: rows of the others, but for those that choose their keys, in `indexed`.
    place: `gpu_rows.place_latents`, where it can be launched.
    """

    def __init__(
        self,
        pool: KVPool,
        expansions: Sequence[Expansion],
        slots: Tensor,
        tokens: Tensor | None,
        reading: Reading | None,
        whole: Sequence[_Whole],
        indexed: IndexedReads | None,
        place: Launch | None,
    ) -> None:
        self._pool, self._expansions, self._slots, self._place = pool, expansions, slots, place
        self._tokens, self._reading, self._whole = tokens, reading, whole
        self._indexed = indexed
        # Of a piece's keys and values; torch's kernel wants both as wide. Fresh memory for each
        # layer would cost as much as what is written there.
        sizes, up = expansions[0].sizes, expansions[0]
        longest = max((row.slots.numel() for row in whole), default=0)
        shape = (2, 1, up.n_heads, min(longest, _PIECE), max(sizes.key, sizes.values))
        self._pieces = up.weight.new_zeros(shape)

    def __call__(
        self,
        layer: int,
        qkv: Tensor,
        rotation: Rotation,
        norm: QueryKeyNorm | None = None,  # noqa: ARG002
        sinks: Tensor | None = None,  # noqa: ARG002
    ) -> Tensor:
        """See `Attend`; there are neither norms of heads nor sinks. Returns (tokens, heads x
        values).
        """
        up = self._expansions[layer]
        sizes, heads = up.sizes, up.n_heads
        queries, row, index = qkv.tensor_split(
            (heads * sizes.key, heads * sizes.key + sizes.row), dim=1
        )
        if self._indexed is not None:
            self._indexed.choose(layer, index, rotation)
        q = queries.view(-1, heads, sizes.key)
        if self._place is not None:
            self._placed(self._place, layer, qkv, rotation)
        else:
            row[:, sizes.rank :] = rotation.turned(row[:, None, sizes.rank :])[:, 0]
            self._pool.keys[layer].index_copy_(0, self._slots, row.unsqueeze(1))
            q[..., sizes.plain :] = rotation.turned(q[..., sizes.plain :])
            q = rotation.multiplied(q)
        if self._reading is not None and self._tokens is None:
            return self._absorbed(self._reading, layer, q).flatten(1)
        out = q.new_empty(q.shape[0], heads, sizes.values)
        if self._reading is not None and self._tokens is not None:
            few = self._absorbed(self._reading, layer, q.index_select(0, self._tokens))
            out.index_copy_(0, self._tokens, few)
        for row_of in self._whole:
            new = slice(row_of.span.token, row_of.span.token + row_of.span.n_new)
            out[new] = self._expanded(layer, q[new], row_of.slots)
        if self._indexed is not None:
            for tokens, reading in self._indexed.readings():
                out[tokens] = self._absorbed(reading, layer, q[tokens])
        return out.flatten(1)

    def _placed(self, place: Launch, layer: int, qkv: Tensor, rotation: Rotation) -> None:
        """Turn queries, in place, and put each token's row into the pool."""
        sizes, heads = self._expansions[layer].sizes, self._expansions[layer].n_heads
        keys, stride = self._pool.keys[layer], qkv.stride(0)
        place(
            (rotation.factors is None, stride, aligned(qkv)),
            (qkv.shape[0], heads // _HEADS_AT_ONCE + 1),
            (qkv, *rotation, self._slots, keys, stride),
            {
                "HEADS": heads,
                "PLAIN": sizes.plain,
                "RANK": sizes.rank,
                "TURNED": sizes.turned,
                "P": power_of_two(sizes.plain),
                "R": power_of_two(sizes.rank),
                "T": power_of_two(sizes.turned // 2),
                "BLOCK": _HEADS_AT_ONCE,
            },
        )

    def _absorbed(self, reading: Reading, layer: int, q: Tensor) -> Tensor:
        """(tokens, heads, key) -> (tokens, heads, values)."""
        up = self._expansions[layer]
        sizes = up.sizes
        # Kernels divide by the root of what they take for a head's size.
        factor = up.scale * math.sqrt(sizes.row)
        made = q.new_empty(q.shape[0], up.n_heads, sizes.row)
        torch.mul(up.absorbed(q[..., : sizes.plain]), factor, out=made[..., : sizes.rank])
        torch.mul(q[..., sizes.plain :], factor, out=made[..., sizes.rank :])
        mixed = reading.read(layer, made.flatten(1)).unflatten(1, (up.n_heads, -1))
        return up.values_of(mixed[..., : sizes.rank]).to(q.dtype)

    def _expanded(self, layer: int, q: Tensor, slots: Tensor) -> Tensor:
        """A row's new tokens, (n, heads, key) -> (n, heads, values), the last of its `slots`."""
        up = self._expansions[layer]
        sizes = up.sizes
        keys, values = self._pieces.unbind()
        query = keys.new_zeros(1, up.n_heads, q.shape[0], keys.shape[-1])
        query[0, ..., : sizes.key] = q.transpose(0, 1)
        out = query.new_empty(query.shape, dtype=torch.float32)
        lse = out.new_empty(out.shape[:3])
        before = slots.numel() - q.shape[0]
        for start, stop in _pieces(before, slots.numel()):
            rows = self._pool.keys[layer][slots[start:stop], 0]
            of_keys, of_values = up.expanded(rows[:, : sizes.rank])
            size = stop - start
            keys[0, :, :size, : sizes.plain] = of_keys.transpose(0, 1)
            keys[0, :, :size, sizes.plain : sizes.key] = rows[:, sizes.rank :]
            values[0, :, :size, : sizes.values] = of_values.transpose(0, 1)
            first = max(start - before, 0)
            mask = None
            if stop > before:
                barred = query.new_full((q.shape[0] - first, size), -math.inf)
                mask = barred.triu_(1)
            part, part_lse = attend_part(
                query[:, :, first:], keys[:, :, :size], values[:, :, :size], mask, up.scale
            )
            if start == 0:
                out.copy_(part)
                lse.copy_(part_lse)
            else:
                merge(out[:, :, first:], lse[:, :, first:], part, part_lse)
        return out[0, ..., : sizes.values].transpose(0, 1).to(q.dtype)


def _pieces(before: int, context: int) -> Iterator[tuple[int, int]]:
    """Pieces of the tokens before the new ones, then of these: queries of one piece are masked in
    it alone.
    """
    ends = {*range(0, before, _PIECE), *range(before, context, _PIECE), context}
    return pairwise(sorted(ends))
