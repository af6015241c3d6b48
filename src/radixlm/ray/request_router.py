"""How Ray Serve's handles find a replica: they ask the router's actor."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from typing import Any

from ray.exceptions import RayError
from ray.serve.request_router import PendingRequest, ReplicaID, RequestRouter, RunningReplica

from radixlm.core.errors import QueueFullError
from radixlm.core.request import GenerateRequest
from radixlm.ray.router_handle import RouterHandle

_logger = logging.getLogger("radixlm.ray")

_PATIENCE_SECONDS = 1.0
# After it was silent it is not asked for a while: what waits for it does not answer clients.
_SECONDS_NOT_ASKED = 2.0
_MOST_ASKED_AT_ONCE = 100
# For a replica with a request's tokenizer, before any is taken: one with another refuses it.
_SECONDS_TO_WAIT, _SECONDS_BETWEEN = 10.0, 0.25


class TokenRouter(RequestRouter):
    """Sends a GenerateRequest where the router says, and the router's Choice with it, as `choice`.

    A call that names a `replica` goes there; where that is gone, and for all other calls, to any.
    While the router is away requests go to the less busy one of two.
    """

    def initialize_state(self, **kwargs: Any) -> None:
        """Ray Serve calls it once, with nothing."""
        super().initialize_state(**kwargs)  # type: ignore[no-untyped-call]
        self._router = RouterHandle(self._deployment_id.app_name)
        self._ask_again_at = 0.0

    @property
    def max_num_routing_tasks(self) -> int:
        """Ray Serve's own is two for each replica, so that a few that wait would hold up all."""
        return _MOST_ASKED_AT_ONCE

    async def choose_replicas(
        self,
        candidate_replicas: list[RunningReplica],
        pending_request: PendingRequest | None = None,
    ) -> list[list[RunningReplica]]:
        by_name = {each.replica_id.unique_id: each for each in candidate_replicas}
        chosen = None
        if pending_request is not None:
            try:
                chosen = await self._choose(pending_request, by_name)
            except QueueFullError as error:  # none has its tokenizer, or none has reported
                if time.time() - pending_request.created_at < _SECONDS_TO_WAIT:
                    await asyncio.sleep(_SECONDS_BETWEEN)
                    return []
                _logger.warning("any replica is taken: %s", error)
        if chosen in by_name:
            return [[by_name[chosen]]]
        return [random.sample(candidate_replicas, min(2, len(candidate_replicas)))]

    async def _choose(
        self, pending: PendingRequest, by_name: dict[str, RunningReplica]
    ) -> str | None:
        """Raises QueueFullError where there is none to choose."""
        named: str | None = pending.kwargs.get("replica")
        request = pending.args[0] if pending.args else None
        if named is not None or not isinstance(request, GenerateRequest):
            return named
        pending.kwargs["choice"] = None
        if self._event_loop.time() < self._ask_again_at:
            return None
        asked = self._router.ask(
            "choose",
            request.request_id,
            request.namespace,
            request.key,
            request.params.max_tokens,
            list(by_name),
            pending.kwargs["tokenizer"],
            request.rank,
        )
        try:
            choice = await asyncio.wait_for(asked, _PATIENCE_SECONDS)
        except QueueFullError:  # which comes as a RayError, too
            raise
        except (RayError, TimeoutError) as error:
            _logger.warning("the router does not answer, so any replica is taken: %s", error)
            if isinstance(error, TimeoutError):
                self._ask_again_at = self._event_loop.time() + _SECONDS_NOT_ASKED
            return None
        pending.kwargs["choice"] = choice
        return str(choice.replica)

    def on_replica_actor_died(self, replica_id: ReplicaID) -> None:
        """The router forgets it at once."""
        super().on_replica_actor_died(replica_id)
        self._event_loop.create_task(self._router.leave(replica_id.unique_id))
