"""The HTTP application over an engine."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

from fastapi import FastAPI
from prometheus_client.core import Metric
from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp

from radixlm.server.anthropic.messages_routes import router as messages_router
from radixlm.server.batches.asking import Asking, Batches
from radixlm.server.batches.batch_routes import router as batches_router
from radixlm.server.batches.file_routes import router as files_router
from radixlm.server.config.server_config import ServerConfig
from radixlm.server.embeddings.embeddings_routes import router as embeddings_router
from radixlm.server.embeddings.score_routes import router as score_router
from radixlm.server.explain import router as explain_router
from radixlm.server.http.envelope import Envelope
from radixlm.server.http.openapi import Served, document
from radixlm.server.http.routes import ReadLimits, Route, install_error_handlers
from radixlm.server.http.tracing import Tracing
from radixlm.server.insight.recorder import Recorder
from radixlm.server.kv_events.publisher import KVEventCounts
from radixlm.server.ollama.ollama_routes import router as ollama_router
from radixlm.server.openai.openai_routes import router
from radixlm.server.pages.tree_routes import router as cache_router
from radixlm.server.pages.ui_routes import router as ui_router
from radixlm.server.pipeline.served_engine import ServedEngine
from radixlm.server.pipeline.service import Service
from radixlm.server.responses.conversation_routes import router as conversations_router
from radixlm.server.responses.response_store import ResponseStore
from radixlm.server.responses.responses_routes import router as responses_router
from radixlm.server.sglang.sglang_routes import router as native_router
from radixlm.server.sglang.tokenize import router as tokenize_router

_ROUTERS = (
    router,
    responses_router,
    conversations_router,
    messages_router,
    embeddings_router,
    score_router,
    ollama_router,
    files_router,
    batches_router,
    native_router,
    tokenize_router,
    explain_router,
    cache_router,
)
# All of the API: what /openapi.json tells, and a 405 allows.
API_ROUTES = [route for each in _ROUTERS for route in each.routes if isinstance(route, Route)]


def create_app(
    engine: ServedEngine,
    *,
    served_model_name: str,
    config: ServerConfig | None = None,
    responses: ResponseStore | None = None,
    batches: Batches | None = None,
    kv_events: KVEventCounts | None = None,
    recorder: Recorder | None = None,
    tracing: Tracing | None = None,
    more_routes: Sequence[Route] = (),
    more_metrics: Callable[[], Iterable[Metric]] = tuple,
) -> ASGIApp:
    """The routes over `engine`, which stays the caller's to close.

    served_model_name: the name that clients ask for. config: keys, limits and logs are taken from
    it; without one, the flags' defaults. responses: the stored ones, which stay the caller's to
    close; without it they are kept in memory. batches: without it their routes refuse, files' too.
    kv_events: what was published, for the metrics. recorder: takes requests that have ended;
    tracing: their spans; the caller's to close, both.
    more_routes, more_metrics: of an engine that is several.
    Raises ModelError for sampling that the model recommends and no request could have.
    """
    config = config or ServerConfig()
    counts = [kv_events, None if recorder is None else recorder.counts]
    service = Service(
        engine,
        served_model_name,
        config,
        [each for each in counts if each is not None],
        recorder=recorder,
        tracing=tracing,
        more_metrics=more_metrics,
    )
    api_routes = [*API_ROUTES, *more_routes]
    app = FastAPI(title="RadixLM", docs_url=None, redoc_url=None)
    app.openapi = _documented(service, api_routes)  # type: ignore[method-assign]
    app.state.service, app.state.batches = service, batches
    in_memory = replace(config, response_store=None)
    app.state.responses = responses or ResponseStore.from_config(in_memory)
    if batches is not None:
        batches.connect(Asking(app, service))
    app.state.read_limits = ReadLimits(
        service.max_request_bytes, config.body_timeout, config.strict_fields
    )
    # As they are: FastAPI's include_router would make all their schemas anew for each application.
    app.router.routes.extend(api_routes)
    app.router.routes.extend(ui_router.routes)  # a page is no part of the API
    install_error_handlers(app, api_routes, service.retry_after)
    wrapped = Envelope(app, config, service.keys, service.clock, tracing)
    if not config.cors_origin:
        return wrapped
    return CORSMiddleware(  # around it: a browser must be allowed to read refusals, too
        wrapped,
        allow_origins=config.cors_origin,
        allow_methods=["GET", "POST", "PUT", "DELETE"],
        allow_headers=["*"],
        allow_private_network=True,
        expose_headers=["x-request-id", "request-id", "retry-after"],
    )


def _documented(service: Service, routes: Sequence[Route]) -> Callable[[], dict[str, Any]]:
    """The function that gives /openapi.json, which names the adapters that are loaded, and lengths
    that fit.
    """

    @lru_cache(maxsize=1)
    def document_for(served: Served) -> dict[str, Any]:
        return document(routes, service.config, served)

    engine = service.engine
    return lambda: document_for(
        Served(service.model_names, engine.info.vocab_size, engine.limits.longest)
    )
