"""`radixlm batch --replicas N`: a batch whose parts go to replicas."""

from __future__ import annotations

import asyncio

from ray import serve

from radixlm.core.config import EngineConfig
from radixlm.ray.deploy import deployed
from radixlm.ray.deployment import APP
from radixlm.ray.ingress import engine_over
from radixlm.server.config.server_config import ServerConfig
from radixlm.server.offline import Work

_SECONDS_BETWEEN = 0.1


def over_replicas(config: EngineConfig, work: Work, *, replicas: int) -> None:
    """Do `work` with replicas on a Ray of their own. Raises as `deployed` does."""
    with deployed(config, ServerConfig(port=0), replicas=replicas):
        asyncio.run(_worked(work, replicas))


async def _worked(work: Work, replicas: int) -> None:
    engine = await engine_over(serve.get_deployment_handle("replica", APP), APP)
    try:
        while len(engine.replicas()) < replicas:  # else one would get the parts of those to come
            await asyncio.sleep(_SECONDS_BETWEEN)
        await work(engine, replicas)
    finally:
        await engine.close()
