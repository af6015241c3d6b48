"""What crosses the seam between the engine's thread and the rest: frozen values, both ways."""

from __future__ import annotations

from dataclasses import dataclass

from radixlm.core.request import Request, RequestOutput


@dataclass(frozen=True, slots=True)
class Submit:
    """Queue these requests, all before the next step."""

    requests: tuple[Request, ...]


@dataclass(frozen=True, slots=True)
class Abort:
    request_id: str


@dataclass(frozen=True, slots=True)
class Flush:
    """Drop all that no request uses; answered by Flushed with the same ticket."""

    ticket: int


@dataclass(frozen=True, slots=True)
class Stop:
    """End the thread after the step in flight; requests under way are aborted."""


Inbound = Submit | Abort | Flush | Stop


@dataclass(frozen=True, slots=True)
class Outputs:
    outputs: tuple[RequestOutput, ...]


@dataclass(frozen=True, slots=True)
class Flushed:
    """tokens: how many were dropped. idle: whether no request ran, so that nothing is left."""

    ticket: int
    tokens: int
    idle: bool


@dataclass(frozen=True, slots=True)
class Died:
    """The loop ended; no further message follows."""

    reason: str


Outbound = Outputs | Flushed | Died
