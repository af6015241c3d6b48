"""One engine of several, as Ray Serve runs it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing, closing, suppress
from dataclasses import replace
from typing import NamedTuple

from ray import serve

from radixlm.assembly import AsyncEngine, ModelInfo
from radixlm.core.config import EngineConfig
from radixlm.core.errors import EngineDeadError, EngineStoppedError, RadixLMError
from radixlm.core.misses import Explained
from radixlm.core.reports import TreeQuery
from radixlm.core.request import GenerateRequest, Hint, Namespace, RequestOutput
from radixlm.engine import Limits
from radixlm.engine.adapter_names import Adapter
from radixlm.engine.input_processor import Prompt
from radixlm.engine.watching import Scene, SceneChange
from radixlm.ray.autoscaling import RUNNING, WAITING
from radixlm.ray.replica_calls import ReplicaDiedError
from radixlm.ray.reporter import Reporter
from radixlm.ray.router_handle import RouterHandle
from radixlm.routing import ReplicaChoice
from radixlm.server.http.tracing import Tracing

_SECONDS_TO_WATCH = 20.0


class Described(NamedTuple):
    """The facts of a model that an ingress must know to take requests for it."""

    config: EngineConfig
    info: ModelInfo
    limits: Limits
    adapters: dict[str, Adapter]
    version: str


class Replica:
    """Streams of requests and of views; an error of ours is streamed as the last item.

    `replica`, of calls that have it, is for TokenRouter alone.
    """

    async def __init__(  # type: ignore[misc]
        self, config: EngineConfig, otlp_endpoint: str | None, version: str
    ) -> None:
        """version: of the model, see `Ingress`. Raises ConfigError, ModelError."""
        self._version = version
        context = serve.get_replica_context()
        self.name = context.replica_id.unique_id
        self._tracing = otlp_endpoint and Tracing(otlp_endpoint, instance=self.name)
        self._engine = AsyncEngine.from_config(config)
        self._reporter = Reporter(self.name, self._engine, RouterHandle(context.app_name))
        self._reporter.start()

    def check_health(self) -> None:
        """Raises EngineDeadError: Ray Serve replaces the replica."""
        self._engine.health()

    def record_autoscaling_stats(self) -> dict[str, float]:
        """The figures for `by_queues`; Ray Serve calls it."""
        stats = self._engine.stats()
        return {RUNNING: stats.running, WAITING: stats.waiting}

    def describe(self) -> Described:
        engine = self._engine
        adapters = dict(engine.adapters.named)
        return Described(engine.config, engine.info, engine.limits, adapters, self._version)

    async def generate(
        self, request: GenerateRequest, tokenizer: str, choice: ReplicaChoice | None = None
    ) -> AsyncGenerator[RequestOutput | RadixLMError, None]:
        """choice: why the request is here; None while the router was away."""
        if tokenizer != self._engine.tokenizer.digest:
            raise EngineDeadError(f"{self.name} has a model with another tokenizer")
        self._engine.health()
        tokens, done = 0, False
        self._reporter.arrived(request)
        because = "the router was away" if choice is None else str(choice)
        try:
            async with aclosing(self._stream(request)) as outputs:
                async for output in outputs:
                    if output.token_ids and not tokens:
                        self._reporter.began(request)
                    tokens += len(output.token_ids)
                    done = output.finished
                    if output.miss is not None:
                        miss = replace(output.miss, replica=self.name, routed_because=because)
                        output = replace(output, miss=miss)
                    yield output
        # The replica is no more: the request may go to another one.
        except EngineStoppedError:
            raise
        except EngineDeadError as error:
            raise ReplicaDiedError(f"{self.name}: {error}") from error
        except RadixLMError as error:
            yield error
        finally:
            self._reporter.ended(request, tokens if done else None)

    def _stream(self, request: GenerateRequest) -> AsyncGenerator[RequestOutput, None]:
        if not self._tracing:
            return self._engine.stream_all([request])
        return self._tracing.stream(
            self._engine.stream_all,
            [request],
            model=self._engine.model_name,
            operation="text_completion",
            phases=True,
        )

    async def watch(
        self,
        query: TreeQuery,
        max_waiting: int,
        replica: str | None = None,  # noqa: ARG002
    ) -> AsyncGenerator[Scene | SceneChange | RadixLMError, None]:
        """Watch for a while: a replica that is to leave waits for all who watch."""
        time = asyncio.get_running_loop().time
        until = time() + _SECONDS_TO_WATCH
        try:
            own = self._own(query)
            with closing(self._engine.watch(own, max_waiting=max_waiting)) as viewer:
                while (left := until - time()) > 0:
                    with suppress(TimeoutError):
                        yield await asyncio.wait_for(viewer.next(), left)
        except RadixLMError as error:
            yield error

    async def look(self, query: TreeQuery, replica: str | None = None) -> Scene | RadixLMError:  # noqa: ARG002
        try:
            return await self._engine.look(self._own(query))
        except RadixLMError as error:
            return error

    def _own(self, query: TreeQuery) -> TreeQuery:
        """A query of this replica's tree. Raises EngineDeadError where another one's is wanted:
        that one is not asked any more.
        """
        if query.replica not in (None, self.name):
            raise EngineDeadError(f"the replica {query.replica:.80} is leaving")
        return replace(query, replica=None)

    async def explain(
        self,
        prompt: Prompt,
        namespace: Namespace | None,
        *,
        everywhere: bool,
        replica: str | None = None,  # noqa: ARG002
    ) -> Explained | RadixLMError:
        try:
            return await self._engine.explain(prompt, namespace=namespace, everywhere=everywhere)
        except RadixLMError as error:
            return error

    async def hint(
        self,
        prompt: Prompt,
        hint: Hint,
        *,
        namespace: Namespace | None,
        replica: str | None = None,  # noqa: ARG002
    ) -> int | RadixLMError:
        try:
            return await self._engine.hint(prompt, hint, namespace=namespace)
        except RadixLMError as error:
            return error

    async def flush_cache(self) -> bool:
        return await self._engine.flush_cache()

    async def __del__(self) -> None:
        if hasattr(self, "_reporter"):
            try:
                await self._reporter.close()
            finally:
                await asyncio.shield(self._engine.close())
            if self._tracing:
                self._tracing.close()
