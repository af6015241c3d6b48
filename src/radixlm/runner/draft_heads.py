"""Drafts of a head: what it keeps of each token, and what it proposes after a step."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from radixlm.attention.attend import Attend
from radixlm.attention.backends import make_backend
from radixlm.attention.growing import GrowingContexts
from radixlm.attention.plan import AttentionPlan, RowSpan
from radixlm.core.batch import ScheduledBatch, ScheduledRow
from radixlm.memory.pools import KVPool, ReqToTokenPool
from radixlm.models.draft_head import DraftHead


class _Known(NamedTuple):
    """A row whose tokens [first, stop) are known now, `tokens`, of which the head has no rows yet.
    ahead: how many are to be drafted after them, of which the last one has no slot yet.
    """

    place: int
    row: ScheduledRow
    first: int
    tokens: list[int]
    ahead: int

    @property
    def stop(self) -> int:
        return self.first + len(self.tokens)


class HeadDrafter:
    """A head beside a model, with one layer of the pool.

        token           0     1     2     3            each lies in its slot, shared or not
        model keeps     m0    m1    m2    m3     m: of the tokens up to its own
        head keeps      g0    g1    g2    g3     g: what the head takes of the model's states
                        -    h1    h2    h3      h: of the g before it and its own token

    So h1 is of tokens 0 and 1, a bigram, in the slot of the later one: who shares a prefix of n
    tokens shares its n - 1 rows, and goes on from the g of its last token. A row of the last token
    that was drawn, and of those drafted after it, lies in scratch slots until they have their own.
    """

    def __init__(self, head: DraftHead, pool: KVPool, table: ReqToTokenPool) -> None:
        """pool: with a layer for the head."""
        self._head = head
        self._pool = pool.head_layer()
        self._table = table.table
        self._backend = make_backend(self._pool, head.n_heads, expansions=head.expansions)
        known = GrowingContexts.known(self._pool, head.n_heads)
        self._growing = GrowingContexts(self._pool, head.n_heads) if known else None
        rows, self._width = self._table.shape
        self._scratch = pool.capacity
        self._most = (self._pool.capacity - pool.capacity) // rows
        self._device = pool.device

    def step(
        self, batch: ScheduledBatch, slots: Tensor, drawn: Mapping[int, Sequence[int]]
    ) -> dict[int, tuple[int, ...]]:
        """Take in a step that was computed, and draft what comes after it, by place in the batch.

        slots: of the step's tokens. drawn: by place.
        """
        kept = self._pool.index_keys[0]
        kept.index_copy_(0, slots, self._head.given())
        known = [each for each in self._known(batch, drawn) if each.tokens]
        if not known:
            return {}
        sizes = [len(each.tokens) for each in known]
        before = [self._slots(each, each.first - 1, each.stop - 1) for each in known]
        own = [self._slots(each, each.first, each.stop) for each in known]
        places = np.concatenate([np.arange(each.first, each.stop) for each in known])
        spans = [(each.row.row, size, each.stop) for each, size in zip(known, sizes, strict=True)]
        states, normed = self._head.state(
            self._on_device(np.concatenate([each.tokens for each in known])),
            kept[self._on_device(np.concatenate(before))],
            self._on_device(places - 1),
            self._planned(spans, self._on_device(np.concatenate(own))),
        )
        lasts = np.cumsum(sizes) - 1
        most = max(each.ahead for each in known)
        asked = [
            (each, last)
            for each, last in zip(known, lasts, strict=True)
            # All draft as many; at the end of their context none.
            if each.ahead and each.stop + most <= self._width
        ]
        if not asked:
            return {}
        at = self._on_device(np.array([last for _, last in asked]))
        return self._drafts([each for each, _ in asked], states[at], normed[at])

    def _drafts(
        self, asked: Sequence[_Known], states: Tensor, normed: Tensor
    ) -> dict[int, tuple[int, ...]]:
        """states, normed: of the last token of each."""
        drafted = [self._head.likeliest(normed)]
        positions = self._on_device(np.array([each.stop - 1 for each in asked]))
        attends = self._attends(asked, max(each.ahead for each in asked) - 1)
        for attend in attends:
            states, normed = self._head.state(drafted[-1], states, positions, attend)
            drafted.append(self._head.likeliest(normed))
            positions += 1
        made = torch.stack(drafted, dim=1).tolist()
        return {
            each.place: tuple(tokens[: each.ahead])
            for each, tokens in zip(asked, made, strict=True)
        }

    def _attends(self, asked: Sequence[_Known], steps: int) -> Iterator[Attend]:
        """The attention of each further token that is drafted after these."""
        if steps < 1:
            return
        for each in asked:
            first = self._scratch_slot(each.row.row, 1)
            own = torch.arange(first, first + steps, dtype=torch.int32)
            self._table[each.row.row, each.stop : each.stop + steps] = own
        if self._growing is not None:
            contexts = [self._slots(each, 1, each.stop + steps) for each in asked]
            growing = self._growing.begin(contexts, steps)
            for _ in range(steps):
                yield growing.next()
            return
        for number in range(steps):
            spans = [(each.row.row, 1, each.stop + number + 1) for each in asked]
            slots = [self._scratch_slot(each.row.row, number + 1) for each in asked]
            yield self._planned(spans, self._on_device(np.array(slots)))

    def _planned(self, spans: Sequence[tuple[int, int, int]], slots: Tensor) -> Attend:
        """spans: table row, how many tokens, and where they end."""
        first, made = 0, []
        for row, count, end in spans:
            made.append(RowSpan(first, count, 1, end - 1, row, ()))
            first += count
        plan = AttentionPlan((), tuple(made), sum(span.context for span in made))
        return self._backend.prepare(plan, self._table, slots)

    def _known(self, batch: ScheduledBatch, drawn: Mapping[int, Sequence[int]]) -> Iterator[_Known]:
        for place, row in enumerate(batch.rows):
            its, first = drawn.get(place, ()), max(row.start, 1)
            stop = row.known + max(len(its) - 1, 0)
            tokens = row.tokens[first:stop].tolist()
            ahead = min(row.ahead, self._most, self._width - stop) if its else 0
            if ahead > 0:
                tokens.append(its[-1])
                self._table[row.row, stop] = self._scratch_slot(row.row, 0)
            yield _Known(place, row, first, tokens, max(ahead, 0))

    def _scratch_slot(self, row: int, number: int) -> int:
        return self._scratch + row * self._most + number

    def _slots(self, of: _Known, first: int, stop: int) -> np.ndarray:
        numbers: np.ndarray = self._table[of.row.row, first:stop].cpu().numpy()
        return numbers

    def _on_device(self, numbers: np.ndarray) -> Tensor:
        return torch.from_numpy(numbers.astype(np.int64)).to(self._device)
