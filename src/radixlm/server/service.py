"""What the routes share: the engine, its public name, and the clocks on its requests."""

from __future__ import annotations

from dataclasses import dataclass

from fastapi import Request

from radixlm.build import AsyncEngine
from radixlm.core.clock import Clock
from radixlm.server.errors import ModelNotFoundError
from radixlm.server.metrics import Metrics


@dataclass(frozen=True, slots=True)
class Service:
    """created: when serving began, in seconds since 1970."""

    engine: AsyncEngine
    model_name: str
    metrics: Metrics
    clock: Clock
    created: int

    def check_model(self, name: str | None) -> None:
        """Raise ModelNotFoundError when a request names another model."""
        if name is not None and name != self.model_name:
            raise ModelNotFoundError(
                f"the model {name!r} is not served here; {self.model_name!r} is", param="model"
            )


def service_of(request: Request) -> Service:
    """The service that `create_app` put into the application."""
    service: Service = request.app.state.service
    return service
