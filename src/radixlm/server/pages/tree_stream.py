"""Scenes and their changes as server-sent events."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import asdict
from typing import Any

from starlette.types import Receive, Scope, Send

from radixlm.core.clock import Clock
from radixlm.core.reports import Arrived, Event, Finished, Retracted, Scheduled
from radixlm.engine.mailbox import Viewer
from radixlm.engine.watching import Scene, SceneChange
from radixlm.server.http.sse import EventStream, compact, event, framed
from radixlm.server.pages.tree_nodes import (
    HappenedOut,
    NodeWriter,
    StatsEvent,
    TreeEvent,
    load,
    totals,
)
from radixlm.server.pipeline.service import Service

SECONDS_BETWEEN_STATS = 1.0
# Writing these in the event loop holds it up for less than handing them to a thread does.
_FEW_NODES = 50


class WatchStream(EventStream):
    """The events of one viewer, which ends with them."""

    def __init__(self, viewer: Viewer, events: AsyncGenerator[bytes, None], **options: Any) -> None:
        super().__init__(events, **options)
        self._viewer = viewer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._viewer.close()


def tree_json(scene: Scene, writer: NodeWriter, **more: int) -> bytes:
    """A scene as one JSON object. Node by node: one call for all of it would not let the engine's
    thread have the interpreter for as long as it takes.
    """
    tree = scene.tree
    head: dict[str, Any] = {
        "object": "cache.tree",
        "version": tree.version,
        "uses": tree.uses,
        "page_size": tree.page_size,
        "totals": totals(scene.stats),
        "path": [writer.node(view) for view in tree.path],
        "requests": [asdict(view) for view in scene.running],
        **more,
    }
    nodes = b",".join(compact(writer.node(view)) for view in tree.nodes)
    return compact(head)[:-1] + b',"nodes":[' + nodes + b"]}"


class EventWriter:
    """Writes what one viewer sees, numbered."""

    def __init__(self, service: Service, writer: NodeWriter, clock: Clock) -> None:
        self._service = service
        self._writer = writer
        self._clock = clock
        self._seq = 0
        self._since = clock.now()
        self._before = service.engine.stats()

    async def events(
        self, viewer: Viewer, seen: Scene | SceneChange
    ) -> AsyncGenerator[bytes, None]:
        """All events from the first scene on; endless."""
        while True:
            for each in await self._written(seen, viewer.dropped):
                yield each
            found = None
            while found is None:
                left = self._since + SECONDS_BETWEEN_STATS - self._clock.now()
                if left <= 0:
                    yield event(self._stats(viewer.dropped), "stats")
                    continue
                try:
                    found = await asyncio.wait_for(viewer.next(), left)
                except TimeoutError:
                    continue
            seen = found

    async def _written(self, seen: Scene | SceneChange, dropped: int) -> list[bytes]:
        if isinstance(seen, Scene):
            more = {"seq": self._number(), "dropped": dropped}
            whole = await asyncio.to_thread(tree_json, seen, self._writer, **more)
            return [framed(whole, "snapshot")]
        events = []
        if (change := seen.tree) is not None:
            if len(change.nodes) <= _FEW_NODES:
                nodes = [self._writer.node(view) for view in change.nodes]
            else:
                nodes = await asyncio.to_thread(lambda: list(map(self._writer.node, change.nodes)))
            tree: TreeEvent = {
                "seq": self._number(),
                "version": change.version,
                "uses": change.uses,
                "removed": list(change.removed),
                "nodes": nodes,
                "totals": totals(seen.stats),
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

    def _stats(self, dropped: int) -> StatsEvent:
        now, stats = self._clock.now(), self._service.engine.stats()
        before, self._before = self._before, stats
        seconds, self._since = now - self._since, now
        prompt = stats.prompt_tokens - before.prompt_tokens
        cached = stats.cached_tokens - before.cached_tokens
        generated = stats.output_tokens - before.output_tokens
        return {
            **load(stats),
            "seq": self._number(),
            "seconds": round(seconds, 3),
            "hit_rate": cached / prompt if prompt else None,
            "prompt_tokens": prompt,
            "cached_tokens": cached,
            "computed_tokens": stats.computed_tokens - before.computed_tokens,
            "generated_tokens": generated,
            "generated_tokens_per_s": round(generated / seconds, 3),
            "evicted_tokens": stats.evicted_tokens - before.evicted_tokens,
            "dropped": dropped,
        }

    def _number(self) -> int:
        self._seq += 1
        return self._seq


def _happened(happened: Event) -> HappenedOut:
    match happened:
        case Arrived(name, prompt_tokens):
            return {"type": "arrived", "id": name, "prompt_tokens": prompt_tokens}
        case Scheduled(name, start, _, again):
            return {"type": "scheduled", "id": name, "cached_tokens": start, "again": again}
        case Retracted(name, computed):
            return {"type": "retracted", "id": name, "computed_tokens": computed}
        case Finished(name, reason, tokens):
            return {"type": "finished", "id": name, "reason": reason, "output_tokens": tokens}
