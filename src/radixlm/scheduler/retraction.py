"""Who gives way when the pool is full, or when a more important request wants to run."""

from __future__ import annotations

from collections.abc import Iterable

from radixlm.scheduler.state import RequestState


class Retraction:
    """Picks running requests to retract: the least important first, then the one that costs least
    to bring back.

    What a request computed goes into the tree before it gives way, and only what is evicted
    meanwhile is computed again; that is never what others share. So its cost is the number of
    tokens that it alone uses. Nobody is picked twice in a row while there are equally important
    others to pick.
    """

    def __init__(self, *, by_priority: bool) -> None:
        self._by_priority = by_priority
        self._last: RequestState | None = None

    def pick(self, running: Iterable[RequestState]) -> RequestState | None:
        """The next to give way, so that another can go on; None when there is but one. The oldest
        of the most important ones is spared: alone it fits, so it always ends, and there is no
        livelock.
        """
        states = list(running)
        states.remove(min(states, key=lambda state: (-self._rank(state), state.arrival)))
        return self._cheapest(states)

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
