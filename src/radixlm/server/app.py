"""The HTTP application over an engine."""

from __future__ import annotations

import time

from fastapi import FastAPI
from fastapi.responses import JSONResponse, Response
from starlette.types import ASGIApp

from radixlm.build import AsyncEngine
from radixlm.core.clock import WallClock
from radixlm.server.config import ServerConfig
from radixlm.server.envelope import Envelope
from radixlm.server.errors import install_error_handlers
from radixlm.server.metrics import Metrics
from radixlm.server.native_routes import router as native_router
from radixlm.server.pace import Pace
from radixlm.server.routes import router
from radixlm.server.service import Service, fingerprint_of, sampling_defaults_of


def create_app(
    engine: AsyncEngine, *, served_model_name: str, config: ServerConfig | None = None
) -> ASGIApp:
    """The routes over `engine`, which stays the caller's to close.

    served_model_name: the name that clients ask for. config: keys, limits and logs are taken from
    it; without one, the flags' defaults. Raises ModelError for sampling that the model recommends
    and no request could have.
    """
    config = config or ServerConfig()
    clock = WallClock()
    service = Service(
        engine=engine,
        model_name=served_model_name,
        metrics=Metrics(engine.stats, served_model_name),
        clock=clock,
        created=int(time.time()),
        config=config,
        pace=Pace(clock),
        sampling_defaults=sampling_defaults_of(engine.info, config),
        fingerprint=fingerprint_of(engine.info),
    )
    app = FastAPI(title="RadixLM", docs_url=None, redoc_url=None, openapi_url=None)
    app.state.service = service
    app.include_router(router)
    app.include_router(native_router)
    app.add_api_route("/ping", _ping, methods=["GET", "HEAD"])
    install_error_handlers(app, service.retry_after)
    return Envelope(app, config, clock)


async def _ping() -> Response:
    """200 for as long as the process answers, whatever the engine does; see /health."""
    return JSONResponse({"status": "ok"})
