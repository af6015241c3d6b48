"""The router's actor: one for each application, found by its name."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from importlib.metadata import version
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayActorError, RayError, RaySystemError

from radixlm.routing import RouterActor

_logger = logging.getLogger("radixlm.ray")

_NAMESPACE = "radixlm"
# It answers in milliseconds. One that is started again, on a machine under load, in some seconds.
_PATIENCE_SECONDS = 30.0
_ONLOOKERS_PATIENCE_SECONDS = 2.0


class RouterHandle:
    """A handle of the actor, which is started where there is none.

    It outlives who started it, and is restarted where it dies or hangs; then it knows nothing, and
    asks replicas for all they hold. Replicas of another version of this package have another one.
    app: the application's name.
    """

    def __init__(self, app: str) -> None:
        self.name = f"router of {app}, {version('radixlm')}"
        self._actor: Any = None

    async def ask(self, method: str, *arguments: Any) -> Any:
        """Call a method of RouterActor. Raises what it raises; RayError where it is away, or does
        not answer.
        """
        actor = self._handle()
        try:
            return await self._answer(actor, _PATIENCE_SECONDS, method, *arguments)
        except GetTimeoutError:
            _logger.warning("%s does not answer, so it is started again", self.name)
            ray.kill(actor, no_restart=False)
            raise

    async def look(self, method: str, *arguments: Any) -> Any:
        """The same for those who look on: it is not started again for them. Raises as `ask`, much
        sooner.
        """
        return await self._answer(self._handle(), _ONLOOKERS_PATIENCE_SECONDS, method, *arguments)

    async def leave(self, name: str) -> None:
        """A replica is gone: nobody is sent there any more."""
        try:
            await self.ask("leave", name)
        except RayError as error:
            _logger.warning("%s does not know that %s is gone: %s", self.name, name, error)

    async def close(self) -> None:
        """Stop the actor, where there is one, if it knows no replica any more."""
        with suppress(RayError, ValueError):
            self._actor = self._actor or ray.get_actor(self.name, namespace=_NAMESPACE)
            if not await self.look("replicas"):
                self.end()

    def end(self) -> None:
        """Stop the actor, wherever it is used."""
        with suppress(ValueError):  # there is none
            ray.kill(ray.get_actor(self.name, namespace=_NAMESPACE))

    async def _answer(self, actor: Any, patience: float, method: str, *arguments: Any) -> Any:
        try:
            return await asyncio.wait_for(getattr(actor, method).remote(*arguments), patience)
        except RayActorError:
            self._actor = None  # it may have ended for good
            raise
        except TimeoutError:
            raise GetTimeoutError(f"{self.name} does not answer") from None

    def _handle(self) -> Any:
        if self._actor is None:
            named = {"name": self.name, "namespace": _NAMESPACE, "get_if_exists": True}
            lasting = {"lifetime": "detached", "max_restarts": -1, "num_cpus": 0}
            try:
                self._actor = ray.remote(RouterActor).options(**named, **lasting).remote()
            except ValueError as error:  # it ended while it was looked for
                raise RaySystemError(f"{self.name}: {error}") from None
        return self._actor
