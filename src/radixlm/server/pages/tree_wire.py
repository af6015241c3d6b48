"""The JSON of what is shown of the cache: docs/cache-view.md has it field by field."""

from __future__ import annotations

from typing import Literal, NotRequired

from typing_extensions import TypedDict

State = Literal["running", "pinned", "cached", "ghost"]
Run = tuple[int, int]


class NamespaceOut(TypedDict):
    adapter_id: str
    cache_salt: str
    extra_key: str


class NodeOut(TypedDict):
    id: int
    parent_id: int | None
    namespace: NotRequired[NamespaceOut]
    start: int
    tokens: int
    resident: int
    state: State
    lock_ref: int
    pins: int
    hits: int
    priority: int
    last_used: int
    slots: list[Run]
    hidden: int
    hidden_tokens: int
    text: NotRequired[str]
    cut: NotRequired[bool]


class RequestOut(TypedDict):
    id: str
    node_id: int | None
    prompt_tokens: int
    cached_tokens: int
    computed_tokens: int
    output_tokens: int


class Load(TypedDict):
    """The pool's slots, and how many requests there are."""

    capacity: int
    free: int
    private: int
    locked: int
    evictable: int
    pinned: int
    running: int
    waiting: int


class Totals(Load):
    ghosts: int
    nodes: int


class TreeHead(TypedDict):
    object: Literal["cache.tree"]
    version: int
    uses: int
    page_size: int
    totals: Totals
    path: list[NodeOut]
    requests: list[RequestOut]


class TreeOut(TreeHead):
    nodes: list[NodeOut]


class SnapshotEvent(TreeOut):
    seq: int
    dropped: int


class TreeEvent(TypedDict):
    seq: int
    version: int
    uses: int
    removed: list[int]
    nodes: list[NodeOut]
    totals: Totals


class ArrivedOut(TypedDict):
    type: Literal["arrived"]
    id: str
    prompt_tokens: int


class ScheduledOut(TypedDict):
    type: Literal["scheduled"]
    id: str
    cached_tokens: int
    again: bool


class RetractedOut(TypedDict):
    type: Literal["retracted"]
    id: str
    computed_tokens: int


class FinishedOut(TypedDict):
    type: Literal["finished"]
    id: str
    reason: str
    output_tokens: int


HappenedOut = ArrivedOut | ScheduledOut | RetractedOut | FinishedOut


class RequestsEvent(TypedDict):
    """lost: so many of `events` were left out, there were too many."""

    seq: int
    events: list[HappenedOut]
    lost: int
    running: list[RequestOut]
    waiting: int


class StatsEvent(Load):
    seq: int
    seconds: float
    hit_rate: float | None
    prompt_tokens: int
    cached_tokens: int
    computed_tokens: int
    generated_tokens: int
    generated_tokens_per_s: float
    evicted_tokens: int
    dropped: int


CacheEvent = SnapshotEvent | TreeEvent | RequestsEvent | StatsEvent


class NodeWhole(NodeOut):
    path: list[int]


class Found(TypedDict):
    node_id: int
    start: int
    before: str
    match: str
    after: str


class SearchOut(TypedDict):
    object: Literal["cache.search"]
    q: str
    searched: int
    complete: bool
    matches: list[Found]
