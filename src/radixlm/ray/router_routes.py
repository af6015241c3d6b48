"""Routes to what the router knows, and metrics by replica."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, replace
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from fastapi.responses import JSONResponse
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from pydantic import Field
from starlette.responses import Response
from typing_extensions import TypedDict

from radixlm.core.errors import EngineDeadError, QueueFullError
from radixlm.ray.replicated_engine import ReplicatedEngine
from radixlm.routing import Offer, Prefix, ReplicaStatus
from radixlm.server.bodies.protocol import CacheParams
from radixlm.server.http.body import DIGITS, Body
from radixlm.server.http.routes import Route, noted
from radixlm.server.insight.metrics import PREFIX
from radixlm.server.pages import tree_nodes
from radixlm.server.pages.tree_routes import seen_by
from radixlm.server.pipeline.service import service_of, tenant_of


class ReplicaOut(TypedDict):
    """silent_seconds: since its last report; one that is not healthy is not chosen. requests,
    queue_tokens: what was sent to it and has not ended. chosen: how often, by why. The rest is what
    it has reported of its cache.
    """

    replica: str
    silent_seconds: float
    is_healthy: bool
    requests: int
    queue_tokens: float
    chosen: dict[str, int]
    cached_tokens: int
    capacity_tokens: int
    nodes: int
    hit_rate: float
    running: int
    waiting: int


class ReplicasOut(TypedDict):
    replicas: list[ReplicaOut]


class OffersOut(TypedDict):
    prompt_tokens: int
    offers: list[Offer]


class PrefixOut(TypedDict):
    """above: its parent's place in the list. start: where it begins in a prompt. below_tokens: in
    it and below it; cached_tokens: the same that a replica has, by replica. Who is in it has all of
    the prefix. coming: those that are about to compute it.
    """

    above: int | None
    namespace: tree_nodes.NamespaceOut
    start: int
    tokens: int
    text: str
    cut: bool
    below_tokens: int
    cached_tokens: dict[str, int]
    coming: list[str]


class PrefixesOut(TypedDict):
    """The heaviest, each after its parent. nodes: of the router's tree; looked_at: those of them
    that were looked at, next to the roots; sizes are of these.
    """

    nodes: int
    looked_at: int
    prefixes: list[PrefixOut]


class PrefixParams(Body):
    """GET /router/prefixes."""

    limit: Annotated[int, Field(ge=1, le=200), DIGITS] = 20


class RouteBody(CacheParams):
    """A prompt to be routed: text, or token ids."""

    prompt: Annotated[str | list[int], Field(min_length=1)]


def routes_over(engine: ReplicatedEngine) -> list[Route]:
    """The routes to what the router of this engine knows."""
    router = APIRouter(route_class=Route)

    @router.get("/router/replicas", response_model=ReplicasOut, responses=noted(admin=True))
    async def replicas(request: Request) -> Response:
        """All replicas, and what is queued and cached there."""
        service_of(request).check_admin(request)
        return JSONResponse({"replicas": [_replica_out(each) for each in engine.replicas()]})

    @router.get(
        "/router/prefixes",
        response_model=PrefixesOut,
        responses=noted(EngineDeadError, QueueFullError, admin=True),
    )
    async def prefixes(request: Request, params: Annotated[PrefixParams, Query()]) -> Response:
        """List which prefix lives where: the heaviest branches of what all replicas hold."""
        service, query = service_of(request), replace(seen_by(request), max_nodes=params.limit)
        found = await engine.prefixes(query)
        writer = tree_nodes.NodeWriter(engine.tokenizer, within=query.within)
        shown = await service.pages.run(lambda: [_prefix_out(e, writer) for e in found.prefixes])
        out: PrefixesOut = {"nodes": found.nodes, "looked_at": found.looked_at, "prefixes": shown}
        return JSONResponse(out)

    @router.post(
        "/router/explain",
        response_model=OffersOut,
        responses=noted(EngineDeadError, example={"prompt": "The capital of France is"}),
    )
    async def explain(request: Request, body: RouteBody) -> Response:
        """Explain where a prompt would go, and what it would cost each replica; it is not run."""
        service, tenant = service_of(request), tenant_of(request)
        key = service.key(body.prompt, add_special_tokens=True, param="prompt")
        namespace = service.isolated(service.namespace_of(body), tenant)
        offers = sorted(await engine.offers(namespace, key), key=lambda offer: offer.cost)
        return JSONResponse({"prompt_tokens": key.size, "offers": list(map(asdict, offers))})

    return [route for route in router.routes if isinstance(route, Route)]


def _prefix_out(each: Prefix, writer: tree_nodes.NodeWriter) -> PrefixOut:
    text, cut = writer.text(memoryview(each.edge).cast("i"))
    return {
        "above": each.above,
        "namespace": writer.namespace(each.namespace),
        "start": each.start,
        "tokens": each.tokens,
        "text": text,
        "cut": cut,
        "below_tokens": each.below,
        "cached_tokens": each.cached,
        "coming": each.coming,
    }


def _replica_out(each: ReplicaStatus) -> ReplicaOut:
    stats = each.stats
    return {
        "replica": each.replica,
        "silent_seconds": each.silent,
        "is_healthy": each.healthy,
        "requests": each.requests,
        "queue_tokens": each.queue,
        "chosen": {str(why): count for why, count in each.chosen.items()},
        "cached_tokens": stats.kv_locked + stats.kv_evictable if stats else 0,
        "capacity_tokens": stats.kv_capacity if stats else 0,
        "nodes": stats.tree_nodes if stats else 0,
        "hit_rate": stats.hit_rate if stats else 0.0,
        "running": stats.running if stats else 0,
        "waiting": stats.waiting if stats else 0,
    }


def replica_metrics(replicas: Iterable[ReplicaStatus]) -> Iterator[Metric]:
    """The metrics with a label for the replica."""
    known = list(replicas)
    rows: list[Mapping[str, Any]] = [_replica_out(each) for each in known]
    for name, text, field in (
        (
            "router_replica_requests",
            "Requests that were sent there and have not ended.",
            "requests",
        ),
        ("router_replica_queue_tokens", "Tokens that are to be computed there.", "queue_tokens"),
        ("replica_cached_tokens", "Tokens in a replica's cache.", "cached_tokens"),
        ("replica_cache_hit_rate", "Cached prompt tokens / prompt tokens.", "hit_rate"),
        ("replica_num_running_reqs", "Requests that run in a replica.", "running"),
        ("replica_num_queue_reqs", "Requests that wait in a replica.", "waiting"),
    ):
        family = GaugeMetricFamily(PREFIX + name, text, labels=["replica"])
        for row in rows:
            family.add_metric([row["replica"]], row[field])
        yield family
    chosen = CounterMetricFamily(
        PREFIX + "router_decisions", "Requests by replica and why.", labels=["replica", "why"]
    )
    for each in known:
        for why, count in each.chosen.items():
            chosen.add_metric([each.replica, str(why)], count)
    yield chosen
