"""A guard of memory: it lets requests in, and chooses those that give way when it is full."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Sequence
from itertools import chain

from radixlm.cache import Lease, Match, RadixCache
from radixlm.core.errors import CacheError
from radixlm.scheduler.state import RequestState

# The share of its allowed output that a request is expected to use, before any has ended.
FIRST_GUESS = 0.5
# How much one ended request moves that share.
LEARNING_RATE = 1 / 16
# Steps for which what an ended request leaves is kept for the one that goes on from it.
LINGER_STEPS = 2
# Steps that the running requests must be able to go on after a retraction before another starts.
STEPS_AHEAD = 32


class Retraction:
    """Picks running requests to retract: the least important first, then the one that costs least
    to bring back.

    What it computed goes into the tree before it gives way, and only what is evicted meanwhile is
    computed again, never what others share: so its cost is the tokens that it alone uses. Nobody is
    picked twice in a row while there are equally important others.
    """

    def __init__(self, *, by_priority: bool) -> None:
        self._by_priority = by_priority
        self._last: RequestState | None = None

    def pick(self, running: Iterable[RequestState]) -> RequestState:
        """The next to give way, but the oldest of the most important: so there is no livelock.
        Raises CacheError if there is no other.
        """
        states = list(running)
        first = min(states, key=lambda state: (-self._rank(state), state.arrival))
        states.remove(first)
        if (victim := self._cheapest(states)) is None:
            raise CacheError(f"request {first.request.request_id} does not fit, though alone")
        return victim

    def pick_below(self, running: Iterable[RequestState], priority: int) -> RequestState | None:
        """The next to give way to a request: one of at most `priority`."""
        return self._cheapest([s for s in running if s.request.priority <= priority])

    def _cheapest(self, states: list[RequestState]) -> RequestState | None:
        self._last = min(states, key=self._cost, default=None)
        return self._last

    def _cost(self, state: RequestState) -> tuple[int, bool, int, int]:
        own = state.lease.own_size if state.lease else 0
        return self._rank(state), state is self._last, own, -state.arrival

    def _rank(self, state: RequestState) -> int:
        return state.request.priority if self._by_priority else 0


class MemoryGuard:
    """Admission by free and evictable slots, less what the running requests will still need.

    Each is expected to use a share of the output it is allowed: measured from what ended requests
    used, and raised by a retraction, which shows that it was too low, to what running ones have
    used. `conservativeness` scales it; 0 reserves nothing, so that more run at once and some are
    retracted. Tokens that several share count once: they are neither free nor evictable.

    What a request leaves behind counts as taken for some steps: the next turn of a chat comes a
    moment after the answer, and in a pool that is too small for all chats every one would be
    computed again at every turn.
    """

    def __init__(self, cache: RadixCache, conservativeness: float) -> None:
        self._cache = cache
        self._conservativeness = conservativeness
        self._share = FIRST_GUESS
        self._reserved = 0
        self._reserved_of = [0 for _ in cache.components]
        self._occupied = False
        self._left_behind: deque[list[Lease]] = deque([[]], maxlen=LINGER_STEPS + 1)

    @property
    def expected_share(self) -> float:
        """The share that is reserved of the output that a request is allowed."""
        return min(1.0, self._share * self._conservativeness)

    def next_step(self) -> None:
        """Forget what was left long enough ago."""
        self._left_behind.append([])

    def begin(self, running: Iterable[RequestState]) -> None:
        """Start a round of admissions beside the requests that run already."""
        self._cache.pins.expire()
        self._reserved = 0
        self._reserved_of = [0 for _ in self._cache.components]
        self._occupied = False
        for state in running:
            self.reserve(state)

    def admits(self, state: RequestState, match: Match) -> bool:
        """Whether `state` fits beside all that is reserved. The only one always does."""
        if not self._occupied:
            return True
        fits = self.needed(state, match) <= self.left(match)
        return fits and self._fits_components(state, match, ())

    def would_admit(
        self, state: RequestState, match: Match, others: Sequence[RequestState]
    ) -> bool:
        """Whether `state` would fit if these running requests gave way."""
        fits = self.needed(state, match) <= self.left_without(others, match)
        return fits and self._fits_components(state, match, others)

    def has_room(self, tokens: Sequence[tuple[RequestState, int]]) -> bool:
        """Whether there are slots for what running requests are to compute in a step."""
        components = self._cache.components
        wanted = sum(n_new for _, n_new in tokens)
        most = wanted + (self._cache.page_size - 1) * len(tokens)
        if most <= self._cache.available and all(most <= each.available for each in components):
            return True
        self._cache.pins.expire()
        leases = [(state.running_lease, n_new) for state, n_new in tokens]
        slots = sum(lease.slots_needed(n_new) for lease, n_new in leases)
        return self._cache.has_room(slots) and all(
            sum(lease.takes(index, n_new) for lease, n_new in leases) <= each.available
            for index, each in enumerate(components)
        )

    def needed(self, state: RequestState, match: Match) -> int:
        """Slots that `state` will need when it starts from `match`."""
        return self._cache.round_up(state.n_tokens - match.length) + self._expected(state)

    def left(self, match: Match) -> int:
        """Slots that no request has, or is expected to need, once `match` is locked."""
        spared = chain.from_iterable(self._left_behind)
        return self._cache.available_after(match, spared) - self._reserved

    def left_without(self, others: Iterable[RequestState], match: Match) -> int:
        """The same, if these running requests gave way."""
        states = list(others)
        leases = [state.lease for state in states if state.lease is not None]
        reserved = self._reserved - sum(map(self.reserved_for, states))
        return self._cache.available_without(leases, match) - reserved

    def reserve(self, state: RequestState) -> None:
        """Keep what a running request, which has some slots already, will still need."""
        self._reserved += self.reserved_for(state)
        for index in range(len(self._reserved_of)):
            self._reserved_of[index] += self._still_takes(index, state)
        self._occupied = True

    def reserved_for(self, state: RequestState) -> int:
        """The slots that a running request will still need."""
        given = state.lease.length if state.lease else 0
        return state.n_tokens - given + self._expected(state)

    def learn_from_end(self, state: RequestState) -> None:
        """A request ends by itself: take into account how much it used, and what it leaves."""
        if state.lease is not None:
            self._left_behind[-1].append(state.lease)
        used = state.output_tokens / state.request.max_tokens
        self._share += LEARNING_RATE * (used - self._share)

    def learn_from_retraction(self, running: Iterable[RequestState]) -> None:
        """The pool was too small for what runs: expect more than was expected."""
        used = allowed = 0
        for state in running:
            used += state.output_tokens + STEPS_AHEAD
            allowed += state.request.max_tokens
        if allowed:
            self._share = max(self._share, min(1.0, used / allowed))

    def _fits_components(
        self, state: RequestState, match: Match, others: Sequence[RequestState]
    ) -> bool:
        """Whether there are slots of all components for `state`, one step of it included, beside
        what is reserved, if `others` gave way. What a step computes of others is part of the same
        step.
        """
        total = self._cache.round_up(state.n_tokens + self._expected(state))
        leases = [other.running_lease for other in others]
        for index, component in enumerate(self._cache.components):
            left = component.available - component.locked_anew(match) - self._reserved_of[index]
            if leases:
                left += component.given_back([lease.locks_of(index) for lease in leases], match)
                left += sum(lease.private_of(index) for lease in leases)
                left += sum(self._still_takes(index, other) for other in others)
            if component.takes(total - match.length) > left:
                return False
        return True

    def _still_takes(self, component: int, state: RequestState) -> int:
        """Slots of the n-th component that a running request will still need between two steps."""
        if state.lease is None:
            return 0
        total = self._cache.round_up(state.n_tokens + self._expected(state))
        return state.lease.still_takes(component, total)

    def _expected(self, state: RequestState) -> int:
        return math.ceil(self.expected_share * state.room)
