"""The way in: our server's routes over a fleet, as Ray Serve runs them."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

from ray import serve
from ray.serve.handle import DeploymentHandle
from starlette.types import ASGIApp

from radixlm.assembly.loading import texts_of
from radixlm.formats.model_files import files_of
from radixlm.ray.desk import Desk
from radixlm.ray.fleet import Fleet
from radixlm.ray.replica import Described
from radixlm.ray.router_routes import ROUTES, replica_metrics
from radixlm.server.app import create_app
from radixlm.server.config.server_config import ServerConfig
from radixlm.server.http.logs import log_to_stderr
from radixlm.server.http.tracing import traced
from radixlm.server.insight.recorder import recording
from radixlm.server.serve import stored_responses
from radixlm.text.model_folder import resolve_model

_SECONDS_BETWEEN = 0.5


class Ingress:
    """Has the tokenizer and the chat template; the model is in the replicas."""

    async def __init__(  # type: ignore[misc]  # Ray Serve awaits it
        self, replicas: DeploymentHandle[Any], settings: ServerConfig, version: str
    ) -> None:
        """version: of the model; while it replaces another one there are replicas of both. Raises
        ConfigError, ModelError.
        """
        log_to_stderr(settings.log_format)
        described: Described = await replicas.describe.remote()
        while described.version != version:
            await asyncio.sleep(_SECONDS_BETWEEN)
            described = await replicas.describe.remote()
        files = files_of(resolve_model(described.config.model))
        tokenizer, template = texts_of(described.config, files)
        self._settings = settings
        desk = Desk(serve.get_replica_context().app_name)
        self._fleet = Fleet(replicas, desk, described, tokenizer, template)
        await self._fleet.ready()
        self._ending = contextlib.ExitStack()

    def __serve_build_asgi_app__(self) -> ASGIApp:
        settings, fleet = self._settings, self._fleet
        return create_app(
            fleet,
            served_model_name=settings.served_model_name or fleet.info.name,
            config=settings,
            responses=self._ending.enter_context(stored_responses(settings)),
            recorder=self._ending.enter_context(recording(settings)),
            tracing=self._ending.enter_context(traced(settings)),
            more_routes=ROUTES,
            more_metrics=lambda: replica_metrics(fleet.replicas()),
        )

    async def __del__(self) -> None:
        if hasattr(self, "_ending"):
            self._ending.close()
            await self._fleet.close()
