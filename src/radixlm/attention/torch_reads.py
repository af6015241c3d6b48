"""The reads of a step's rows by torch, by themselves and together, and how a pool is read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, chain, pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from radixlm.attention.plan import RowSpan, SharedRead
from radixlm.attention.torch_parts import MOST_SCORES
from radixlm.core.batch import Extent
from radixlm.memory.pools import KVPool
from radixlm.memory.staging import Sending

# Rows are padded to the longest of their group: a row joins while it fills 3/4 of it, or misses
# so few tokens that a call of its own would cost more.
_LEAST_FILL = 0.75
_FREE_PADDING = 64
# Queries per call within a chunk. A block reads only what lies before its own end, so that small
# blocks skip the masked half; on CPU 64 to 256 are as fast as the kernel's own causal mode.
_CPU_QUERY_BLOCK = 256
_GPU_QUERY_BLOCK = 2048
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


class Chunk(NamedTuple):
    """blocks: (first query, one past the last, tokens read, mask) within the row's new tokens.
    in_parts: whether the row reads with others, too.
    """

    new: slice
    in_parts: bool
    source: Source
    blocks: tuple[tuple[int, int, int, Tensor], ...]


class Group(NamedTuple):
    """Rows with one new token and similar contexts, a padded batch. tokens: (rows,) int64, the new
    ones; mask: None when nothing is padded.
    """

    tokens: Tensor
    width: int
    source: Source
    mask: Tensor | None


class RowReads:
    """The reads of each row by itself, of which `begin` makes a step's chunks and groups once their
    numbers are on the device.

    numbers: (rows, 4) int64 there: of each its first new token, its row of the table, the tokens
    that it reads by itself, and where these begin; first rows with several new tokens.
    """

    def __init__(self, rows: Sequence[RowSpan], group_tokens: int, sending: Sending) -> None:
        """group_tokens: see `TorchBackend`."""
        self._several = [span for span in rows if span.n_new > 1]
        self._groups = grouped((span for span in rows if span.n_new == 1), group_tokens)
        spans = [*self._several, *chain.from_iterable(self._groups)]
        fields = [(span.token, span.table_row, span.context, span.start) for span in spans]
        self.numbers = sending.put(np.array(fields, dtype=np.int64).reshape(-1, 4))

    def begin(
        self,
        shared: Sequence[SharedRead],
        table: Tensor,
        pool: KVPool,
        window: int | None,
        places: Tensor | None,
    ) -> tuple[list[Chunk], list[Group]]:
        """shared: reads of the same step. table: see `AttentionBackend`; window: of the layers that
        these are for; places: see `_source_of`.
        """
        chunks = _chunks(self._several, self.numbers, table, pool, window, places, shared)
        ends = accumulate(map(len, self._groups), initial=len(self._several))
        return list(chunks), [
            _group(spans, self.numbers[start:stop], table, pool, places)
            for spans, (start, stop) in zip(self._groups, pairwise(ends), strict=True)
        ]


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
    numbers: Tensor,
    table: Tensor,
    pool: KVPool,
    window: int | None,
    places: Tensor | None,
    shared: Sequence[SharedRead],
) -> Iterator[Chunk]:
    width = max((span.context for span in spans), default=0)
    limit = _CPU_QUERY_BLOCK
    if pool.device.type != "cpu":
        limit = max(min(_GPU_QUERY_BLOCK, MOST_SCORES // max(width, 1)), 1)
    height = min(limit, max((span.n_new for span in spans), default=0))
    barred = torch.full((height, width), float("-inf"), dtype=pool.dtype, device=pool.device)
    triangle = barred.triu(width - height + 1)
    if window is not None:
        triangle += barred.tril_(width - height - window)
    for place, span in enumerate(spans):
        its = numbers[place : place + 1]
        start = span.context - span.n_new
        blocks = []
        for first, stop in pairwise([*range(0, span.n_new, height), span.n_new]):
            mask = triangle[height - (stop - first) :, width - (start + stop) :]
            blocks.append((first, stop, start + stop, mask))
        new = slice(span.token, span.token + span.n_new)
        in_parts = any(read.first <= span.token < read.stop for read in shared)
        yield Chunk(new, in_parts, _source_of([span], its, table, places), tuple(blocks))


def _source_of(
    spans: Sequence[RowSpan], numbers: Tensor, table: Tensor, places: Tensor | None
) -> Source:
    """The memory that rows read by themselves. places: of layers with slots of their own."""
    view = view_of(spans[0]) if len(spans) == 1 and places is None else None
    if view is not None:
        return view
    slots = _slots_of(numbers, spans[0].context, table).flatten()
    return slots if places is None else places[slots].long()


def _group(
    spans: Sequence[RowSpan], numbers: Tensor, table: Tensor, pool: KVPool, places: Tensor | None
) -> Group:
    """Padding repeats a row's own last slot: nothing of another request is ever touched."""
    width = spans[0].context
    mask = None
    if spans[-1].context < width:
        position = torch.arange(width, device=table.device)
        padding = (position >= numbers[:, 2:3])[:, None, None, :]
        mask = torch.zeros(padding.shape, dtype=pool.dtype, device=pool.device)
        mask.masked_fill_(padding, float("-inf"))
    return Group(numbers[:, 0], width, _source_of(spans, numbers, table, places), mask)


def view_of(span: RowSpan) -> Extent | None:
    """The one run of slots that is all that a row reads by itself, if it is one. A segment's runs
    never touch, so one that has several of them (a long answer can have thousands) settles it.
    """
    own = [each for each in span.segments if span.start < each.stop and each.start < span.end]
    if not own:
        return None
    start = stop = own[0].extents[0].start
    for segment in own:
        if len(segment.extents) > 1 or segment.extents[0].start != stop:
            return None
        stop = segment.extents[0].stop
    start += span.start - own[0].start
    return Extent(start, start + span.context)


def _slots_of(numbers: Tensor, width: int, table: Tensor) -> Tensor:
    """(spans, width) int64: the slots that each row reads by itself. numbers: see `RowReads`."""
    _, rows, lengths, starts = numbers[:, :, None].unbind(1)
    position = torch.arange(width, device=table.device)
    position = torch.minimum(position, lengths - 1)
    return table[rows, starts + position].long()


def shared_slots(reads: Sequence[SharedRead], *, all_of_them: bool) -> npt.NDArray[np.int64]:
    """The slots of reads of several runs, or of all of them, one after the other."""
    runs = [np.arange(*extent) for read in reads for extent in _gathered(read, all_of_them)]
    return np.concatenate([np.empty(0, dtype=np.int64), *runs])


def _gathered(read: SharedRead, all_of_them: bool) -> tuple[Extent, ...]:
    return read.extents if all_of_them or len(read.extents) > 1 else ()


def shared_sources(
    reads: Sequence[SharedRead], slots: Tensor, places: Tensor | None
) -> Iterator[Source]:
    """Views of those that are one run of slots, gathers of the others. slots: `shared_slots`.
    places: see `_source_of`.
    """
    start = 0
    for read in reads:
        if _gathered(read, places is not None):
            part = slots[start : start + read.length]
            start += read.length
            yield part if places is None else places[part].long()
        else:
            yield read.extents[0]
