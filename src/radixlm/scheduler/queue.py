"""The waiting requests of one tenant and one priority, and which of them is next."""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort
from collections import deque

from radixlm.scheduler.fairness import TokenFairness
from radixlm.scheduler.orders import AdmissionOrder
from radixlm.scheduler.state import RequestState

# Dead entries that a heap or a queue may hold beside twice as many as are alive.
SLACK = 64


class TenantQueue:
    """Who is next: first those who were retracted, by arrival; then one who waited too long; then
    the first by the policy's order.

    No request waits for more than `bound` admissions of younger ones. Proof sketch: let W be the
    one that has waited longest among those who never ran. Whoever was admitted and is younger
    than W arrived after W, so it was admitted while W waited: counting the admissions of all who
    are younger counts W's. Any other V that waits is younger than W, and whoever is younger than
    V is younger than W, so V's count is no larger: looking at W alone suffices. Once it reaches
    the bound, only W or older ones are next until W goes. One who was retracted is next before
    all who are younger, so its count stays at 0.

    One who follows another (see InFlight) is next only in its turn: then nobody is, for a few
    steps. Entries that have died are dropped when they come up. O(log n) per change.
    """

    def __init__(self, order: AdmissionOrder, bound: int) -> None:
        self.size = 0
        self._order = order
        self._bound = bound
        self._ranked: list[tuple[float, int, int, RequestState]] = []
        self._fresh: deque[RequestState] = deque()
        self._returned: list[tuple[int, int, RequestState]] = []
        self._overtakers: list[int] = []

    def push(self, state: RequestState) -> None:
        """A request arrives, or comes back when `state.returned`."""
        self.size += 1
        state.waits = True
        if state.returned:
            state.stamp += 1
            heapq.heappush(self._returned, (state.arrival, state.stamp, state))
            if len(self._returned) > 2 * self.size + SLACK:
                alive = {entry[-1]: entry for entry in self._returned if _has_returned(entry)}
                self._returned = list(alive.values())
                heapq.heapify(self._returned)
            return
        self._fresh.append(state)
        self.rank(state)

    def rank(self, state: RequestState) -> None:
        """Put a request where it belongs now: its rank has changed, or whether it follows."""
        state.stamp += 1
        if state.returned or state.follows is not None:
            return
        entry = (self._order.rank(state), state.arrival, state.stamp, state)
        heapq.heappush(self._ranked, entry)
        if len(self._ranked) > 2 * self.size + SLACK:
            self._ranked = [entry for entry in self._ranked if _is_alive(entry)]
            heapq.heapify(self._ranked)

    def rank_all(self) -> None:
        """Every rank has changed."""
        states = [entry[-1] for entry in self._ranked if _is_alive(entry)]
        self._ranked = [(self._order.rank(s), s.arrival, s.stamp, s) for s in states]
        heapq.heapify(self._ranked)

    def remove(self, state: RequestState, *, admitted: bool) -> None:
        """A request has been admitted, or is gone."""
        self.size -= 1
        state.waits = False
        state.stamp += 1
        oldest = self._oldest()
        if admitted and oldest is not None and oldest.arrival < state.arrival:
            heapq.heappush(self._overtakers, state.arrival)
        if len(self._fresh) > 2 * self.size + SLACK:
            self._fresh = deque(state for state in self._fresh if _is_fresh(state))

    def head(self) -> RequestState | None:
        """Who is next; None when all that wait, or the one whose turn it is, follow another."""
        first = self._first_in_turn()
        if first is not None:
            return None if first.follows is not None else first
        while self._ranked and not _is_alive(self._ranked[0]):
            heapq.heappop(self._ranked)
        return self._ranked[0][-1] if self._ranked else None

    def _first_in_turn(self) -> RequestState | None:
        """The older one of who came back first and who was overtaken too often."""
        while self._returned and not _has_returned(self._returned[0]):
            heapq.heappop(self._returned)
        returned = self._returned[0][-1] if self._returned else None
        oldest = self._oldest()
        if oldest is None:
            return returned
        while self._overtakers and self._overtakers[0] < oldest.arrival:
            heapq.heappop(self._overtakers)
        if len(self._overtakers) < self._bound:
            return returned
        return oldest if returned is None or oldest.arrival < returned.arrival else returned

    def _oldest(self) -> RequestState | None:
        """The one that has waited longest of those who never ran."""
        while self._fresh and not _is_fresh(self._fresh[0]):
            self._fresh.popleft()
        return self._fresh[0] if self._fresh else None


def _is_alive(entry: tuple[float, int, int, RequestState]) -> bool:
    return entry[2] == entry[3].stamp


def _has_returned(entry: tuple[int, int, RequestState]) -> bool:
    state = entry[2]
    return state.waits and state.returned


def _is_fresh(state: RequestState) -> bool:
    return state.waits and not state.returned


Turn = tuple[int, int, str, TenantQueue]


class PriorityLevel:
    """The lines of one priority. turns: (served, number of the line, tenant, line), the least
    served first, of equals the line that was opened first; what is noted there only grows, so it
    is put right when it comes up.
    """

    def __init__(self) -> None:
        self.lines: dict[str, TenantQueue] = {}
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
        self._levels: dict[int, PriorityLevel] = {}
        self._priorities: list[int] = []
        self._lines_made = 0

    def push(self, state: RequestState) -> None:
        priority = self._priority(state)
        level = self._levels.get(priority)
        if level is None:
            level = self._levels[priority] = PriorityLevel()
            insort(self._priorities, priority)
        tenant = state.request.tenant
        line = level.lines.get(tenant)
        if line is None:
            line = level.lines[tenant] = TenantQueue(self._order, self._bound)
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

    def _head_of(self, level: PriorityLevel) -> RequestState | None:
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
