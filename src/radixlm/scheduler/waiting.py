"""The room of waiting requests, and which of them is next; a prefix that another computes is waited
for, not computed.
"""

from __future__ import annotations

from collections.abc import Collection
from heapq import heappop, heappush

from radixlm.cache import Match, RadixCache
from radixlm.scheduler.fairness import TokenFairness
from radixlm.scheduler.prompt_index import PromptIndex
from radixlm.scheduler.queue import AdmissionOrder, WaitingQueue
from radixlm.scheduler.state import Leader, RequestState


class WaitingRoom:
    """Chooses the next request to admit. It is called for each that arrives, starts, commits tokens
    or ends; a step costs what has changed and what is admitted, not what waits.

    `state.cached` is what the cache holds of a waiting request, or more: a commit raises it for
    those below the new tokens, found in the prompt index. Eviction may leave it too high; so the
    request that seems first is looked up in the cache, and put back with the right figure if it
    was. (It is too low where two requests compute the same; that costs only a place in the order.)

    *In-flight sharing.* A waiting request follows one that computes tokens which it could take from
    the cache a step or more later; it holds nothing while it does. A request that is followed gets
    budget in every step in which any could be admitted, and lets its followers go when it has
    computed what they share or does not run any more; so none follows for ever. A restoration is
    followed in the same way, see Restoring.

    fairness: what each tenant was served. max_wait_admissions: see WaitingQueue.
    """

    def __init__(
        self, cache: RadixCache, order: AdmissionOrder, max_wait_admissions: int = 1_000
    ) -> None:
        self.cache = cache
        self.order = order
        self.fairness = TokenFairness()
        self._queue = WaitingQueue(order, self.fairness, max_wait_admissions)
        self.index = PromptIndex(cache.page_size)
        # Heaps of (tokens shared, arrival, follower); entries of others are dead.
        self.followers: dict[Leader, list[tuple[int, int, RequestState]]] = {}
        self._waiting: dict[str, RequestState] = {}
        self._found: tuple[RequestState, Match] | None = None

    def get(self, request_id: str) -> RequestState | None:
        return self._waiting.get(request_id)

    def add(self, state: RequestState) -> None:
        """A request arrives, or comes back after a retraction."""
        self._waiting[state.request.request_id] = state
        if self.cache.enabled:
            self.index.add(state)
            state.cached = self.match(state).length
            self._follow_if_worth_it(state)
        self._queue.push(state)

    def drop(self, state: RequestState) -> None:
        """A waiting request has ended."""
        state.follows = None
        self._take_out(state, admitted=False)
        if self.cache.enabled:
            self.index.remove(state)

    @property
    def states(self) -> Collection[RequestState]:
        """All that wait, in order of their arrival; live, not a copy."""
        return self._waiting.values()

    def next(self) -> RequestState | None:
        """The request to be admitted next; None if there is none."""
        if self.order.lay_out(self.index):
            self._queue.rank_all()
        while (state := self._queue.head()) is not None:
            was_there, state.cached = state.cached, self.match(state).length
            follows = self.cache.enabled and self._follow_if_worth_it(state)
            if not follows and state.cached >= was_there:
                return state
            self._queue.rank(state)
        return None

    def match(self, state: RequestState) -> Match:
        """The match of a waiting request in the cache; matched once, as long as the tree stays."""
        if self._found is not None:
            found, match = self._found
            if found is state and match.version == self.cache.tree.version:
                return match
        match = self.cache.match(state.known, state.namespace, max_match=state.max_match)
        self._found = state, match
        return match

    def start(self, state: RequestState, cached: int) -> None:
        """A request is admitted; those that share more of it than `cached` tokens follow it."""
        self._take_out(state, admitted=True)
        if not self.cache.enabled:
            return
        self.index.start_computing(state)
        self._lead(state, cached)

    def start_restoring(self, leader: Leader, cached: int) -> None:
        """Tokens after `cached` are being read; those that share some of them follow."""
        self.index.start_restoring(leader)
        self._lead(leader, cached)

    def _lead(self, leader: Leader, cached: int) -> None:
        leader.computing = True
        for other, shared in list(self.index.sharing(leader.known, leader.namespace, cached)):
            if other.follows is None and self._follow(other, leader, shared):
                self._queue.rank(other)

    def committed(self, leader: Leader, before: int, upto: int) -> None:
        """A leader's tokens from `before` to `upto` have entered the cache."""
        self._let_go(leader, upto, upto)
        if upto <= leader.prefill_end or not self._waiting:
            return
        # No request follows what it generated, but others may have come with the same tokens.
        known = leader.known[:upto]
        for other, shared in list(self.index.sharing(known, leader.namespace, before)):
            if other.follows is None:
                self._raise(other, shared)

    def first_shared(self, state: RequestState, least: int) -> int:
        """The first place from `least` on where one that waits, and follows a request, goes on in
        another way; 0: there is none. O(places before it).
        """
        followers, found, below = self.followers.get(state, []), 0, [0]
        while below:
            at = below.pop()
            if at >= len(followers) or 0 < found <= followers[at][0]:
                continue
            place, _, other = followers[at]
            if place >= least and other.follows is state:
                found = place
            else:
                below += 2 * at + 1, 2 * at + 2
        return found

    def stop_computing(self, leader: Leader, computed: int) -> None:
        """A leader has all of its prompt, or will not have: it got as far as `computed`."""
        if not leader.computing:
            return
        leader.computing = False
        self.index.stop_computing(leader)
        self._let_go(leader, leader.known.size, computed)

    def _take_out(self, state: RequestState, *, admitted: bool) -> None:
        self._found = None
        del self._waiting[state.request.request_id]
        self._queue.remove(state, admitted=admitted)

    def _let_go(self, leader: Leader, upto: int, computed: int) -> None:
        """Let go those who share no more than `upto` with `leader`, which has `computed` tokens."""
        followers = self.followers.get(leader)
        if followers is None:
            return
        while followers and followers[0][0] <= upto:
            shared, _, other = heappop(followers)
            if other.follows is leader:
                other.follows = None
                before = other.cached
                self._raise(other, min(shared, computed))
                if leader.place is not None and other.cached > before:
                    other.restore(leader.place, before, other.cached)
        if not followers:
            del self.followers[leader]

    def _raise(self, state: RequestState, cached: int) -> None:
        """Look at a waiting request again: more of it may be in the cache now, or it does not
        follow any more.
        """
        limit = self.cache.round_down(min(cached, state.max_match))
        state.cached = max(state.cached, limit)
        self._queue.rank(state)

    def _follow_if_worth_it(self, state: RequestState) -> bool:
        found = self.index.computing(state, state.cached)
        return found is not None and self._follow(state, *found)

    def _follow(self, state: RequestState, leader: Leader, shared: int) -> bool:
        """Let `state` follow, unless the cache holds all that it could take from the leader."""
        usable = self._usable(state, shared)
        if usable <= max(state.cached, leader.committed) or usable < leader.usable_from:
            return False
        state.follows = leader
        heappush(self.followers.setdefault(leader, []), (usable, state.arrival, state))
        return True

    def _usable(self, state: RequestState, shared: int) -> int:
        """How much a waiting request could take of what it shares with another."""
        return self.cache.round_down(min(shared, state.max_match))
