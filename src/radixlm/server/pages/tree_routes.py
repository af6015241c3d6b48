"""The routes that show the cache: /cache/tree, /cache/events with its changes, /cache/node,
/cache/search.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, Mapping
from contextlib import closing
from dataclasses import asdict, replace
from functools import partial
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Request
from fastapi.responses import JSONResponse, Response
from pydantic import Field

from radixlm.core.errors import EngineDeadError, InvalidRequestError, NodeGoneError, QueueFullError
from radixlm.core.reports import Arrived, Event, Finished, Retracted, Scheduled, TreeQuery
from radixlm.engine.watching import Scene, SceneChange
from radixlm.server.http.body import DIGITS, Body
from radixlm.server.http.envelope import exchange_of
from radixlm.server.http.http_errors import NotFoundError
from radixlm.server.http.routes import Route, noted
from radixlm.server.http.sse import EventStream, compact, event, framed
from radixlm.server.insight.usage import DraftedTokens
from radixlm.server.pages import tree_nodes
from radixlm.server.pipeline.service import Service, service_of, tenant_of

DEFAULT_NODES = 10_000
MOST_NODES = 50_000
SEARCHED_NODES = 10_000
WHOLE_CHARACTERS = 20_000
WHOLE_RUNS = 1_000
SECONDS_BETWEEN_STATS = 1.0
# The engine looks between two steps: whether a node is there is known that late.
_UNTIL_SEEN = 10.0
# Writing these in the event loop holds it up for less than handing them to a thread does.
_FEW_NODES = 50
_NODE_ID = re.compile(r"[0-9]{1,18}", re.ASCII)
_LOOKING = (InvalidRequestError, QueueFullError, EngineDeadError)


# Whose tree; see TreeQuery.
Replica = Annotated[str, Field(min_length=1, max_length=64)] | None


class TreeParams(Body):
    """GET /cache/tree and /cache/events."""

    depth: Annotated[int, Field(ge=0, le=1_000_000), DIGITS] | None = None
    min_tokens: Annotated[int, Field(ge=0, le=2**31), DIGITS] = 0
    node: Annotated[int, Field(ge=1, le=2**62), DIGITS] | None = None
    max_nodes: Annotated[int, Field(ge=1, le=MOST_NODES), DIGITS] = DEFAULT_NODES
    text: Literal["true", "false"] = "true"
    replica: Replica = None


class NodeParams(Body):
    """GET /cache/node/{node_id}."""

    replica: Replica = None


class SearchParams(Body):
    """GET /cache/search."""

    q: Annotated[str, Field(min_length=1, max_length=200)]
    limit: Annotated[int, Field(ge=1, le=100), DIGITS] = 20
    replica: Replica = None


def seen_by(request: Request) -> TreeQuery:
    """All that a request may see: its key's own namespace, or everybody's.

    Raises AdminKeyNeededError where all keys share one cache and this one is no admin's.
    """
    service, tenant = service_of(request), tenant_of(request)
    if not service.sees_all(request):
        return TreeQuery(within=service.salt_of(tenant), salted=False)
    return TreeQuery(salted=service.sees_salted(tenant))


def _shown(request: Request, params: TreeParams) -> tuple[TreeQuery, tree_nodes.NodeWriter]:
    """The part of the tree to show, and its writer. Raises AdminKeyNeededError."""
    query = replace(
        seen_by(request),
        max_depth=params.depth,
        min_tokens=params.min_tokens,
        node=params.node,
        max_nodes=params.max_nodes,
        replica=params.replica,
    )
    writer = _writer(service_of(request), query)
    return query, replace(writer, texts=params.text == "true")


def _writer(service: Service, query: TreeQuery) -> tree_nodes.NodeWriter:
    engine, info = service.engine, service.engine.info
    state_bytes = info.mamba_bytes // max(info.mamba_slots, 1)
    return tree_nodes.NodeWriter(engine.tokenizer, within=query.within, state_bytes=state_bytes)


def tree_json(scene: Scene, writer: tree_nodes.NodeWriter, **more: int) -> bytes:
    """A scene as one JSON object. Node by node: one call for all of it would not let the engine's
    thread have the interpreter for as long as it takes.
    """
    tree = scene.tree
    head: dict[str, Any] = {
        "object": "cache.tree",
        "version": tree.version,
        "uses": tree.uses,
        "page_size": tree.page_size,
        "totals": tree_nodes.totals(scene.stats),
        "path": [writer.node(view) for view in tree.path],
        "requests": [asdict(view) for view in scene.running],
        **more,
    }
    nodes = b",".join(compact(writer.node(view)) for view in tree.nodes)
    return compact(head)[:-1] + b',"nodes":[' + nodes + b"]}"


class EventWriter:
    """Writes what one viewer sees, numbered."""

    def __init__(self, request: Request, params: TreeParams) -> None:
        """Raises AdminKeyNeededError."""
        service = service_of(request)
        self._engine, self._clock, self._pages = service.engine, service.clock, service.pages
        self._query, self._writer = _shown(request, params)
        self._seq = 0
        self._since = self._clock.now()
        self._before = self._engine.stats()

    async def events(self) -> AsyncGenerator[bytes, None]:
        """All events from the first scene on; endless."""
        with closing(self._engine.watch(self._query)) as viewer:
            seen: Scene | SceneChange | None = await viewer.next()
            while True:
                if seen is not None:
                    for each in await self._written(seen, viewer.dropped):
                        yield each
                left = self._since + SECONDS_BETWEEN_STATS - self._clock.now()
                if left <= 0:
                    yield event(self._stats(viewer.dropped), "stats")
                    left = SECONDS_BETWEEN_STATS
                try:
                    seen = await asyncio.wait_for(viewer.next(), left)
                except TimeoutError:
                    seen = None

    async def _written(self, seen: Scene | SceneChange, dropped: int) -> list[bytes]:
        if isinstance(seen, Scene):
            more = {"seq": self._number(), "dropped": dropped}
            whole = await self._pages.run(partial(tree_json, seen, self._writer, **more))
            return [framed(whole, "snapshot")]
        events = []
        if (change := seen.tree) is not None:
            if len(change.nodes) <= _FEW_NODES:
                nodes = [self._writer.node(view) for view in change.nodes]
            else:
                nodes = await self._pages.run(lambda: list(map(self._writer.node, change.nodes)))
            tree: tree_nodes.TreeEvent = {
                "seq": self._number(),
                "version": change.version,
                "uses": change.uses,
                "removed": list(change.removed),
                "nodes": nodes,
                "totals": tree_nodes.totals(seen.stats),
            }
            events.append(event(tree, "tree"))
        if seen.events or seen.lost or seen.running:
            requests = {
                "seq": self._number(),
                "events": [_happened(each) for each in seen.events],
                "lost": seen.lost,
                "running": [asdict(view) for view in seen.running],
                "waiting": seen.stats.waiting,
            }
            events.append(event(requests, "requests"))
        return events

    def _stats(self, dropped: int) -> tree_nodes.StatsEvent:
        now, stats = self._clock.now(), self._engine.stats()
        before, self._before = self._before, stats
        seconds, self._since = now - self._since, now
        prompt = stats.prompt_tokens - before.prompt_tokens
        cached = stats.cached_tokens - before.cached_tokens
        generated = stats.output_tokens - before.output_tokens
        return {
            **tree_nodes.load(stats),
            "seq": self._number(),
            "seconds": round(seconds, 3),
            "hit_rate": cached / prompt if prompt else None,
            "prompt_tokens": prompt,
            "cached_tokens": cached,
            "computed_tokens": stats.computed_tokens - before.computed_tokens,
            "generated_tokens": generated,
            "generated_tokens_per_s": round(generated / seconds, 3),
            "evicted_tokens": stats.evicted_tokens - before.evicted_tokens,
            "drafts": _drafts_since(before.accepted_of, stats.accepted_of),
            "dropped": dropped,
        }

    def _number(self) -> int:
        self._seq += 1
        return self._seq


def _drafts_since(
    before: Mapping[str, tuple[int, int]], now: Mapping[str, tuple[int, int]]
) -> dict[str, DraftedTokens]:
    """The drafts since then, by source."""
    changes = {}
    for source, (drafted, accepted) in now.items():
        first, right = before.get(source, (0, 0))
        if drafted > first:
            changes[source] = DraftedTokens(
                drafted_tokens=drafted - first, accepted_tokens=accepted - right
            )
    return changes


def _happened(happened: Event) -> tree_nodes.HappenedOut:
    match happened:
        case Arrived(name, prompt_tokens):
            return {"type": "arrived", "id": name, "prompt_tokens": prompt_tokens}
        case Scheduled(name, start, _, again):
            return {"type": "scheduled", "id": name, "cached_tokens": start, "again": again}
        case Retracted(name, computed):
            return {"type": "retracted", "id": name, "computed_tokens": computed}
        case Finished(name, reason, tokens):
            return {"type": "finished", "id": name, "reason": reason, "output_tokens": tokens}


router = APIRouter(route_class=Route)


@router.get(
    "/cache/tree",
    response_model=tree_nodes.TreeOut,
    responses=noted(*_LOOKING, NodeGoneError, admin=True),
)
async def cache_tree(request: Request, params: Annotated[TreeParams, Query()]) -> Response:
    """The radix tree and the requests in it, of one moment."""
    query, writer = _shown(request, params)
    service = service_of(request)
    scene = await service.engine.look(query)
    whole = await service.pages.run(lambda: tree_json(scene, writer))
    return Response(whole, media_type="application/json")


@router.get(
    "/cache/events",
    response_model=tree_nodes.TreeOut,
    responses=noted(*_LOOKING, NodeGoneError, events=tree_nodes.CacheEvent, admin=True),
)
async def cache_events(request: Request, params: Annotated[TreeParams, Query()]) -> Response:
    """The same, and then what changes of it, as server-sent events."""
    errors = exchange_of(request).errors
    return EventStream(
        EventWriter(request, params).events(),
        lambda error: event(errors.body(error), "error"),
        interval=service_of(request).config.sse_keep_alive_interval,
        patience=_UNTIL_SEEN,
    )


@router.get(
    "/cache/node/{node_id}",
    response_model=tree_nodes.NodeWhole,
    responses=noted(*_LOOKING, NotFoundError, admin=True),
)
async def cache_node(
    request: Request, node_id: str, params: Annotated[NodeParams, Query()]
) -> Response:
    """One node, with all of its text."""
    service = service_of(request)
    if not _NODE_ID.fullmatch(node_id):
        raise NotFoundError(f"there is no node {node_id!r:.80}", param="node_id")
    query = replace(seen_by(request), node=int(node_id), max_depth=0, max_nodes=1)
    query = replace(query, replica=params.replica)
    tree = (await service.engine.look(query)).tree
    writer = replace(_writer(service, query), characters=WHOLE_CHARACTERS, runs=WHOLE_RUNS)
    node = await service.pages.run(lambda: writer.node(tree.nodes[0]))
    whole: tree_nodes.NodeWhole = {**node, "path": [view.id for view in tree.path]}
    return JSONResponse(whole)


@router.get(
    "/cache/search", response_model=tree_nodes.SearchOut, responses=noted(*_LOOKING, admin=True)
)
async def cache_search(request: Request, params: Annotated[SearchParams, Query()]) -> Response:
    """Nodes by their text."""
    service = service_of(request)
    query = replace(seen_by(request), max_nodes=SEARCHED_NODES, replica=params.replica)
    nodes = (await service.engine.look(query)).tree.nodes
    search = partial(
        tree_nodes.search,
        params.q,
        nodes,
        service.engine.tokenizer,
        limit=params.limit,
        clock=service.clock,
    )
    return JSONResponse(await service.pages.run(search))
