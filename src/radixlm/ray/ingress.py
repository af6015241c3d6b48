"""The way in: our server's routes over several replicas, as Ray Serve runs them."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

from ray import serve
from ray.serve.handle import DeploymentHandle
from starlette.types import ASGIApp

from radixlm.assembly.loading import texts_of
from radixlm.formats.model_files import files_of
from radixlm.ray.replica import Described
from radixlm.ray.replicated_engine import ReplicatedEngine
from radixlm.ray.router_handle import RouterHandle
from radixlm.ray.router_routes import replica_metrics, routes_over
from radixlm.server.app import create_app
from radixlm.server.batches.keeper import BatchKeeper
from radixlm.server.config.server_config import ServerConfig
from radixlm.server.http.logs import log_to_stderr
from radixlm.server.http.tracing import traced
from radixlm.server.insight.recorder import recording
from radixlm.server.serve import stored_files, stored_responses
from radixlm.text.model_folder import resolve_model

_SECONDS_BETWEEN = 0.5


async def engine_over(
    replicas: DeploymentHandle[Any], app: str, version: str | None = None
) -> ReplicatedEngine:
    """The replicas of an application as one engine, once one of them is heard of.

    version: of the model; while it replaces another one there are replicas of both. None: there is
    one. Raises ConfigError, ModelError.
    """
    described: Described = await replicas.describe.remote()
    while version not in (None, described.version):
        await asyncio.sleep(_SECONDS_BETWEEN)
        described = await replicas.describe.remote()
    files = files_of(resolve_model(described.config.model))
    tokenizer, template = texts_of(described.config, files)
    engine = ReplicatedEngine(replicas, RouterHandle(app), described, tokenizer, template)
    await engine.ready()
    return engine


class Ingress:
    """Has the tokenizer and the chat template; the model is in the replicas."""

    async def __init__(  # type: ignore[misc]  # Ray Serve awaits it
        self, replicas: DeploymentHandle[Any], settings: ServerConfig, version: str
    ) -> None:
        """Raises as engine_over does."""
        log_to_stderr(settings.log_format)
        self._settings = settings
        app = serve.get_replica_context().app_name
        self._engine = await engine_over(replicas, app, version)
        self._ending = contextlib.ExitStack()

    def __serve_build_asgi_app__(self) -> ASGIApp:
        settings, engine = self._settings, self._engine
        files = self._ending.enter_context(stored_files(settings))
        self._batches = BatchKeeper(files, parts=lambda: max(len(engine.replicas()), 1))
        app = create_app(
            engine,
            served_model_name=settings.first_name(engine.info.name),
            config=settings,
            responses=self._ending.enter_context(stored_responses(settings)),
            batches=self._batches,
            recorder=self._ending.enter_context(recording(settings)),
            tracing=self._ending.enter_context(traced(settings)),
            more_routes=routes_over(engine),
            more_metrics=lambda: replica_metrics(engine.replicas()),
        )
        self._resuming = asyncio.get_running_loop().create_task(self._batches.resume())
        return app

    async def __del__(self) -> None:
        if hasattr(self, "_batches"):
            await self._batches.close()
            self._ending.close()
            await self._engine.close()
