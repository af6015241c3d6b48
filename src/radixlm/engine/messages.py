"""What crosses the seam between the engine's thread and the rest: frozen values, both ways."""

from __future__ import annotations

from dataclasses import dataclass

from radixlm.cache import Pin
from radixlm.core.errors import CacheError
from radixlm.core.keys import Key
from radixlm.core.reports import TreeSnapshot
from radixlm.core.request import Namespace, Request, RequestOutput


@dataclass(frozen=True, slots=True)
class Submit:
    """Queue these requests, all before the next step."""

    requests: tuple[Request, ...]


@dataclass(frozen=True, slots=True)
class Abort:
    request_id: str


@dataclass(frozen=True, slots=True)
class Flush:
    """Drop all that no request and no pin uses; answered by Flushed."""


@dataclass(frozen=True, slots=True)
class Flushed:
    """tokens: how many were dropped. idle: whether no request ran, so that only pins are left."""

    tokens: int
    idle: bool


@dataclass(frozen=True, slots=True, eq=False)
class PinPrefix:
    """Keep what is cached of `key` for `ttl` seconds, or until unpinned; answered by a Pin."""

    key: Key
    namespace: Namespace
    ttl: float | None


@dataclass(frozen=True, slots=True)
class Unpin:
    """Let go of a pin; answered by None."""

    pin_id: int


@dataclass(frozen=True, slots=True)
class TakeSnapshot:
    """The tree as it is; answered by a TreeSnapshot."""

    max_depth: int | None = None
    min_tokens: int = 0


Question = Flush | PinPrefix | Unpin | TakeSnapshot


@dataclass(frozen=True, slots=True)
class Ask:
    """A question to the cache; answered by Answer with the same ticket."""

    ticket: int
    question: Question


@dataclass(frozen=True, slots=True)
class Stop:
    """End the thread after the step in flight; requests under way are aborted."""


Inbound = Submit | Abort | Ask | Stop


@dataclass(frozen=True, slots=True)
class Outputs:
    outputs: tuple[RequestOutput, ...]


@dataclass(frozen=True, slots=True)
class Answer:
    """What was asked for, or why it could not be."""

    ticket: int
    value: Flushed | Pin | TreeSnapshot | None
    error: CacheError | None = None


@dataclass(frozen=True, slots=True)
class Died:
    """The loop ended; no further message follows."""

    reason: str


Outbound = Outputs | Answer | Died
