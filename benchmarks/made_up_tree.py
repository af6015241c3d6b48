"""A made-up cache behind the real page: a tree of a given size that changes at a given pace."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from radixlm.server.http.sse import event
from radixlm.server.pages.ui_routes import PAGE, part_response

Json = dict[str, Any]

CAPACITY = 2_000_000
RUNNING = 32
_STATES = ("cached", "cached", "cached", "running")  # ghosts have no bars, and all are to have one
_TEXT = "Answer in one short sentence. Name the source of each fact. Never guess a number."


class MadeUpTree:
    """Leaves come and go, requests move on; as many nodes at all times."""

    def __init__(self, nodes: int, seed: int = 0) -> None:
        self._random = random.Random(seed)
        self._nodes: dict[int, Json] = {}
        self._leaves: list[int] = []
        self._next = 1
        self._version = 0
        self._sequence = 0
        for _ in range(8):
            self._grow(None, 400)
        while len(self._nodes) < nodes:
            self._grow(self._random.choice(list(self._nodes)[: len(self._nodes) // 3 + 8]), 40)
        parents = {node["parent_id"] for node in self._nodes.values()}
        self._leaves = [name for name in self._nodes if name not in parents]
        self._steady = [name for name in self._nodes if name in parents]

    def _grow(self, parent: int | None, most: int) -> Json:
        above = self._nodes.get(parent or 0)
        state = self._random.choice(_STATES)
        tokens = self._random.randint(4, most)
        node: Json = {
            "id": self._next,
            "parent_id": parent,
            "start": 0 if above is None else above["start"] + above["tokens"],
            "tokens": tokens,
            "resident": tokens,
            "on_host": 0,
            "on_disk": 0,
            "state": state,
            "lock_ref": int(state == "running"),
            "pins": 0,
            "hits": self._random.randint(0, 50),
            "priority": 0,
            "last_used": self._next,
            "slots": [],
            "hidden": 0,
            "hidden_tokens": 0,
            "text": f"{self._next}. {_TEXT}",
            "cut": False,
        }
        if parent is None:
            node["namespace"] = {"adapter_id": "", "cache_salt": "", "extra_key": ""}
        self._nodes[self._next] = node
        self._next += 1
        return node

    def snapshot(self) -> Json:
        return {
            **self._moment(),
            "object": "cache.tree",
            "page_size": 1,
            "dropped": 0,
            "path": [],
            "nodes": list(self._nodes.values()),
            "requests": self._requests(),
        }

    def changes(self, count: int) -> Json:
        """So many leaves go, and as many come."""
        removed = []
        for _ in range(count):
            place = self._random.randrange(len(self._leaves))
            self._leaves[place], self._leaves[-1] = self._leaves[-1], self._leaves[place]
            removed.append(self._leaves.pop())
            del self._nodes[removed[-1]]
        fresh = [self._grow(self._random.choice(self._steady), 40) for _ in range(count)]
        self._leaves.extend(node["id"] for node in fresh)
        self._version += 1
        return {**self._moment(), "removed": removed, "nodes": fresh}

    def progress(self) -> Json:
        self._sequence += 1
        running = self._requests()
        return {"seq": self._sequence, "events": [], "running": running, "waiting": 3}

    def stats(self) -> Json:
        return {
            **self._moment()["totals"],
            "seq": self._sequence,
            "seconds": 1.0,
            "hit_rate": self._random.uniform(0.5, 0.9),
            "prompt_tokens": 4_000,
            "cached_tokens": 3_000,
            "computed_tokens": 1_100,
            "generated_tokens": 900,
            "generated_tokens_per_s": 900.0,
            "evicted_tokens": self._random.randint(0, 400),
            "dropped": 0,
        }

    def _moment(self) -> Json:
        self._sequence += 1
        totals = {
            "capacity": CAPACITY,
            "free": CAPACITY // 4,
            "private": 4_000,
            "locked": CAPACITY // 4,
            "evictable": CAPACITY // 2 - 4_000,
            "pinned": 0,
            "host": 0,
            "host_capacity": 0,
            "disk": 0,
            "disk_capacity": 0,
            "ghosts": 9_000,
            "nodes": len(self._nodes),
            "running": RUNNING,
            "waiting": 3,
        }
        return {
            "seq": self._sequence,
            "version": self._version,
            "uses": self._next,
            "totals": totals,
        }

    def _requests(self) -> list[Json]:
        return [
            {
                "id": f"req-{place}",
                "node_id": self._steady[place],
                "prompt_tokens": 500,
                "cached_tokens": 300,
                "computed_tokens": 300 + self._version % 300,
                "output_tokens": self._version % 100,
            }
            for place in range(RUNNING)
        ]


def made_up_server(tree: MadeUpTree, events_per_second: float, changed: int) -> Starlette:
    """The page, and a stream of so many events a second; every other one changes the tree by
    `changed` nodes, as many go as come.
    """

    async def told() -> AsyncIterator[bytes]:
        yield event(tree.snapshot(), "snapshot")
        place = 0
        while True:
            await asyncio.sleep(1 / events_per_second)
            place += 1
            if place % int(events_per_second) == 0:
                yield event(tree.stats(), "stats")
            elif place % 2:
                yield event(tree.changes(changed), "tree")
            else:
                yield event(tree.progress(), "requests")

    async def stream(_request: Request) -> Response:
        return StreamingResponse(told(), media_type="text/event-stream")

    async def page(request: Request) -> Response:
        return part_response(PAGE, request)

    async def part(request: Request) -> Response:
        return part_response(request.path_params["name"], request)

    async def snapshot(_request: Request) -> Response:
        return Response(json.dumps(tree.snapshot()), media_type="application/json")

    async def model(_request: Request) -> Response:
        info = {"served_model_name": "made up", "max_model_len": 4096, "kv_tokens": CAPACITY}
        return JSONResponse(info)

    return Starlette(
        routes=[
            Route("/ui", page),
            Route("/ui/{name:path}", part),
            Route("/cache/events", stream),
            Route("/cache/tree", snapshot),
            Route("/get_model_info", model),
        ]
    )
