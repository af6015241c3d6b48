"""The order of admission: one rank per policy."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Mapping

from radixlm.core.config import SchedulePolicy
from radixlm.core.errors import ConfigError
from radixlm.core.request import GenerateRequest
from radixlm.scheduler.prompt_index import PromptIndex
from radixlm.scheduler.state import RequestState


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
