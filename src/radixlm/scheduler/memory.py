"""Whether the pool has room for one more request."""

from __future__ import annotations

import math
from collections.abc import Iterable

from radixlm.cache import Match, RadixCache
from radixlm.scheduler.state import RequestState

# How much of its allowed output a request is expected to produce: most end well before
# max_tokens, and one that was admitted too early is retracted at little cost.
EXPECTED_OUTPUT = 0.5


class MemoryGuard:
    """Admission by free and evictable slots, less what the running requests will still need.

    `conservativeness` scales the share of its allowed output that is reserved for each request;
    0 reserves nothing, so that more run at once and some are retracted.
    """

    def __init__(self, cache: RadixCache, conservativeness: float) -> None:
        self._cache = cache
        self._share = min(1.0, EXPECTED_OUTPUT * conservativeness)
        self._reserved = 0
        self._occupied = False

    def begin(self, running: Iterable[RequestState]) -> None:
        """Start a round of admissions beside the requests that run already."""
        self._reserved = 0
        self._occupied = False
        for state in running:
            self.reserve(state)

    def admits(self, state: RequestState, match: Match) -> bool:
        """Whether `state` fits beside all that is reserved. The only one always does."""
        own = self._cache.round_up(state.n_tokens - match.length)
        left = self._cache.available_after(match) - self._reserved
        return not self._occupied or own + self._expected(state) <= left

    def reserve(self, state: RequestState) -> None:
        """Keep what a running request, which has some slots already, will still need."""
        given = state.lease.length if state.lease else 0
        self._reserved += state.n_tokens - given + self._expected(state)
        self._occupied = True

    def _expected(self, state: RequestState) -> int:
        return math.ceil(self._share * state.room)
