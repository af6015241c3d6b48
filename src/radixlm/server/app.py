"""The HTTP application over an engine."""

from __future__ import annotations

import time

from fastapi import FastAPI

from radixlm.build import AsyncEngine
from radixlm.core.clock import WallClock
from radixlm.server.errors import install_error_handlers
from radixlm.server.metrics import Metrics
from radixlm.server.native_routes import router as native_router
from radixlm.server.routes import router
from radixlm.server.service import Service


def create_app(engine: AsyncEngine, *, served_model_name: str) -> FastAPI:
    """The routes over `engine`, which stays the caller's to close.

    served_model_name: the name that clients ask for.
    """
    app = FastAPI(title="RadixLM", docs_url=None, redoc_url=None, openapi_url=None)
    app.state.service = Service(
        engine=engine,
        model_name=served_model_name,
        metrics=Metrics(engine.stats, served_model_name),
        clock=WallClock(),
        created=int(time.time()),
    )
    app.include_router(router)
    app.include_router(native_router)
    install_error_handlers(app)
    return app
