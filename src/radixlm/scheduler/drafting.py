"""Drafts in a step: tokens that are computed along, and count if they are what is drawn."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Protocol

from radixlm.core.batch import NewTokens, ScheduledBatch, ScheduledRow
from radixlm.core.clock import Clock, WallClock
from radixlm.core.keys import Slots
from radixlm.drafts.acceptance import Acceptance
from radixlm.drafts.draft import Draft, DraftSource, in_common
from radixlm.drafts.head import AS_SURE, DraftedAhead
from radixlm.scheduler.draft_policy import DraftPolicy
from radixlm.scheduler.siblings import take_sibling, with_sibling
from radixlm.scheduler.state import Counters, RequestState, counted, scheduled_row

GRAMMAR = "grammar"
# Drafted tokens of a step, which all have logits: 4 bytes x vocabulary each.
MOST_IN_STEP = 256
# Steps between drafts of a head that are not computed, to be compared.
_COMPARED = 64
# A namespace, all tokens that a request has in it, how many of them are new.
Wrote = Callable[[Hashable, Sequence[int], int], None]


class Guide(Protocol):
    """A request's place in its grammar."""

    def along(self, draft: Sequence[int], /) -> list[int]:
        """The part of a draft that is allowed, and what must come after that; of none, what must
        come next.
        """


Guides = Mapping[str, Guide]
NO_GUIDES: Guides = MappingProxyType({})


class Drafting:
    """Gives requests that decode more rows of a step, for tokens that are only guessed:

        tokens of a row    ... t7 | t8 |  d0   d1   d2          t8: the last one that is known
        is drawn after it           d0   d1   x                 d2 is wrong
        new tokens                  d0   d1   x                 three in one step

    Each token is drawn from the same logits, by the same number of its position, as without a
    draft, so the answer is the same. Slots of drafts are lent by the lease: for none of them is
    anything evicted or retracted, and those of wrong ones are given back when the step is over. No
    commit reaches beyond what was drawn, so tree, tiers and watchers see nothing of a draft.

    Only steps in which all requests decode have drafts. What a grammar forces is in any step, and
    is not lent: no other tokens are allowed. Other drafts go along a grammar as far as it allows.

    sources: of these and a request's own prediction, the draft is taken of which most tokens are
    expected to be drawn. most: tokens of a draft. policy: how much of them is computed; without one
    all. wrote: hears of tokens that requests have now. short_length: see
    `Namespace.of_length`: no draft crosses it, since what comes after it is computed anew. head:
    the source whose drafts the runner makes, after a step for the next one; empty: there is none.
    sibling_rows: of the request table, for drafts' siblings, one each.
    """

    def __init__(
        self,
        sources: Sequence[DraftSource],
        most: int,
        policy: DraftPolicy | None = None,
        *,
        wrote: Wrote = lambda *_: None,
        short_length: int | None = None,
        clock: Clock | None = None,
        head: str = "",
        sibling_rows: Sequence[int] = (),
    ) -> None:
        self._head = head
        self._ahead = self._unasked = 0
        self._asked: Collection[RequestState] = ()
        self._sources = sources
        self._most = most
        self._policy = policy
        self._worth = (Acceptance() if policy is None else policy).expected
        self._short_length = short_length
        self.wrote = wrote
        self._clock = clock or WallClock()
        self._sibling_rows, self._rows_left = sibling_rows, [*sibling_rows]
        self._drafts: dict[RequestState, Draft] = {}
        self._proposed: dict[RequestState, Draft] = {}
        self._left_out: dict[RequestState, Draft] = {}
        self._guides = NO_GUIDES
        self._left = 0
        self._began: float | None = None

    def begin(self, guides: Guides) -> None:
        """Begin a plan of a step. guides: of the requests that have one, by name."""
        self._guides = guides
        self._left = MOST_IN_STEP
        self._rows_left = [*self._sibling_rows]
        self._proposed.clear()
        self._drafts.clear()
        self._left_out.clear()
        self._began = None
        for state in self._asked:
            state.ahead = 0
        self._ahead, self._asked = 0, ()

    def force(self, state: RequestState, budget: int) -> int:
        """Put what its grammar forces behind a request's last token; returns how many tokens."""
        if not self._guides or (guide := self._guides.get(state.request.request_id)) is None:
            return 0
        most = min(self._room(state), budget, self._left)
        if most < 1 or not (tokens := guide.along(())[:most]):
            return 0
        self._left -= len(tokens)
        self._put(state, Draft(tuple(tokens), GRAMMAR, 0))
        return len(tokens)

    def add(self, parts: dict[RequestState, Slots], budget: int) -> None:
        """Put drafts of at most `budget` tokens beside what is computed in a step."""
        budget = min(budget, self._left)
        if not self._most or any(
            not state.decodes or (slots.size > 1 and state not in self._drafts)
            for state, slots in parts.items()
        ):
            return
        rests = not self._head and self._policy is not None and self._policy.rests()
        siblings = len(self._rows_left)
        for state, draft in () if rests else self._chosen(parts, budget):
            own = min(len(draft.tokens), budget)
            draft = draft.cut(own, budget - own if siblings else 0)
            if draft.tokens and (slots := self._lent(state, draft)) is not None:
                parts[state] = slots
                lent = self._drafts[state]
                budget -= lent.size
                siblings -= lent.sibling is not None
        if self._head and parts:
            self._ahead, self._asked = self._wanted_of_head(len(parts)), [*parts]
        for state in self._asked:
            state.ahead = self._ahead if state.guesses else 0
        self._began = self._clock.now()

    def idle(self, rows: Sequence[ScheduledRow]) -> bool:
        """Whether these have no drafts, and neither will the next step of as many requests, nor is
        it to be measured without.
        """
        if any(row.n_draws > 1 or row.ahead for row in rows):
            return False
        policy, count = self._policy, len(rows)
        return not self._most or (
            policy is not None
            and not self._head
            and bool(policy.costs.of(count, 0))
            and not policy.may_pay(count, self._most_of(count))
        )

    def computed(self, batch: ScheduledBatch) -> None:
        """Learn what a step took that has been computed, where that was measured: of one that the
        next was launched behind it is not.
        """
        if self._policy is None or not batch.rows:
            return
        self._policy.costs.age()
        if self._began is not None:
            drafted = sum(row.n_draws - 1 for row in batch.rows)
            seconds = self._clock.now() - self._began
            if self._head and (drafted > 0) != (self._ahead > 0):
                return  # drafts begin, or end: no step is like that one again
            self._policy.costs.learn(len(batch.rows), drafted, seconds)

    def took(self, state: RequestState, new: Sequence[int]) -> None:
        """Learn of the tokens that a request has now, the last ones of all that it has; also by a
        draft that was left out, whose first one could have been right.
        """
        self.wrote(state.namespace, state.known.data, len(new))
        if new and self._policy is not None and (draft := self._left_out.pop(state, None)):
            first = draft.cut(1, 0)
            self._policy.learn(first, int(first.tokens[0] == new[0]))

    def heard(self, state: RequestState, tokens: tuple[int, ...], after: int) -> None:
        """Keep what a head drafted after a number of tokens of a request, for its next step."""
        state.drafted = DraftedAhead(self._head, after, tokens) if tokens else None

    def spoiled(self, state: RequestState) -> bool:
        """Whether numbers of its row that are not finite may be its draft's. It goes on from before
        this step then, and guesses no more.
        """
        draft = self._drafts.get(state)
        if draft is None or draft.source == GRAMMAR:
            return False
        state.guesses = False
        state.running_lease.shrink(state.computed)
        return True

    def settle(
        self, state: RequestState, drawn: Sequence[int], new: NewTokens, counters: Counters
    ) -> int:
        """Take back what was wrong of a draft; returns how many of its tokens count. drawn: the
        tokens of its row, which have become `new`.
        """
        draft = self._drafts.pop(state)
        if self._policy is not None and draft.source != GRAMMAR:
            self._policy.verify(draft, self._proposed.get(state, draft), drawn)
        accepted = max(min(len(new.tokens), len(drawn)) - 1, 0)
        if draft.sibling is not None and in_common(draft.tokens, drawn) < accepted:
            take_sibling(state, draft, accepted)
        state.computed += accepted
        state.running_lease.shrink(state.computed)
        counters.verify(draft, accepted)
        state.drafts = counted(state.drafts, draft, accepted)
        return accepted

    def row_of(self, state: RequestState, slots: Slots) -> ScheduledRow:
        """The row of a running request in a step: compute the next tokens into `slots`."""
        row, draft = scheduled_row(state, slots), self._drafts.get(state)
        if draft is None or draft.sibling is None:
            return row
        return with_sibling(row, state, draft.sibling, self._rows_left.pop())

    def _wanted_of_head(self, requests: int) -> int:
        """How many tokens a head is to draft for each request, as many as would pay in a step.
        While none do, one is drafted from time to time, to be compared.
        """
        most = min(self._most, self._left // requests)
        if self._policy is None:
            return most
        each = Draft((0,) * most, self._head, AS_SURE)
        pays = most > 0 and self._policy.may_pay(requests, requests * most)
        wanted = max(self._policy.choose([each] * requests, requests)) if pays else 0
        self._unasked = 0 if wanted else self._unasked + 1
        return wanted or int(most > 0 and not self._unasked % _COMPARED)

    def _chosen(
        self, states: Collection[RequestState], budget: int
    ) -> Iterator[tuple[RequestState, Draft]]:
        """The drafts that there are for these, as much of each as pays."""
        policy, requests = self._policy, len(states)
        if policy is not None and not policy.may_pay(requests, self._most_of(requests)):
            return
        asked = (s for s in states if s not in self._drafts)
        found = [(s, draft) for s in asked if (draft := self._propose(s, budget)) is not None]
        if policy is None:
            yield from found
        else:
            chosen = policy.cut([draft for _, draft in found], requests)
            for (state, draft), its in zip(found, chosen, strict=True):
                if not its.tokens:
                    self._left_out[state] = draft
                self._proposed[state] = draft
                yield state, its

    def _most_of(self, requests: int) -> int:
        """The most tokens that are drafted for these in a step."""
        return min(requests * self._most, MOST_IN_STEP)

    def _propose(self, state: RequestState, budget: int) -> Draft | None:
        most = min(self._most, self._room(state), budget)
        if most < 1 or not state.guesses:
            return None
        asked = state.namespace, state.known.data, most
        sources = state.prediction, state.drafted, *self._sources
        made = [None if each is None else each.propose(*asked) for each in sources]
        draft = _credited(max(filter(None, made), key=self._worth, default=None), made[0])
        guide = self._guides.get(state.request.request_id)
        if draft is None or guide is None:
            return draft
        tokens = guide.along(draft.tokens)[:most]
        return Draft(tuple(tokens), draft.source, draft.matched) if tokens else None

    def _room(self, state: RequestState) -> int:
        """The most tokens that a draft of it may have."""
        if state.pending > 1:
            return 0
        most = state.room - 1
        if self._short_length is not None and state.n_tokens <= self._short_length:
            most = min(most, self._short_length - state.n_tokens)
        return most

    def _lent(self, state: RequestState, draft: Draft) -> Slots | None:
        """Slots of its next token and its draft, where there is room for all; of states, for those
        of some, which it then has.
        """
        lease = state.running_lease
        count = lease.spare(len(draft.tokens))
        draft = draft._replace(tokens=draft.tokens[:count])
        if not count or lease.extend(draft.size, lent=True) is None:
            lease.spare(0)
            return None
        self._put(state, draft)
        return lease.slots[state.computed : state.n_tokens + len(draft.tokens)]

    def _put(self, state: RequestState, draft: Draft) -> None:
        self._drafts[state] = draft
        state.tokens[state.n_tokens : state.n_tokens + len(draft.tokens)] = draft.tokens


def _credited(draft: Draft | None, predicted: Draft | None) -> Draft | None:
    """A draft that a client's prediction says, too, is the prediction's, as far as that reaches:
    usage tells the client.
    """
    if draft is None or predicted is None:
        return draft
    both = min(len(draft.tokens), len(predicted.tokens))
    if in_common(draft.tokens, predicted.tokens) < both:
        return draft
    return draft.cut(len(predicted.tokens), 0)._replace(source=predicted.source)
