"""What happened, for whoever listens. Makers of events write them and never read them back."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Arrived:
    request_id: str
    prompt_tokens: int
    namespace: Hashable


@dataclass(frozen=True, slots=True)
class Matched:
    """A lease was taken: `cached` of the `wanted` tokens were there."""

    wanted: int
    cached: int


@dataclass(frozen=True, slots=True)
class Inserted:
    """`new` tokens entered the tree; `duplicate` ones were there already."""

    node_id: int
    new: int
    duplicate: int


@dataclass(frozen=True, slots=True)
class Split:
    """A node was cut: `upper_id` is new and holds the first `upper_tokens` of `node_id`."""

    node_id: int
    upper_id: int
    upper_tokens: int


@dataclass(frozen=True, slots=True)
class Merged:
    """A node and its only child became one: `upper_id` is gone, `node_id` has `tokens` now."""

    node_id: int
    upper_id: int
    tokens: int


@dataclass(frozen=True, slots=True)
class Pinned:
    """A prefix is held until it is unpinned or its time ends."""

    pin_id: int
    tokens: int


@dataclass(frozen=True, slots=True)
class Unpinned:
    pin_id: int
    expired: bool


@dataclass(frozen=True, slots=True)
class Evicted:
    """`tokens` at the end of a leaf lost their slots; `gone` when none of it is resident."""

    node_id: int
    tokens: int
    gone: bool


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


Event = (
    Arrived
    | Matched
    | Inserted
    | Split
    | Merged
    | Evicted
    | Pinned
    | Unpinned
    | Scheduled
    | Retracted
    | Finished
)
RequestEvent = Arrived | Scheduled | Retracted | Finished
EventSink = Callable[[Event], None]


def ignore(_event: Event) -> None:
    """The sink of those who do not listen."""
