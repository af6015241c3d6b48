"""What happened, for whoever listens. Makers of events write them and never read them back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Arrived:
    request_id: str
    prompt_tokens: int


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
class Evicted:
    """`tokens` were cut from the end of a leaf; `gone` when nothing of it is left."""

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


@dataclass(frozen=True, slots=True)
class Retracted:
    request_id: str
    computed: int


@dataclass(frozen=True, slots=True)
class Finished:
    request_id: str
    reason: str
    output_tokens: int


Event = Arrived | Matched | Inserted | Split | Evicted | Scheduled | Retracted | Finished
EventSink = Callable[[Event], None]


def ignore(_event: Event) -> None:
    """The sink of those who do not listen."""
