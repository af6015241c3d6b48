"""Drafts in a step: tokens that are computed along, and count if they are what is drawn."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterator, Sequence
from operator import attrgetter

from radixlm.core.batch import NewTokens, ScheduledBatch
from radixlm.core.clock import Clock, WallClock
from radixlm.core.keys import Slots
from radixlm.drafts.draft import Draft, DraftSource
from radixlm.drafts.prediction import SOURCE as PREDICTION
from radixlm.scheduler.draft_policy import DraftPolicy
from radixlm.scheduler.state import Counters, RequestState

# A namespace, all tokens that a request has in it, how many of them are new.
Wrote = Callable[[Hashable, Sequence[int], int], None]


class Drafting:
    """Gives requests that decode more rows of a step, for tokens that are only guessed:

        tokens of a row    ... t7 | t8 |  d0   d1   d2          t8: the last one that is known
        is drawn after it           d0   d1   x                 d2 is wrong
        new tokens                  d0   d1   x                 three in one step

    Each token is drawn from the same logits, by the same number of its position, as without a
    draft, so the answer is the same. Slots of drafts are lent by the lease: for none of them is
    anything evicted or retracted, and those of wrong ones are given back when the step is over. No
    commit reaches beyond what was drawn, so tree, tiers and watchers see nothing of a draft.

    Only steps in which all requests decode have drafts. Requests with a grammar have none: what is
    forced is taken as it is, and masks are of one token.

    sources: of these and a request's own prediction, the draft is taken of which most tokens are
    expected to be drawn. most: tokens of a draft. policy: how much of them is computed; without one
    all, of the longest match. wrote: hears of tokens that
    requests have now. short_length: see
    `Namespace.of_length`: no draft crosses it, since what comes after it is computed anew.
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
    ) -> None:
        self._sources = sources
        self._most = most
        self._policy = policy
        self._worth = attrgetter("matched") if policy is None else policy.expected
        self._short_length = short_length
        self.wrote = wrote
        self._clock = clock or WallClock()
        self._drafts: dict[RequestState, Draft] = {}
        self._left_out: dict[RequestState, Draft] = {}
        self._began: float | None = None

    def add(self, parts: dict[RequestState, Slots], budget: int) -> None:
        """Put drafts of at most `budget` tokens beside what is computed in a step."""
        self._drafts.clear()
        self._left_out.clear()
        self._began = None
        if not self._most or any(
            slots.size > 1 or not state.decodes for state, slots in parts.items()
        ):
            return
        for state, draft in self._chosen(parts, budget):
            draft = draft._replace(tokens=draft.tokens[:budget])
            if draft.tokens and (slots := self._lent(state, draft)) is not None:
                self._drafts[state] = draft
                parts[state] = slots
                budget -= len(draft.tokens)
        self._began = self._clock.now()

    def computed(self, batch: ScheduledBatch) -> None:
        """Learn what a step took that has been computed."""
        if self._began is not None and self._policy is not None and batch.rows:
            drafted = sum(row.drafted for row in batch.rows)
            seconds = self._clock.now() - self._began
            self._policy.costs.learn(len(batch.rows), drafted, seconds)

    def took(self, state: RequestState, new: Sequence[int]) -> None:
        """Learn of the tokens that a request has now, the last ones of all that it has; also by a
        draft that was left out, whose first one could have been right.
        """
        self.wrote(state.namespace, state.known.data, len(new))
        if new and self._policy is not None and (draft := self._left_out.pop(state, None)):
            first = draft._replace(tokens=draft.tokens[:1])
            self._policy.learn(first, int(first.tokens[0] == new[0]))

    def settle(
        self, state: RequestState, drawn: Sequence[int], new: NewTokens, counters: Counters
    ) -> int:
        """Take back what was wrong of a draft; returns how many of its tokens count. drawn: the
        tokens of its row, which have become `new`.
        """
        draft = self._drafts.pop(state)
        if self._policy is not None:
            self._policy.learn(draft, len(drawn) - 1)
        accepted = max(min(len(new.tokens), len(drawn)) - 1, 0)
        state.computed += accepted
        state.running_lease.shrink(state.computed)
        counters.verify(draft, accepted)
        if draft.source == PREDICTION:
            right, wrong = state.predicted
            state.predicted = right + accepted, wrong + len(draft.tokens) - accepted
        return accepted

    def _chosen(
        self, states: Collection[RequestState], budget: int
    ) -> Iterator[tuple[RequestState, Draft]]:
        """The drafts that there are for these, as much of each as pays."""
        policy, requests = self._policy, len(states)
        if policy is not None and not policy.may_pay(requests, self._most):
            return
        found = [(s, draft) for s in states if (draft := self._propose(s, budget)) is not None]
        if policy is None:
            yield from found
        else:
            counts = policy.choose([draft for _, draft in found], requests)
            for (state, draft), count in zip(found, counts, strict=True):
                if not count:
                    self._left_out[state] = draft
                yield state, draft._replace(tokens=draft.tokens[:count])

    def _propose(self, state: RequestState, budget: int) -> Draft | None:
        most = min(self._most, state.room - 1, budget)
        if self._short_length is not None and state.n_tokens <= self._short_length:
            most = min(most, self._short_length - state.n_tokens)
        if most < 1 or state.pending > 1 or state.request.constraint is not None:
            return None
        asked = state.namespace, state.known.data, most
        sources = [*([state.prediction] if state.prediction else ()), *self._sources]
        made = [each.propose(*asked) for each in sources]
        return max(filter(None, made), key=self._worth, default=None)

    def _lent(self, state: RequestState, draft: Draft) -> Slots | None:
        """Slots of its next token and its draft, where there is room for all."""
        lease, end = state.running_lease, state.n_tokens
        if lease.extend(len(draft.tokens), lent=True) is None:
            return None
        state.tokens[end : end + len(draft.tokens)] = draft.tokens
        return lease.slots[state.computed :]
