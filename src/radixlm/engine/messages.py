"""What crosses the seam between the engine's thread and the rest: frozen values, both ways."""

from __future__ import annotations

from dataclasses import dataclass

from radixlm.cache import Pin
from radixlm.core.errors import CacheError, EngineDeadError
from radixlm.core.events import Event
from radixlm.core.keys import Key
from radixlm.core.misses import Explained
from radixlm.core.reports import RequestView, TreeChange, TreeQuery, TreeSnapshot
from radixlm.core.request import GenerateRequest, Namespace, RequestOutput
from radixlm.engine.engine_stats import EngineStats


@dataclass(frozen=True, slots=True)
class Submit:
    """Queue these requests, all before the next step. at: when they came, by the engine's clock."""

    requests: tuple[GenerateRequest, ...]
    at: float


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


@dataclass(frozen=True, slots=True, eq=False)
class Explain:
    """Why a prompt would miss now; answered by Explained. everywhere: look into the other
    namespaces, too.
    """

    key: Key
    namespace: Namespace
    everywhere: bool = False


Question = Flush | PinPrefix | Unpin | Explain


@dataclass(frozen=True, slots=True)
class Ask:
    """A question to the cache; answered by Answer with the same ticket."""

    ticket: int
    question: Question


@dataclass(frozen=True, slots=True)
class Stop:
    """End the thread after the step in flight; requests under way are aborted."""


@dataclass(frozen=True, slots=True)
class WatchTree:
    """Show what `query` asks for: a TreeUpdate that holds a Scene; with `follow` also every change
    from then on, until StopWatching.
    """

    ticket: int
    query: TreeQuery
    follow: bool


@dataclass(frozen=True, slots=True)
class StopWatching:
    """End the watching that has this ticket."""

    ticket: int


Inbound = Submit | Abort | Ask | WatchTree | StopWatching | Stop


@dataclass(frozen=True, slots=True)
class Outputs:
    outputs: tuple[RequestOutput, ...]


@dataclass(frozen=True, slots=True)
class Answer:
    """What was asked for, or why it could not be."""

    ticket: int
    value: Flushed | Pin | Explained | None
    error: CacheError | None = None


@dataclass(frozen=True, slots=True)
class Scene:
    """The tree, the requests that run and the totals, all of one moment between two steps."""

    tree: TreeSnapshot
    running: tuple[RequestView, ...]
    stats: EngineStats


@dataclass(frozen=True, slots=True)
class SceneChange:
    """What leads to a later scene. tree: None when nothing of it changed.

    events: what happened to requests, in order; `lost` more were too many. running: those that
    changed; that one was retracted or has finished is in the events alone.
    """

    tree: TreeChange | None
    events: tuple[Event, ...]
    lost: int
    running: tuple[RequestView, ...]
    stats: EngineStats


TreeNews = Scene | SceneChange | CacheError


@dataclass(frozen=True, slots=True)
class TreeUpdate:
    """An answer to WatchTree; after an error there is no more."""

    ticket: int
    news: TreeNews


@dataclass(frozen=True, slots=True)
class Died:
    """The loop ended; no further message follows. error: for all requests, later ones too."""

    error: EngineDeadError


Outbound = Outputs | Answer | TreeUpdate | Died
