"""The orders of admission; the waiting requests by priority, tenant and order, and who is next."""

from __future__ import annotations

import math
import random
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from heapq import heapify, heappop, heappush
from typing import Any, Generic, TypeVar

from radixlm.core.config import SchedulePolicy
from radixlm.core.errors import ConfigError
from radixlm.core.request import GenerateRequest
from radixlm.scheduler.fairness import TokenFairness
from radixlm.scheduler.prompt_index import PromptIndex
from radixlm.scheduler.state import RequestState

# Dead entries that a heap or a queue may hold beside twice as many as are alive.
SLACK = 64
T = TypeVar("T", bound=tuple[Any, ...])


class AdmissionOrder:
    """Ranks waiting requests; equal ranks go by arrival.

    rank: the lowest goes first; asked again when `state.cached` has changed.
    by_priority: whether a request of higher priority goes first, unless it follows another, and
    may take the place of a running one.
    """

    def __init__(self, rank: Callable[[RequestState], float], *, by_priority: bool = False) -> None:
        self.rank = rank
        self.by_priority = by_priority

    def lay_out(self, index: PromptIndex) -> bool:  # noqa: ARG002
        """Walk all waiting prompts, where an order needs that; whether ranks have changed."""
        return False


# The simple ones. What is cached is used before it is evicted (lpm), the mean time to the first
# token is the shortest (shortest-prefill-first), among equal priorities it is as with lpm.
_RANKS: Mapping[str, Callable[[RequestState], float]] = {
    "fcfs": lambda _: 0,
    "lpm": lambda state: -state.cached,
    "lof": lambda state: -state.room,
    "shortest-prefill-first": lambda state: state.n_tokens - state.cached,
    "priority": lambda state: -state.cached,
}


class HeaviestSubtreeFirst(AdmissionOrder):
    """Depth first through the waiting prompts, the most shared branch first. The walk is done anew
    when a quarter of what waits is new, so that it costs each a constant; newcomers go last.
    """

    def __init__(self) -> None:
        super().__init__(lambda state: self._places.get(state.arrival, math.inf))
        self._places: dict[int, int] = {}
        self._arrivals = 0

    def lay_out(self, index: PromptIndex) -> bool:
        if 4 * (index.arrivals - self._arrivals) <= len(index):
            return False
        self._arrivals = index.arrivals
        walk = enumerate(index.heaviest_first())
        self._places = {state.arrival: place for place, state in walk}
        return True


def make_order(policy: SchedulePolicy, seed: int = 0) -> AdmissionOrder:
    """The order of that name. seed: for `random`. Raises ConfigError."""
    if policy == "dfs-weight":
        return HeaviestSubtreeFirst()
    if policy == "random":  # the same lots for the same seed and order of arrival
        return AdmissionOrder(lambda state: random.Random(seed << 64 | state.arrival).random())  # noqa: S311
    if policy in _RANKS:
        return AdmissionOrder(_RANKS[policy], by_priority=policy == "priority")
    raise ConfigError(f"unknown --schedule-policy {policy!r}")


def depth_first(requests: Iterable[GenerateRequest]) -> list[GenerateRequest]:
    """A batch that is known as a whole, in depth-first order of the tree of its prompts.

    Requests that share a prefix are neighbours at every depth, so each prefix is computed once as
    long as the pool holds the longest path (SGLang, arXiv 2312.07104, theorem 3.1). Sorting the
    keys' bytes is such an order: whatever begins alike stands together.
    """
    return sorted(requests, key=lambda request: (request.namespace, request.key.tobytes()))


class LazyHeap(Generic[T]):
    """A heap whose entries die in place, dropped as they come up or are most. O(log n) a change."""

    def __init__(self, is_alive: Callable[[T], bool]) -> None:
        self._is_alive = is_alive
        self._entries: list[T] = []

    def __len__(self) -> int:
        """Entries, dead ones included."""
        return len(self._entries)

    def push(self, entry: T, n_alive: int) -> None:
        """n_alive: how many entries can be alive."""
        heappush(self._entries, entry)
        if len(self._entries) > 2 * n_alive + SLACK:
            self.rebuild(self.alive())

    def first(self) -> T | None:
        """The smallest entry that is alive."""
        while self._entries and not self._is_alive(self._entries[0]):
            heappop(self._entries)
        return self._entries[0] if self._entries else None

    def pop(self) -> T:
        """Take out what `first` found."""
        return heappop(self._entries)

    def alive(self) -> list[T]:
        return [entry for entry in self._entries if self._is_alive(entry)]

    def rebuild(self, entries: list[T]) -> None:
        self._entries = entries
        heapify(entries)


def _is_present(entry: tuple[float, int, int, RequestState]) -> bool:
    """Whether an entry of a request is its latest, and the request waits."""
    return entry[2] == entry[3].stamp


class TenantQueue:
    """The waiting requests of one tenant and one priority. Next are the retracted ones, by arrival;
    then one that waited too long; then the first by the policy's order.

    No request waits for more than `bound` admissions of younger ones. Proof sketch: let W be the
    one that has waited longest among those that never ran. Whatever was admitted and is younger
    than W was admitted while W waited, so counting it counts W's. For any other V that waits, all
    that are younger than V are younger than W: V's count is no larger. At the bound only W or older
    ones are next until W goes. A retracted request is next before all younger ones: its count stays
    at 0.

    When the request whose turn it is follows another (see WaitingRoom), none is next, for a few
    steps. O(log n) per change. overtakers: arrivals of admitted requests that are younger than W.
    """

    def __init__(self, order: AdmissionOrder, bound: int) -> None:
        self.size = 0
        self._order = order
        self._bound = bound
        self._ranked = LazyHeap(_is_present)
        self._returned = LazyHeap(_is_present)
        self._fresh: deque[RequestState] = deque()
        self.overtakers: list[int] = []

    @property
    def entries(self) -> int:
        """The entries of those that wait, dead ones included."""
        return len(self._ranked) + len(self._returned) + len(self._fresh)

    def push(self, state: RequestState) -> None:
        """A request arrives, or comes back when `state.returned`."""
        self.size += 1
        state.waits = True
        if state.returned:
            state.stamp += 1
            self._returned.push((0, state.arrival, state.stamp, state), self.size)
            return
        self._fresh.append(state)
        self.rank(state)

    def rank(self, state: RequestState) -> None:
        """Put a request where it belongs now: its rank has changed, or whether it follows."""
        if state.returned:
            return
        state.stamp += 1
        if state.follows is None:
            self._ranked.push(self._entry(state), self.size)

    def rank_all(self) -> None:
        """Every rank has changed."""
        self._ranked.rebuild([self._entry(state) for *_, state in self._ranked.alive()])

    def _entry(self, state: RequestState) -> tuple[float, int, int, RequestState]:
        return self._order.rank(state), state.arrival, state.stamp, state

    def remove(self, state: RequestState, *, admitted: bool) -> None:
        """A request has been admitted, or has ended."""
        self.size -= 1
        state.waits = False
        state.stamp += 1
        oldest = self._oldest()
        if admitted and oldest is not None and oldest.arrival < state.arrival:
            heappush(self.overtakers, state.arrival)
        if len(self._fresh) > 2 * self.size + SLACK:
            self._fresh = deque(state for state in self._fresh if _is_fresh(state))

    def head(self) -> RequestState | None:
        """The next request; None when all, or the one whose turn it is, follow another."""
        first = self._first_in_turn()
        if first is not None:
            return None if first.follows is not None else first
        entry = self._ranked.first()
        return None if entry is None else entry[-1]

    def _first_in_turn(self) -> RequestState | None:
        """The older one of the first that came back and one that was overtaken too often."""
        entry = self._returned.first()
        returned = None if entry is None else entry[-1]
        oldest = self._oldest()
        if oldest is None:
            return returned
        while self.overtakers and self.overtakers[0] < oldest.arrival:
            heappop(self.overtakers)
        if len(self.overtakers) < self._bound:
            return returned
        return oldest if returned is None or oldest.arrival < returned.arrival else returned

    def _oldest(self) -> RequestState | None:
        """The one that has waited longest of those that never ran."""
        while self._fresh and not _is_fresh(self._fresh[0]):
            self._fresh.popleft()
        return self._fresh[0] if self._fresh else None


def _is_fresh(state: RequestState) -> bool:
    return state.waits and not state.returned


Turn = tuple[int, int, str, TenantQueue]


class PriorityLevel:
    """The queues of one priority. turns: (served, number of the queue, tenant, queue), the least
    served first, of equals the queue that was opened first; `served` only grows, so an entry is put
    right when it comes up.
    """

    def __init__(self) -> None:
        self.lines: dict[str, TenantQueue] = {}
        # An empty queue is never used again.
        self.turns: LazyHeap[Turn] = LazyHeap(lambda turn: turn[3].size > 0)


class WaitingQueue:
    """All waiting requests; next is the least served tenant's, by priority. O(log n) a change."""

    def __init__(
        self, order: AdmissionOrder, fairness: TokenFairness, max_wait_admissions: int
    ) -> None:
        self._order = order
        self._fairness = fairness
        self._bound = max_wait_admissions
        self.levels: dict[int, PriorityLevel] = {}
        self._priorities: list[int] = []
        self._lines_made = 0

    def push(self, state: RequestState) -> None:
        priority = self._priority(state)
        level = self.levels.get(priority)
        if level is None:
            level = self.levels[priority] = PriorityLevel()
            insort(self._priorities, priority)
        tenant = state.request.tenant
        line = level.lines.get(tenant)
        if line is not None:
            line.push(state)
            return
        line = level.lines[tenant] = TenantQueue(self._order, self._bound)
        line.push(state)
        self._lines_made += 1
        turn = (self._fairness.served(tenant), self._lines_made, tenant, line)
        level.turns.push(turn, len(level.lines))

    def rank(self, state: RequestState) -> None:
        """A waiting request's rank has changed, or whether it follows another."""
        self.levels[self._priority(state)].lines[state.request.tenant].rank(state)

    def rank_all(self) -> None:
        """Every rank has changed."""
        for level in self.levels.values():
            for line in level.lines.values():
                line.rank_all()

    def remove(self, state: RequestState, *, admitted: bool) -> None:
        """A waiting request has been admitted, or has ended."""
        priority, tenant = self._priority(state), state.request.tenant
        level = self.levels[priority]
        line = level.lines[tenant]
        line.remove(state, admitted=admitted)
        if not line.size:
            del level.lines[tenant]
            if not level.lines:
                del self.levels[priority]
                del self._priorities[bisect_left(self._priorities, priority)]

    def head(self) -> RequestState | None:
        """The next request; None when none waits, or all of them follow others."""
        for priority in reversed(self._priorities):
            state = self._head_of(self.levels[priority])
            if state is not None:
                return state
        return None

    def _head_of(self, level: PriorityLevel) -> RequestState | None:
        passed: list[Turn] = []
        found: RequestState | None = None
        while found is None and (turn := level.turns.first()) is not None:
            noted, number, tenant, line = turn
            served = self._fairness.served(tenant)
            if served != noted:
                level.turns.pop()
                level.turns.push((served, number, tenant, line), len(level.lines))
                continue
            found = line.head()
            if found is None:
                passed.append(level.turns.pop())
        for turn in passed:
            level.turns.push(turn, len(level.lines))
        return found

    def _priority(self, state: RequestState) -> int:
        return state.request.priority if self._order.by_priority else 0
