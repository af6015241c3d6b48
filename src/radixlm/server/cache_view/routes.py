"""GET /cache/...: the radix tree, once and live."""

from __future__ import annotations

import asyncio
import re
from dataclasses import replace

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response

from radixlm.server.cache_view.nodes import NodeWriter
from radixlm.server.cache_view.query import SEARCHED_NODES, SearchParams, seen_by, tree_query
from radixlm.server.cache_view.search import search
from radixlm.server.cache_view.stream import EventWriter, WatchStream, tree_json
from radixlm.server.cache_view.wire import NodeWhole
from radixlm.server.errors import NotFoundError
from radixlm.server.event import event
from radixlm.server.exchange import exchange_of
from radixlm.server.head import HeadRoute
from radixlm.server.query import query_of
from radixlm.server.service import service_of
from radixlm.server.sse import ClientGoneError, until_disconnect

WHOLE_CHARACTERS = 20_000
WHOLE_RUNS = 1_000
_NODE_ID = re.compile(r"[0-9]{1,18}", re.ASCII)

router = APIRouter(route_class=HeadRoute)
streams = APIRouter()


@router.get("/cache/tree")
async def cache_tree(request: Request) -> Response:
    """The radix tree and the requests in it, of one moment."""
    service = service_of(request)
    query, texts = tree_query(request)
    scene = await service.engine.look(query)
    writer = NodeWriter(service.engine.tokenizer, texts=texts, within=query.within)
    return Response(
        await asyncio.to_thread(tree_json, scene, writer), media_type="application/json"
    )


@streams.get("/cache/events")
async def cache_events(request: Request) -> Response:
    """The same, and then what changes of it, as server-sent events."""
    service = service_of(request)
    query, texts = tree_query(request)
    writer = NodeWriter(service.engine.tokenizer, texts=texts, within=query.within)
    told = EventWriter(service, writer, service.clock)
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
        told.events(viewer, first),
        end_with=lambda error: event(errors.body(error), "error"),
    )


@router.get("/cache/node/{node_id}")
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


@router.get("/cache/search")
async def cache_search(request: Request) -> Response:
    """Nodes by their text."""
    service = service_of(request)
    params = query_of(request, SearchParams)
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
