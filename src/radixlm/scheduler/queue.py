"""All that wait: by priority, then tenants in turn, then each tenant's own line."""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort

from radixlm.scheduler.fairness import TokenFairness
from radixlm.scheduler.line import SLACK, Line
from radixlm.scheduler.orders import AdmissionOrder
from radixlm.scheduler.state import RequestState

Turn = tuple[int, int, str, Line]


class Level:
    """The lines of one priority. turns: (served, number of the line, tenant, line), the least
    served first, of equals the line that was opened first; what is noted there only grows, so it
    is put right when it comes up.
    """

    def __init__(self) -> None:
        self.lines: dict[str, Line] = {}
        self.turns: list[Turn] = []

    def forget_dead_turns(self) -> None:
        """Drop the turns of lines that are gone, when they are more than those of the others."""
        if len(self.turns) > 2 * len(self.lines) + SLACK:
            self.turns = [turn for turn in self.turns if self.lines.get(turn[2]) is turn[3]]
            heapq.heapify(self.turns)


class WaitingQueue:
    """Says who is next: the highest priority, there the tenant that was served least, there the
    head of its line. O(log n) per change.
    """

    def __init__(
        self, order: AdmissionOrder, fairness: TokenFairness, max_wait_admissions: int
    ) -> None:
        self._order = order
        self._fairness = fairness
        self._bound = max_wait_admissions
        self._levels: dict[int, Level] = {}
        self._priorities: list[int] = []
        self._lines_made = 0

    def push(self, state: RequestState) -> None:
        priority = self._priority(state)
        level = self._levels.get(priority)
        if level is None:
            level = self._levels[priority] = Level()
            insort(self._priorities, priority)
        tenant = state.request.tenant
        line = level.lines.get(tenant)
        if line is None:
            line = level.lines[tenant] = Line(self._order, self._bound)
            self._lines_made += 1
            turn = (self._fairness.served(tenant), self._lines_made, tenant, line)
            heapq.heappush(level.turns, turn)
            level.forget_dead_turns()
        line.push(state)

    def rank(self, state: RequestState) -> None:
        """A waiting request's rank has changed, or whether it follows another."""
        self._levels[self._priority(state)].lines[state.request.tenant].rank(state)

    def rank_all(self) -> None:
        """Every rank has changed."""
        for level in self._levels.values():
            for line in level.lines.values():
                line.rank_all()

    def remove(self, state: RequestState, *, admitted: bool) -> None:
        """A waiting request has been admitted, or is gone."""
        priority, tenant = self._priority(state), state.request.tenant
        level = self._levels[priority]
        line = level.lines[tenant]
        line.remove(state, admitted=admitted)
        if not line.size:
            del level.lines[tenant]
            if not level.lines:
                del self._levels[priority]
                del self._priorities[bisect_left(self._priorities, priority)]

    def head(self) -> RequestState | None:
        """Who is next; None when nobody waits, or all of them follow others."""
        for priority in reversed(self._priorities):
            state = self._head_of(self._levels[priority])
            if state is not None:
                return state
        return None

    def _head_of(self, level: Level) -> RequestState | None:
        passed: list[Turn] = []
        found: RequestState | None = None
        while level.turns and found is None:
            noted, number, tenant, line = level.turns[0]
            if level.lines.get(tenant) is not line:
                heapq.heappop(level.turns)
                continue
            served = self._fairness.served(tenant)
            if served != noted:
                heapq.heapreplace(level.turns, (served, number, tenant, line))
                continue
            found = line.head()
            if found is None:
                passed.append(heapq.heappop(level.turns))
        for turn in passed:
            heapq.heappush(level.turns, turn)
        return found

    def _priority(self, state: RequestState) -> int:
        return state.request.priority if self._order.by_priority else 0
