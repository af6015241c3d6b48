"""The routes that show the cache: /cache/tree, /cache/events, /cache/node, /cache/search."""

from __future__ import annotations

import asyncio
import re
from dataclasses import replace
from typing import Annotated, Literal

from fastapi import APIRouter, Query, Request
from fastapi.responses import JSONResponse, Response
from pydantic import Field

from radixlm.core.errors import (
    EngineDeadError,
    InvalidRequestError,
    NodeGoneError,
    QueueFullError,
)
from radixlm.core.reports import TreeQuery
from radixlm.server.http.body import DIGITS, Body
from radixlm.server.http.envelope import exchange_of
from radixlm.server.http.http_errors import NotFoundError
from radixlm.server.http.routes import Route, noted
from radixlm.server.http.sse import ClientGoneError, event, until_disconnect
from radixlm.server.pages.tree_nodes import (
    CacheEvent,
    NodeWhole,
    NodeWriter,
    SearchOut,
    TreeOut,
    search,
)
from radixlm.server.pages.tree_stream import EventWriter, WatchStream, tree_json
from radixlm.server.pipeline.service import service_of, tenant_of

DEFAULT_NODES = 10_000
MOST_NODES = 50_000
SEARCHED_NODES = 10_000


WHOLE_CHARACTERS = 20_000
WHOLE_RUNS = 1_000
_NODE_ID = re.compile(r"[0-9]{1,18}", re.ASCII)
_LOOKING = (InvalidRequestError, QueueFullError, EngineDeadError)


class TreeParams(Body):
    """GET /cache/tree and /cache/events."""

    depth: Annotated[int, Field(ge=0, le=1_000_000), DIGITS] | None = None
    min_tokens: Annotated[int, Field(ge=0, le=2**31), DIGITS] = 0
    node: Annotated[int, Field(ge=1, le=2**62), DIGITS] | None = None
    max_nodes: Annotated[int, Field(ge=1, le=MOST_NODES), DIGITS] = DEFAULT_NODES
    text: Literal["true", "false"] = "true"


class SearchParams(Body):
    """GET /cache/search."""

    q: Annotated[str, Field(min_length=1, max_length=200)]
    limit: Annotated[int, Field(ge=1, le=100), DIGITS] = 20


def tree_query(request: Request, params: TreeParams) -> TreeQuery:
    """What to show. Raises AdminKeyNeededError."""
    return replace(
        seen_by(request),
        max_depth=params.depth,
        min_tokens=params.min_tokens,
        node=params.node,
        max_nodes=params.max_nodes,
    )


def seen_by(request: Request) -> TreeQuery:
    """All that a request may see: its key's own namespace, or everybody's.

    Raises AdminKeyNeededError where all keys share one cache and this one is no admin's.
    """
    service, tenant = service_of(request), tenant_of(request)
    if not service.sees_all(request):
        return TreeQuery(within=service.salt_of(tenant), salted=False)
    return TreeQuery(salted=service.sees_salted(tenant))


router = APIRouter(route_class=Route)


@router.get(
    "/cache/tree",
    response_model=TreeOut,
    responses=noted(*_LOOKING, NodeGoneError, admin=True),
)
async def cache_tree(request: Request, params: Annotated[TreeParams, Query()]) -> Response:
    """The radix tree and the requests in it, of one moment."""
    service = service_of(request)
    query, texts = tree_query(request, params), params.text == "true"
    scene = await service.engine.look(query)
    writer = NodeWriter(service.engine.tokenizer, texts=texts, within=query.within)
    return Response(
        await asyncio.to_thread(tree_json, scene, writer), media_type="application/json"
    )


@router.get(
    "/cache/events",
    response_model=TreeOut,
    responses=noted(*_LOOKING, NodeGoneError, events=CacheEvent, admin=True),
)
async def cache_events(request: Request, params: Annotated[TreeParams, Query()]) -> Response:
    """The same, and then what changes of it, as server-sent events."""
    service = service_of(request)
    query, texts = tree_query(request, params), params.text == "true"
    writer = NodeWriter(service.engine.tokenizer, texts=texts, within=query.within)
    events = EventWriter(service, writer, service.clock)
    viewer = service.engine.watch(query)
    try:
        # So that what is refused still gets its own status code.
        first = await until_disconnect(request.receive, viewer.next())
    except ClientGoneError:
        viewer.close()
        return Response(status_code=499)  # nobody reads it
    except BaseException:
        viewer.close()
        raise
    errors = exchange_of(request).errors
    return WatchStream(
        viewer,
        events.events(viewer, first),
        end_with=lambda error: event(errors.body(error), "error"),
    )


@router.get(
    "/cache/node/{node_id}",
    response_model=NodeWhole,
    responses=noted(*_LOOKING, NotFoundError, admin=True),
)
async def cache_node(request: Request, node_id: str) -> Response:
    """One node, with all of its text."""
    service = service_of(request)
    if not _NODE_ID.fullmatch(node_id):
        raise NotFoundError(f"there is no node {node_id!r:.80}", param="node_id")
    query = replace(seen_by(request), node=int(node_id), max_depth=0, max_nodes=1)
    tree = (await service.engine.look(query)).tree
    writer = NodeWriter(
        service.engine.tokenizer,
        within=query.within,
        characters=WHOLE_CHARACTERS,
        runs=WHOLE_RUNS,
    )
    node = await asyncio.to_thread(writer.node, tree.nodes[0])
    whole: NodeWhole = {**node, "path": [view.id for view in tree.path]}
    return JSONResponse(whole)


@router.get(
    "/cache/search",
    response_model=SearchOut,
    responses=noted(*_LOOKING, admin=True),
)
async def cache_search(request: Request, params: Annotated[SearchParams, Query()]) -> Response:
    """Nodes by their text."""
    service = service_of(request)
    query = replace(seen_by(request), max_nodes=SEARCHED_NODES)
    nodes = (await service.engine.look(query)).tree.nodes
    found = await asyncio.to_thread(
        search,
        params.q,
        nodes,
        service.engine.tokenizer,
        limit=params.limit,
        clock=service.clock,
    )
    return JSONResponse(found)
