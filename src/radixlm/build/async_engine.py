"""The public AsyncEngine."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterable, Sequence

from radixlm.build.loading import Loaded, load
from radixlm.cache import Pin
from radixlm.core.config import EngineConfig
from radixlm.core.misses import Explained
from radixlm.core.reports import MAX_WAITING, TreeQuery, TreeSnapshot
from radixlm.core.request import Breakpoint, Namespace, RequestOutput
from radixlm.core.sampling import SamplingParams
from radixlm.engine import EngineStats
from radixlm.engine.input_processor import Prompt
from radixlm.engine.messages import Scene
from radixlm.engine.viewer import Viewer


class AsyncEngine:
    """A model behind an asyncio interface; the engine itself runs on its own thread."""

    def __init__(self, loaded: Loaded) -> None:
        self._loaded = loaded
        self.config = loaded.config
        self.info = loaded.info
        self.model_name = loaded.info.name
        self.tokenizer = loaded.tokenizer
        self.chat_template = loaded.chat_template

    @classmethod
    def from_config(cls, config: EngineConfig) -> AsyncEngine:
        """Load the model (blocks); its first request is as fast as later ones.

        Raises ConfigError and ModelError.
        """
        return cls(load(config, warm=True))

    def stream(
        self,
        prompt: Prompt,
        params: SamplingParams,
        *,
        request_id: str | None = None,
        namespace: Namespace | None = None,
        priority: int = 0,
        tenant: str = "",
        breakpoints: Sequence[Breakpoint] = (),
    ) -> AsyncGenerator[RequestOutput, None]:
        """Yield what is new, as it comes. Closing the iterator aborts the request.

        priority: higher is more important, under `priority` policies. tenant: tenants are served
        in turn, by tokens. breakpoints: prefixes of the prompt that are kept once it is computed,
        within --max-pinned-tokens; the output with the first token tells which ones are.
        The first step raises InvalidRequestError, QueueFullError or EngineDeadError.
        """
        return self._loaded.stream(
            prompt,
            params,
            request_id=request_id,
            namespace=namespace,
            priority=priority,
            tenant=tenant,
            breakpoints=breakpoints,
        )

    async def generate(
        self,
        prompt: Prompt,
        params: SamplingParams,
        *,
        request_id: str | None = None,
        namespace: Namespace | None = None,
        priority: int = 0,
        tenant: str = "",
    ) -> RequestOutput:
        """Run a request to its end. Being cancelled aborts it."""
        outputs = self.stream(
            prompt,
            params,
            request_id=request_id,
            namespace=namespace,
            priority=priority,
            tenant=tenant,
        )
        return RequestOutput.joined([output async for output in outputs])

    def check_room(self, count: int = 1) -> None:
        """Raise QueueFullError unless `count` requests more would be taken now, EngineDeadError."""
        self._loaded.client.check_room(count)

    def abort(self, request_ids: Iterable[str] | None) -> int:
        """End these requests within one step, with None all of them; returns how many are under
        way. Their streams end with finish_reason abort. Raises EngineDeadError.
        """
        wanted = None if request_ids is None else tuple(request_ids)
        known = self._loaded.client.abort_ids(wanted)
        return known + self._loaded.compiling.abort(wanted)

    async def flush_cache(self) -> bool:
        """Drop all cached tokens that no request uses; False when requests were under way."""
        return (await asyncio.wrap_future(self._loaded.client.flush())).idle

    async def pin(
        self, prompt: Prompt, *, namespace: Namespace | None = None, ttl: float | None = None
    ) -> Pin:
        """Keep what is cached of a prompt; see Engine.pin."""
        key = self._loaded.key(prompt)
        client = self._loaded.client
        return await asyncio.wrap_future(client.pin(key, namespace or Namespace(), ttl))

    async def unpin(self, pin_id: int) -> None:
        """Let go of a pin. Raises PinError when there is none of that id (any more)."""
        await asyncio.wrap_future(self._loaded.client.unpin(pin_id))

    async def snapshot(self, *, max_depth: int | None = None, min_tokens: int = 0) -> TreeSnapshot:
        """The radix tree as it is between two steps, whole or pruned."""
        return (await self.look(TreeQuery(max_depth, min_tokens))).tree

    async def look(self, query: TreeQuery) -> Scene:
        """What a query shows of the tree, the requests and the totals, of one moment.

        Raises NodeGoneError, QueueFullError when too many others wait for the same.
        """
        return await asyncio.wrap_future(self._loaded.client.look(query))

    def watch(
        self, query: TreeQuery, *, max_waiting: int = MAX_WAITING, own: bool = False
    ) -> Viewer:
        """The same and all that changes of it from then on, until the viewer is closed.

        max_waiting: sights that may wait for a slow viewer. own: a part of the server itself,
        which is never turned away. Raises QueueFullError when too many others watch.
        """
        return self._loaded.client.watch(query, max_waiting=max_waiting, own=own)

    async def explain(
        self, prompt: Prompt, *, namespace: Namespace | None = None, everywhere: bool = False
    ) -> Explained:
        """Why a prompt would miss now, as the request would learn it; no trace of it is left.

        everywhere: tell how much of it each namespace holds, too. Raises InvalidRequestError.
        """
        key = self._loaded.key(prompt)
        self._loaded.intake.limits.check_prompt(key)
        client = self._loaded.client
        asked = client.explain(key, namespace or Namespace(), everywhere=everywhere)
        return await asyncio.wrap_future(asked)

    def health(self) -> None:
        """Raise EngineDeadError, with the reason, when the engine is gone."""
        self._loaded.client.check_health()

    def stats(self) -> EngineStats:
        """The engine in numbers, as of its last step."""
        return self._loaded.client.stats()

    async def close(self) -> None:
        """Stop the engine; requests under way end with an error."""
        await asyncio.to_thread(self._loaded.close)
