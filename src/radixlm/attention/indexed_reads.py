"""The reads of tokens that choose their keys by an index, see `index_keys`: which they are differs
from token to token, and from layer to layer.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from radixlm.attention.attend import Reading
from radixlm.attention.index_scores import IndexScorer
from radixlm.attention.plan import AttentionPlan, RowSpan
from radixlm.layers.index_keys import IndexSizes
from radixlm.layers.rotary import Rotation
from radixlm.memory.pools import KVPool
from radixlm.memory.staging import Sending

# Tokens that read together, so that what they are multiplied by stays small.
_BLOCK = 64
# Scores that are written out at once, of one token if that has more.
_MOST_SCORES = 1 << 22


class PoolReader(Protocol):
    """A reader of a pool, whatever its rows choose."""

    def reading(self, plan: AttentionPlan, table: Tensor, slots: Tensor) -> Reading: ...


class ChoosingRow(NamedTuple):
    """New tokens of a row that have more before them than they read: the step's [first, stop).
    slots: (context,) int32, all that the last of them sees; those before see one less each.
    """

    first: int
    stop: int
    slots: Tensor

    def blocks(self) -> Iterator[tuple[int, int, Tensor]]:
        """Some tokens [first, stop) at a time, and what the last of them sees."""
        size = max(_MOST_SCORES // self.slots.numel(), 1)
        for first, stop in pairwise([*range(self.first, self.stop, size), self.stop]):
            yield first, stop, self.slots[: self.slots.numel() - self.stop + stop]


def choosing(span: RowSpan, chosen: int) -> int:
    """How many of a row's new tokens have more than `chosen` tokens before them and themselves."""
    return min(max(span.end - chosen, 0), span.n_new)


class IndexedReads:
    """One step's choice of keys: layer after layer, each by its own index or as the one before.

    slots: (tokens,) int64, of the step. rows: of those tokens that choose.
    """

    def __init__(
        self,
        pool: KVPool,
        sizes: IndexSizes,
        scorer: IndexScorer,
        reader: PoolReader,
        slots: Tensor,
        rows: Sequence[ChoosingRow],
        sending: Sending,
    ) -> None:
        self._pool, self._sizes, self._scorer, self._reader = pool, sizes, scorer, reader
        self._slots, self._rows = slots, rows
        tokens = [token for row in rows for token in range(row.first, row.stop)]
        self._tokens = sending.put(np.array(tokens, dtype=np.int64))
        # Of each of these tokens the slots that it reads, in the context's order.
        shape = len(tokens), sizes.chosen
        self._table = torch.empty(shape, dtype=torch.int32, device=slots.device)

    def choose(self, layer: int, index: Tensor, rotation: Rotation) -> None:
        """Take in what a layer's index has of the step's tokens, (tokens, sum of its parts); none,
        if the layer has no index. The first numbers of each head turn.
        """
        if not self._sizes.layers[layer]:
            return
        queries, keys, weights = index.split_with_sizes(self._sizes.parts(), dim=1)
        kept = self._pool.index_keys[layer]
        kept.index_copy_(0, self._slots, _turned(keys[:, None], rotation)[:, 0])
        if not self._rows:
            return
        heads = queries.index_select(0, self._tokens).unflatten(1, (-1, self._sizes.size))
        heads = _turned(heads, rotation.of(self._tokens))
        weights, at = weights.index_select(0, self._tokens), 0
        for first, stop, seen in (block for row in self._rows for block in row.blocks()):
            some = slice(at, at + stop - first)
            scores = self._scorer(heads[some], weights[some], kept, seen)
            picked = scores.topk(self._sizes.chosen, sorted=False).indices.sort().values
            self._table[some] = seen[picked]
            at = some.stop

    def readings(self) -> Iterator[tuple[Tensor, Reading]]:
        """Some of the tokens that choose at a time, (n,) int64 of the step, and what they read."""
        for tokens, table in zip(
            self._tokens.split(_BLOCK), self._table.split(_BLOCK), strict=True
        ):
            if not tokens.numel():
                return
            count, width = table.shape
            rows = tuple(RowSpan(n, 1, 0, width, n, ()) for n in range(count))
            plan = AttentionPlan((), rows, count * width)
            yield tokens, self._reader.reading(plan, table, self._slots[tokens])


def _turned(x: Tensor, rotation: Rotation) -> Tensor:
    """(tokens, heads, size) -> the same, new."""
    width = rotation.table.shape[1]
    return torch.cat((rotation.turned(x[..., :width]), x[..., width:]), dim=-1)
