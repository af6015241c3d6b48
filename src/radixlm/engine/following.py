"""Answers that follow grammars: their masks, and whose turn it is where these take long."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from radixlm.constraints import MaskFiller, Matcher
from radixlm.core.batch import ScheduledBatch, TokenMasks
from radixlm.engine.continuation import Continuation
from radixlm.scheduler.state import RequestState

# What a step may take, in seconds, for grammars that take long, and what is long for one answer.
BUDGET = 0.02
LONG = 0.002


class Following:
    """Those who follow a grammar that takes long wait for each other, so that nobody else waits for
    all of them. A step goes on with those that moved longest ago, as many as the budget has room
    for by what their grammars took of late, but one at least.
    """

    def __init__(self, masks: MaskFiller | None, answers: Mapping[str, Continuation]) -> None:
        self._masks = masks
        self._answers = answers

    def held(self, running: Iterable[RequestState]) -> frozenset[str]:
        """Whose turn it is not."""
        slow = []
        for state in running:
            name = state.request.request_id
            seconds = self._seconds(self._answers[name].matcher) if state.decodes else 0.0
            if seconds >= LONG:
                slow.append((state.moved, state.arrival, name, seconds))
        held = []
        left = BUDGET
        for _, _, name, seconds in sorted(slow):
            if left <= 0:
                held.append(name)
            left -= seconds
        return frozenset(held)

    def with_masks(self, batch: ScheduledBatch) -> ScheduledBatch:
        """The same, with masks under way for the rows that sample and follow a grammar."""
        matchers = {
            place: matcher
            for place, row in enumerate(batch.rows)
            if row.samples and (matcher := self._answers[row.request.request_id].matcher)
        }
        if self._masks is None or not matchers:
            return batch
        bits = self._masks.start(list(matchers.values()))
        return replace(batch, masks=TokenMasks(tuple(matchers), bits))

    @staticmethod
    def _seconds(matcher: Matcher | None) -> float:
        return 0.0 if matcher is None else matcher.weight.seconds
