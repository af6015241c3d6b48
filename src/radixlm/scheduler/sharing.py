"""In-flight sharing: a prefix that a running request is computing is waited for, not computed."""

from __future__ import annotations

from radixlm.core.keys import common_prefix
from radixlm.scheduler.state import RequestState


class InFlight:
    """The prefixes that get computed in this step.

    A waiting request is held back while one of these computes tokens that it could take from the
    cache a step later. It holds nothing while it waits, and waits only for requests that got
    budget in this very step, so it can not wait for ever.
    """

    def __init__(self, page_size: int) -> None:
        self._page_size = page_size
        self._computing: list[RequestState] = []

    def add(self, state: RequestState) -> None:
        """`state` computes more than its last token in this step."""
        self._computing.append(state)

    def is_worth_waiting(self, state: RequestState, cached: int) -> bool:
        """Whether more than `cached` tokens of `state` will come from one that is computing."""
        return any(self._shared(state, other) > cached for other in self._computing)

    def _shared(self, state: RequestState, other: RequestState) -> int:
        if state.request.namespace != other.request.namespace:
            return 0
        shared = min(common_prefix(state.known, other.known), state.max_match)
        return shared - shared % self._page_size
