"""Drafts of a head: what it keeps of each token, and what it proposes after a step."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, compress
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
from radixlm.memory.staging import Sending, ranges
from radixlm.models.draft_head import DraftHead


class _Known(NamedTuple):
    """A row whose tokens [first, stop) are known now, `tokens`, of which the head has no rows yet.
    slots: theirs, the last one scratch if any are to be drafted after them: `ahead`.
    """

    place: int
    row: ScheduledRow
    first: int
    tokens: list[int]
    slots: list[int]
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

    On a GPU all numbers are one copy more, and what is drafted is one more that is waited for: what
    was drawn has to be known before.
    """

    def __init__(
        self, head: DraftHead, pool: KVPool, table: ReqToTokenPool, sending: Sending
    ) -> None:
        """pool: with a layer for the head. sending: of steps."""
        self._head, self._sending = head, sending
        self._pool = pool.head_layer()
        self._table, self._list = table.table, table.send
        self._backend = make_backend(self._pool, head.n_heads, expansions=head.expansions)
        known = GrowingContexts.known(self._pool, head.n_heads)
        self._growing = GrowingContexts(self._pool, head.n_heads) if known else None
        rows, self._width = self._table.shape
        self._scratch = pool.capacity
        self._most = (self._pool.capacity - pool.capacity) // rows

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
        sizes, put = [len(each.tokens) for each in known], self._sending.put
        most = max(each.ahead for each in known)
        # All draft as many; at the end of their context none.
        drafts = [each.ahead > 0 and each.stop + most <= self._width for each in known]
        asked = [*compress(known, drafts)]
        if most:
            self._lend([each for each in known if each.ahead], most)
        spans = [(each.row.row, size, each.stop) for each, size in zip(known, sizes, strict=True)]
        attend = self._planned(spans, chain.from_iterable(each.slots for each in known))
        tokens = put(np.array([*chain.from_iterable(each.tokens for each in known)]))
        positions = put(ranges([each.first - 1 for each in known], sizes))
        before = put(ranges([self._place(each, each.first - 1) for each in known], sizes))
        at = put(np.cumsum(sizes)[drafts] - 1)
        attends = self._attends(asked, most - 1) if asked else ()
        self._sending.send()
        given = kept[self._table.view(-1)[before]]
        states, normed = self._head.state(tokens, given, positions, attend)
        if not asked:
            return {}
        return self._drafts(asked, states[at], normed[at], positions[at], attends)

    def _drafts(
        self,
        asked: Sequence[_Known],
        states: Tensor,
        normed: Tensor,
        positions: Tensor,
        attends: Iterable[Attend],
    ) -> dict[int, tuple[int, ...]]:
        """states, normed, positions: of the last token of each; positions is written. attends: of
        further ones.
        """
        drafted = [self._head.likeliest(normed)]
        for attend in attends:
            positions += 1
            states, normed = self._head.state(drafted[-1], states, positions, attend)
            drafted.append(self._head.likeliest(normed))
        made = self._sending.fetch(torch.stack(drafted, dim=1))().tolist()
        return {
            each.place: tuple(tokens[: each.ahead])
            for each, tokens in zip(asked, made, strict=True)
        }

    def _lend(self, ahead: Sequence[_Known], most: int) -> None:
        """Have the table list scratch slots for the last token of each and what is drafted."""
        counts = [min(most, self._width + 1 - each.stop) for each in ahead]
        places = ranges([self._place(each, each.stop - 1) for each in ahead], counts)
        slots = ranges([each.slots[-1] for each in ahead], counts).astype(np.int32)
        self._list(places, slots, self._sending)

    def _attends(self, asked: Sequence[_Known], steps: int) -> Iterable[Attend]:
        """The attention of each further token that is drafted after these."""
        if self._growing is not None and steps:
            numbers = self._table.numpy()
            contexts = [numbers[each.row.row, 1 : each.stop + steps] for each in asked]
            growing = self._growing.begin(contexts, steps)
            return (growing.next() for _ in range(steps))
        return [
            self._planned(
                [(each.row.row, 1, each.stop + number) for each in asked],
                [each.slots[-1] + number for each in asked],
            )
            for number in range(1, steps + 1)
        ]

    def _planned(self, spans: Sequence[tuple[int, int, int]], slots: Iterable[int]) -> Attend:
        """spans: table row, how many tokens, and where they end."""
        first, made = 0, []
        for row, count, end in spans:
            made.append(RowSpan(first, count, 1, end - 1, row, ()))
            first += count
        plan = AttentionPlan((), tuple(made), sum(span.context for span in made))
        own = self._sending.put(np.array([*slots], dtype=np.int64))
        return self._backend.prepare(plan, self._table, own, self._sending)

    def _known(self, batch: ScheduledBatch, drawn: Mapping[int, Sequence[int]]) -> Iterator[_Known]:
        for place, row in enumerate(batch.rows):
            its, first = drawn.get(place, ()), max(row.start, 1)
            stop = row.known + max(len(its) - 1, 0)
            tokens = row.tokens[first:stop].tolist()
            slots = row.new_slots[first - row.start : stop - row.start].tolist()
            ahead = min(row.ahead, self._most, self._width - stop) if its else 0
            if ahead > 0:
                tokens.append(its[-1])
                slots.append(self._scratch + row.row * self._most)
            yield _Known(place, row, first, tokens, slots, max(ahead, 0))

    def _place(self, of: _Known, token: int) -> int:
        """The place of a row's token in the table, whose rows follow each other."""
        return of.row.row * self._width + token
