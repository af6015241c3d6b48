"""The order of admission: one small method per policy."""

from __future__ import annotations

import math
import random
from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import ClassVar

from radixlm.core.config import SchedulePolicy
from radixlm.core.errors import ConfigError
from radixlm.core.request import GenerateRequest
from radixlm.scheduler.prompt_index import PromptIndex
from radixlm.scheduler.state import RequestState


class AdmissionOrder(ABC):
    """Ranks waiting requests; equal ranks go by arrival.

    by_priority: whether a request of higher priority goes first, unless it follows another, and
    may take the place of a running one.
    """

    by_priority: ClassVar[bool] = False

    @abstractmethod
    def rank(self, state: RequestState) -> float:
        """The lowest goes first. Asked again when `state.cached` has changed."""

    def lay_out(self, index: PromptIndex) -> bool:  # noqa: ARG002
        """Walk all waiting prompts, where an order needs that; whether ranks have changed."""
        return False


class FirstComeFirstServed(AdmissionOrder):
    def rank(self, state: RequestState) -> float:  # noqa: ARG002
        return 0


class LongestPrefixMatch(AdmissionOrder):
    """Longest cached prefix first, so that what is cached is used before it is evicted."""

    def rank(self, state: RequestState) -> float:
        return -state.cached


class LongestOutputFirst(AdmissionOrder):
    def rank(self, state: RequestState) -> float:
        return -state.room


class ShortestPrefillFirst(AdmissionOrder):
    """Fewest tokens to compute first: the mean time to the first token is the shortest."""

    def rank(self, state: RequestState) -> float:
        return state.n_tokens - state.cached


class RandomOrder(AdmissionOrder):
    """By lot, the same lots for the same seed and order of arrival."""

    def __init__(self, seed: int = 0) -> None:
        self._seed = seed

    def rank(self, state: RequestState) -> float:
        return random.Random(self._seed << 64 | state.arrival).random()  # noqa: S311


class HighestPriorityFirst(LongestPrefixMatch):
    """By the request's priority; among equals the longest cached prefix first."""

    by_priority = True


class HeaviestSubtreeFirst(AdmissionOrder):
    """Depth first through the tree of the waiting prompts, the most shared branch before others.

    The walk is done anew when a quarter of what waits has arrived since, so that it costs each
    request a constant; until then newcomers go last.
    """

    def __init__(self) -> None:
        self._places: dict[int, int] = {}
        self._arrivals = 0

    def rank(self, state: RequestState) -> float:
        return self._places.get(state.arrival, math.inf)

    def lay_out(self, index: PromptIndex) -> bool:
        if 4 * (index.arrivals - self._arrivals) <= len(index):
            return False
        self._arrivals = index.arrivals
        walk = enumerate(index.heaviest_first())
        self._places = {state.arrival: place for place, state in walk}
        return True


def make_order(policy: SchedulePolicy, seed: int = 0) -> AdmissionOrder:
    """The order of that name. seed: for `random`. Raises ConfigError."""
    match policy:
        case "fcfs":
            return FirstComeFirstServed()
        case "lpm":
            return LongestPrefixMatch()
        case "dfs-weight":
            return HeaviestSubtreeFirst()
        case "lof":
            return LongestOutputFirst()
        case "shortest-prefill-first":
            return ShortestPrefillFirst()
        case "random":
            return RandomOrder(seed)
        case "priority":
            return HighestPriorityFirst()
    raise ConfigError(f"unknown --schedule-policy {policy!r}")


def depth_first(requests: Iterable[GenerateRequest]) -> list[GenerateRequest]:
    """A batch that is known as a whole, in depth-first order of the tree of its prompts.

    Requests that share a prefix are neighbours at every depth, so each prefix is computed once as
    long as the pool holds the longest path (SGLang, arXiv 2312.07104, theorem 3.1). Sorting the
    keys' bytes is such an order: whatever begins alike stands together.
    """
    return sorted(requests, key=lambda request: (request.namespace, request.key.tobytes()))
