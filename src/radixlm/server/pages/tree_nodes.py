"""The JSON of what is shown of the cache (docs/cache-view.md has it field by field), and nodes as
such; texts are made here, from the tokens.
"""

from __future__ import annotations

from codecs import getincrementaldecoder
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Literal, NotRequired, cast

import numpy as np
from typing_extensions import TypedDict

from radixlm.core.clock import Clock
from radixlm.core.keys import Slots
from radixlm.core.moves import Place
from radixlm.core.reports import NodeView, RequestView
from radixlm.core.request import Namespace
from radixlm.engine.engine_stats import EngineStats
from radixlm.server.insight.usage import DraftedTokens
from radixlm.text.tokenizer import Tokenizer

State = Literal["running", "pinned", "cached", "host", "disk", "ghost"]
Run = tuple[int, int]


SHOWN_CHARACTERS = 80
SHOWN_RUNS = 8
_UTF8_BYTES = 4
# New tokens take longest to spell: few more than fill what is shown.
_TOKENS_AT_ONCE = 8
MAX_SECONDS = 1.0
_CONTEXT_BYTES = 48


class NamespaceOut(TypedDict):
    adapter_id: str
    cache_salt: str
    extra_key: str
    long_rope: str


class NodeOut(TypedDict):
    id: int
    parent_id: int | None
    namespace: NotRequired[NamespaceOut]
    start: int
    tokens: int
    resident: int
    on_host: int
    on_disk: int
    state: State
    lock_ref: int
    pins: int
    hits: int
    priority: int
    last_used: int
    slots: list[Run]
    tombstones: NotRequired[list[list[int]]]
    checkpoint_bytes: NotRequired[int]
    hidden: int
    hidden_tokens: int
    text: NotRequired[str]
    cut: NotRequired[bool]


class TreeLoad(TypedDict):
    """The pool's slots, the tokens in host memory and on disk, and how many may be, and the
    requests.
    """

    capacity: int
    free: int
    private: int
    locked: int
    evictable: int
    pinned: int
    host: int
    host_capacity: int
    disk: int
    disk_capacity: int
    running: int
    waiting: int


class TreeTotals(TreeLoad):
    ghosts: int
    nodes: int


class TreeOut(TypedDict):
    object: Literal["cache.tree"]
    version: int
    uses: int
    page_size: int
    totals: TreeTotals
    path: list[NodeOut]
    requests: list[RequestView]
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
    totals: TreeTotals


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
    """lost: how many events were left out, because there were too many."""

    seq: int
    events: list[HappenedOut]
    lost: int
    running: list[RequestView]
    waiting: int


class StatsEvent(TreeLoad):
    seq: int
    seconds: float
    hit_rate: float | None
    prompt_tokens: int
    cached_tokens: int
    computed_tokens: int
    generated_tokens: int
    generated_tokens_per_s: float
    evicted_tokens: int
    drafts: dict[str, DraftedTokens]
    dropped: int


CacheEvent = SnapshotEvent | TreeEvent | RequestsEvent | StatsEvent


class NodeWhole(NodeOut):
    path: list[int]


class SearchHit(TypedDict):
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
    matches: list[SearchHit]


_decoder = getincrementaldecoder("utf-8")


@dataclass(frozen=True, slots=True)
class NodeWriter:
    """Writes nodes for one viewer.

    texts: whether with their texts. within: what is taken off the salts of namespaces: the owner's
    name, as the server put it there. state_bytes: what a checkpoint takes.
    """

    tokenizer: Tokenizer
    texts: bool = True
    within: str | None = None
    characters: int = SHOWN_CHARACTERS
    runs: int = SHOWN_RUNS
    state_bytes: int = 0

    def node(self, view: NodeView) -> NodeOut:
        """One node."""
        out: NodeOut = {
            "id": view.id,
            "parent_id": view.parent_id,
            "start": view.start,
            "tokens": len(view.ids),
            "resident": view.resident,
            "on_host": view.stored[Place.HOST],
            "on_disk": view.stored[Place.DISK],
            "state": _state(view),
            "lock_ref": view.lock_ref,
            "pins": view.pins,
            "hits": view.hits,
            "priority": view.priority,
            "last_used": view.last_used,
            "slots": _runs(view.slots, self.runs),
            "hidden": view.hidden,
            "hidden_tokens": view.hidden_tokens,
        }
        if view.tombstones:
            out["tombstones"] = [[first, stop] for first, stop in view.tombstones]
        if view.checkpoint:
            out["checkpoint_bytes"] = self.state_bytes
        if view.parent_id is None:
            out["namespace"] = self.namespace(view.namespace)
        if self.texts:
            out["text"], out["cut"] = self.text(view.ids)
        return out

    def text(self, ids: Sequence[int]) -> tuple[str, bool]:
        """The beginning of a text, and whether there is more. O(what is shown): the engine's thread
        waits for the interpreter meanwhile.
        """
        decoder, text = _decoder("replace"), ""
        ids = ids[: _UTF8_BYTES * (self.characters + 1)]
        for at in range(0, len(ids), _TOKENS_AT_ONCE):
            text += decoder.decode(self.tokenizer.spelled(ids[at : at + _TOKENS_AT_ONCE]))
            if len(text) > self.characters:
                return text[: self.characters], True
        text += decoder.decode(b"", final=True)
        return text[: self.characters], len(text) > self.characters

    def namespace(self, namespace: Hashable) -> NamespaceOut:
        """The namespace without the owner's name."""
        named = namespace if isinstance(namespace, Namespace) else Namespace()
        own = named._replace(cache_salt=named.cache_salt.removeprefix(self.within or ""))
        return cast("NamespaceOut", own._asdict())


def load(stats: EngineStats) -> TreeLoad:
    return {
        "capacity": stats.kv_capacity,
        "free": stats.kv_free,
        "private": stats.kv_private,
        "locked": stats.kv_locked,
        "evictable": stats.kv_evictable,
        "pinned": stats.kv_pinned,
        "host": stats.host_tokens,
        "host_capacity": stats.host_capacity,
        "disk": stats.disk_tokens,
        "disk_capacity": stats.disk_capacity,
        "running": stats.running,
        "waiting": stats.waiting,
    }


def totals(stats: EngineStats) -> TreeTotals:
    return {**load(stats), "ghosts": stats.ghost_tokens, "nodes": stats.tree_nodes}


def _state(view: NodeView) -> State:
    if view.lock_ref > view.pins:
        return "running"
    if view.pins:
        return "pinned"
    if view.resident or not view.edge:
        return "cached"
    if view.stored[Place.HOST]:
        return "host"
    return "disk" if view.stored[Place.DISK] else "ghost"


def _runs(slots: Slots, most: int) -> list[Run]:
    """The first runs of consecutive slots, [first, last + 1]."""
    if not slots.size:
        return []
    breaks = np.flatnonzero(np.diff(slots) != 1)[:most]
    firsts = slots[[0, *(breaks + 1)]][:most]
    ends = slots[[*breaks, -1]][:most] + 1
    return list(zip(firsts.tolist(), ends.tolist(), strict=True))


def search(
    q: str, nodes: Sequence[NodeView], tokenizer: Tokenizer, *, limit: int, clock: Clock
) -> SearchOut:
    """Nodes in whose text `q` ends; it may begin in those above. Each before its children.

    The first place in a node counts. O(length of all texts), for MAX_SECONDS at most.
    """
    wanted = q.encode()
    keep = len(wanted) - 1 + _CONTEXT_BYTES
    tails: dict[int, bytes] = {}
    matches: list[SearchHit] = []
    until = clock.now() + MAX_SECONDS
    searched = 0
    for view in nodes:
        if len(matches) > limit or clock.now() > until:
            break
        searched += 1
        above = b"" if view.parent_id is None else tails.get(view.parent_id, b"")
        own = tokenizer.spelled(view.tokens)
        text = above + own
        tails[view.id] = text[-keep:]
        at = text.find(wanted, max(len(above) - len(wanted) + 1, 0))
        if at >= 0:
            end = at + len(wanted)
            matches.append(
                {
                    "node_id": view.id,
                    "start": view.start,
                    "before": _readable(text[max(at - _CONTEXT_BYTES, 0) : at]),
                    "match": q,
                    "after": _readable(text[end : end + _CONTEXT_BYTES]),
                }
            )
    hidden = any(view.hidden for view in nodes)
    return {
        "object": "cache.search",
        "q": q,
        "searched": searched,
        "complete": searched == len(nodes) and len(matches) <= limit and not hidden,
        "matches": matches[:limit],
    }


def _readable(data: bytes) -> str:
    """Cut anywhere: what is no whole character at the ends is left out."""
    return data.decode(errors="ignore")
