"""In-flight sharing: a prefix that a running request is computing is waited for, not computed."""

from __future__ import annotations

from radixlm.scheduler.state import RequestState


class InFlight:
    """Who follows whom: a waiting request follows one that computes tokens which it could take
    from the cache a step or more later.

    It holds nothing while it follows. Whoever is followed runs and gets budget in every step in
    which anybody could be admitted, and followers are let go when it has computed what they share
    or does not run any more; so none follows for ever.
    """

    def __init__(self) -> None:
        self._followers: dict[RequestState, dict[int, dict[RequestState, None]]] = {}

    def follow(self, state: RequestState, leader: RequestState, shared: int) -> None:
        """`state` waits until `leader` has computed `shared` tokens."""
        state.follows = leader
        self._followers.setdefault(leader, {}).setdefault(shared, {})[state] = None

    def let_go(self, leader: RequestState, upto: int) -> list[tuple[RequestState, int]]:
        """The followers who share no more than `upto` tokens with `leader`; with how many."""
        by_shared = self._followers.get(leader)
        if by_shared is None:
            return []
        freed = []
        for shared in [shared for shared in by_shared if shared <= upto]:
            for state in by_shared.pop(shared):
                state.follows = None
                freed.append((state, shared))
        if not by_shared:
            del self._followers[leader]
        return freed

    def forget(self, state: RequestState) -> None:
        """A follower is gone."""
        leader = state.follows
        if leader is None:
            return
        state.follows = None
        by_shared = self._followers[leader]
        for shared, followers in list(by_shared.items()):
            followers.pop(state, None)
            if not followers:
                del by_shared[shared]
        if not by_shared:
            del self._followers[leader]
