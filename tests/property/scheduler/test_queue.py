"""Hypothesis against the waiting queue: who is next, compared with a list that is searched."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from radixlm.scheduler import make_order
from radixlm.scheduler.fairness import TokenFairness
from radixlm.scheduler.prompt_index import PromptIndex
from radixlm.scheduler.queue import WaitingQueue
from radixlm.scheduler.state import RequestState
from tests.engines import ORDERS, make_request

WHICH = st.integers(0, 99)


class QueueMachine(RuleBasedStateMachine):
    """The model: every waiting request, and for each the admissions of younger ones of its line
    since it began to wait.
    """

    @initialize(order=st.sampled_from(ORDERS), bound=st.integers(1, 4))
    def start(self, order: str, bound: int) -> None:
        self.order = make_order(order, seed=3)  # type: ignore[arg-type]
        self.bound = bound
        self.fairness = TokenFairness()
        self.queue = WaitingQueue(self.order, self.fairness, bound)
        self.index = PromptIndex(1)
        self.waiting: list[RequestState] = []
        self.running: list[RequestState] = []
        self.overtaken: Counter[int] = Counter()
        self.opened: dict[tuple[int, str], int] = {}
        self.arrivals = 0

    @rule(
        prompt=st.lists(st.integers(0, 1), min_size=1, max_size=5),
        max_tokens=st.integers(1, 5),
        priority=st.sampled_from([0, 0, 1]),
        tenant=st.sampled_from(["a", "a", "a", "b"]),
    )
    def push(self, prompt: list[int], max_tokens: int, priority: int, tenant: str) -> None:
        self.arrivals += 1
        name = f"r{self.arrivals}"
        request = make_request(name, prompt, max_tokens, priority=priority, tenant=tenant)
        state = RequestState(request, self.arrivals)
        state.cached = max_tokens % len(prompt)
        self.fairness.enter(tenant)
        self.index.add(state)
        self._wait(state)

    @precondition(lambda self: self.waiting)
    @rule(which=WHICH)
    def abort(self, which: int) -> None:
        state = self.waiting.pop(which % len(self.waiting))
        self.queue.remove(state, admitted=False)
        self.index.remove(state)
        self.fairness.leave(state.request.tenant)

    @precondition(lambda self: self.waiting)
    @rule()
    def admit(self) -> None:
        state = self.queue.head()
        assert state is self._wanted()
        if state is None:
            return
        self.waiting.remove(state)
        self.queue.remove(state, admitted=True)
        self.index.remove(state)
        self.fairness.charge(state.request.tenant, state.n_tokens)
        self.fairness.admit(state.request.tenant)
        self.running.append(state)
        for other in self.waiting:
            if self._line(other) == self._line(state) and other.arrival < state.arrival:
                self.overtaken[other.arrival] += 1

    @precondition(lambda self: self.running)
    @rule(which=WHICH)
    def retract(self, which: int) -> None:
        state = self.running.pop(which % len(self.running))
        state.returned = True
        self.index.add(state)
        self._wait(state)

    @precondition(lambda self: self.running)
    @rule(which=WHICH, ends=st.booleans())
    def decode_or_end(self, which: int, ends: bool) -> None:
        state = self.running[which % len(self.running)]
        self.fairness.charge(state.request.tenant, 1)
        if ends:
            self.running.remove(state)
            self.fairness.leave(state.request.tenant)

    @precondition(lambda self: self.waiting and self.running)
    @rule(which=WHICH)
    def follow(self, which: int) -> None:
        state = self.waiting[which % len(self.waiting)]
        state.follows = self.running[0]
        self.queue.rank(state)

    @precondition(lambda self: self.waiting)
    @rule(which=WHICH, cached=st.integers(0, 5))
    def let_go(self, which: int, cached: int) -> None:
        """It does not follow any more, and more or less of it is cached."""
        state = self.waiting[which % len(self.waiting)]
        state.follows = None
        state.cached = cached
        self.queue.rank(state)

    @rule()
    def lay_out(self) -> None:
        if self.order.lay_out(self.index):
            self.queue.rank_all()

    @invariant()
    def the_right_one_is_next(self) -> None:
        assert self.queue.head() is self._wanted()

    @invariant()
    def nobody_is_overtaken_more_often_than_the_bound(self) -> None:
        for state in self.waiting:
            assert self.overtaken[state.arrival] <= self.bound
            if state.returned:
                assert self.overtaken[state.arrival] == 0

    def _wait(self, state: RequestState) -> None:
        self.overtaken[state.arrival] = 0
        line = self._line(state)
        if all(self._line(other) != line for other in self.waiting):
            self.opened[line] = 1 + max(self.opened.values(), default=0)
        self.waiting.append(state)
        self.queue.push(state)

    def _line(self, state: RequestState) -> tuple[int, str]:
        priority = state.request.priority if self.order.by_priority else 0
        return -priority, state.request.tenant

    def _wanted(self) -> RequestState | None:
        """The highest priority, there the least served tenant: the first line that has a head."""
        lines = {self._line(state) for state in self.waiting}
        in_turn = sorted(
            lines,
            key=lambda line: (line[0], self.fairness.served(line[1]), self.opened[line]),
        )
        heads = (self._head([s for s in self.waiting if self._line(s) == line]) for line in in_turn)
        return next((head for head in heads if head is not None), None)

    def _head(self, line: list[RequestState]) -> RequestState | None:
        by_arrival = sorted(line, key=lambda state: state.arrival)
        returned = [state for state in by_arrival if state.returned]
        aged = [state for state in by_arrival if self.overtaken[state.arrival] >= self.bound]
        in_turn = sorted([*returned[:1], *aged[:1]], key=lambda state: state.arrival)
        if in_turn:
            return in_turn[0] if in_turn[0].follows is None else None
        free = [state for state in by_arrival if state.follows is None]
        return min(free, key=lambda s: (self.order.rank(s), s.arrival), default=None)


TestQueue = QueueMachine.TestCase
TestQueue.settings = settings(max_examples=40, stateful_step_count=50, deadline=None)


@pytest.mark.slow
class TestQueueAtLength(TestQueue):  # type: ignore[misc,valid-type]
    settings = settings(TestQueue.settings, max_examples=120)
