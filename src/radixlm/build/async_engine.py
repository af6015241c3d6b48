"""The public AsyncEngine."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterable
from typing import Unpack

from radixlm.build.loading import Loaded, load
from radixlm.cache import Pin
from radixlm.core.config import EngineConfig
from radixlm.core.misses import Explained
from radixlm.core.reports import MAX_WAITING, TreeQuery, TreeSnapshot
from radixlm.core.request import Namespace, RequestOutput
from radixlm.core.sampling import SamplingParams
from radixlm.engine import EngineStats
from radixlm.engine.input_processor import Prompt, RequestFields
from radixlm.engine.messages import Scene
from radixlm.engine.viewer import Viewer


class AsyncEngine:
    """A model behind an asyncio interface; the engine itself runs on its own thread."""

    def __init__(self, loaded: Loaded) -> None:
        self._loaded = loaded
        self.client = loaded.client
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
        self, prompt: Prompt, params: SamplingParams, **fields: Unpack[RequestFields]
    ) -> AsyncGenerator[RequestOutput, None]:
        """Yield what is new, as it comes. Closing the iterator aborts the request.

        Raises InvalidRequestError for what is no prompt; the first step raises it for everything
        else that is wrong, QueueFullError or EngineDeadError.
        """
        return self.client.stream([self._loaded.request(prompt, params, **fields)])

    async def generate(
        self, prompt: Prompt, params: SamplingParams, **fields: Unpack[RequestFields]
    ) -> RequestOutput:
        """Run a request to its end. Being cancelled aborts it."""
        outputs = self.stream(prompt, params, **fields)
        return RequestOutput.joined([output async for output in outputs])

    def check_room(self, count: int = 1) -> None:
        """Raise QueueFullError unless `count` requests more would be taken now, EngineDeadError."""
        self.client.check_room(count)

    def abort(self, request_ids: Iterable[str] | None) -> int:
        """End these requests within one step, with None all of them; returns how many are under
        way. Their streams end with finish_reason abort. Raises EngineDeadError.
        """
        return self.client.abort_ids(None if request_ids is None else frozenset(request_ids))

    async def flush_cache(self) -> bool:
        """Drop all cached tokens that no request uses; False when requests were under way."""
        return (await asyncio.wrap_future(self.client.flush())).idle

    async def pin(
        self, prompt: Prompt, *, namespace: Namespace | None = None, ttl: float | None = None
    ) -> Pin:
        """Keep what is cached of a prompt; see Engine.pin."""
        key = self._loaded.key(prompt)
        return await asyncio.wrap_future(self.client.pin(key, namespace or Namespace(), ttl))

    async def unpin(self, pin_id: int) -> None:
        """Let go of a pin. Raises PinError when there is none of that id (any more)."""
        await asyncio.wrap_future(self.client.unpin(pin_id))

    async def snapshot(self, *, max_depth: int | None = None, min_tokens: int = 0) -> TreeSnapshot:
        """The radix tree as it is between two steps, whole or pruned."""
        return (await self.look(TreeQuery(max_depth, min_tokens))).tree

    async def look(self, query: TreeQuery) -> Scene:
        """What a query shows of the tree, the requests and the totals, of one moment.

        Raises NodeGoneError, QueueFullError when too many others wait for the same.
        """
        return await asyncio.wrap_future(self.client.look(query))

    def watch(
        self, query: TreeQuery, *, max_waiting: int = MAX_WAITING, own: bool = False
    ) -> Viewer:
        """The same and all that changes of it from then on, until the viewer is closed.

        max_waiting: sights that may wait for a slow viewer. own: a part of the server itself,
        which is never turned away. Raises QueueFullError when too many others watch.
        """
        return self.client.watch(query, max_waiting=max_waiting, own=own)

    async def explain(
        self, prompt: Prompt, *, namespace: Namespace | None = None, everywhere: bool = False
    ) -> Explained:
        """Why a prompt would miss now, as the request would learn it; no trace of it is left.

        everywhere: tell how much of it each namespace holds, too. Raises InvalidRequestError.
        """
        key = self._loaded.key(prompt)
        asked = self.client.explain(key, namespace or Namespace(), everywhere=everywhere)
        return await asyncio.wrap_future(asked)

    def health(self) -> None:
        """Raise EngineDeadError, with the reason, when the engine is gone."""
        self.client.check_health()

    def stats(self) -> EngineStats:
        """The engine in numbers, as of its last step."""
        return self.client.stats()

    async def close(self) -> None:
        """Stop the engine; requests under way end with an error."""
        await asyncio.to_thread(self.client.close)
