"""How many replicas there should be: by what runs and waits in them."""

from __future__ import annotations

from typing import Any, cast

from ray.serve.config import AutoscalingConfig, AutoscalingContext

RUNNING, WAITING = "running", "waiting"
_ROOM = "room"


def by_queues(context: AutoscalingContext) -> tuple[float, dict[str, Any]]:
    """The number of replicas at which nothing waits: all requests, divided by how many ran in a
    replica for which others waited. Until any has waited, by the room that the deployment was made
    with (`target_ongoing_requests`).

    Both are averages over Ray Serve's time of looking back; its delays and factors are applied
    after this. Returns the state that it is called with the next time.
    """
    known = context.aggregated_metrics or {}
    running, waiting = (known.get(name, {}) for name in (RUNNING, WAITING))
    if not running:  # none has said anything yet
        return context.target_num_replicas, context.policy_state
    full = [running[replica] for replica, count in waiting.items() if count >= 1.0]
    made = cast("AutoscalingConfig", context.config)
    room = cast("float", context.policy_state.get(_ROOM, made.target_ongoing_requests))
    if full:
        room = max(sum(full) / len(full), 1.0)
    total = sum(running.values()) + sum(waiting.values())
    return total / room, {_ROOM: room}
