"""What happened to requests. The scheduler writes events to a sink and never reads them back."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Arrived:
    request_id: str
    prompt_tokens: int
    namespace: Hashable


@dataclass(frozen=True, slots=True)
class Scheduled:
    """A request was admitted: it starts at token `start`; `again` after a retraction."""

    request_id: str
    start: int
    prompt_tokens: int
    again: bool
    namespace: Hashable


@dataclass(frozen=True, slots=True)
class Retracted:
    request_id: str
    computed: int
    namespace: Hashable


@dataclass(frozen=True, slots=True)
class Finished:
    request_id: str
    reason: str
    output_tokens: int
    namespace: Hashable


Event = Arrived | Scheduled | Retracted | Finished
EventSink = Callable[[Event], None]


def ignore(_event: Event) -> None:
    """A sink that drops every event."""
