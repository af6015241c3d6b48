"""Who is admitted first: one small method per policy."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol

from radixlm.core.config import SchedulePolicy
from radixlm.core.errors import ConfigError
from radixlm.scheduler.state import RequestState

CachedLength = Callable[[RequestState], int]


class AdmissionOrder(Protocol):
    """Orders the waiting requests. `cached` tells how many tokens of one the cache holds now."""

    def sort(self, waiting: Iterable[RequestState], cached: CachedLength) -> list[RequestState]: ...


class FirstComeFirstServed:
    def sort(
        self,
        waiting: Iterable[RequestState],
        cached: CachedLength,  # noqa: ARG002
    ) -> list[RequestState]:
        return sorted(waiting, key=lambda state: state.arrival)


class LongestPrefixMatch:
    """Longest cached prefix first, so that what is cached is used before it is evicted."""

    def sort(self, waiting: Iterable[RequestState], cached: CachedLength) -> list[RequestState]:
        return sorted(waiting, key=lambda state: (-cached(state), state.arrival))


def make_order(policy: SchedulePolicy) -> AdmissionOrder:
    """The order of that name. Raises ConfigError."""
    match policy:
        case "fcfs":
            return FirstComeFirstServed()
        case "lpm":
            return LongestPrefixMatch()
    raise ConfigError(f"unknown --schedule-policy {policy!r}")
