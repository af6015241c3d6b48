"""The public Engine and AsyncEngine."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple, Self, Unpack

import numpy as np
import numpy.typing as npt
from tqdm import tqdm

from radixlm.assembly.loading import Loaded, load
from radixlm.cache import Pin
from radixlm.core.config import EngineConfig
from radixlm.core.errors import InvalidRequestError
from radixlm.core.keys import Key
from radixlm.core.misses import Explained
from radixlm.core.reports import MAX_WAITING, TreeQuery, TreeSnapshot
from radixlm.core.request import GenerateRequest, Hint, Namespace, RequestOutput
from radixlm.core.sampling import SamplingParams
from radixlm.core.side_threads import SideThreads
from radixlm.engine import EngineCore, EngineStats, Limits, collect
from radixlm.engine.adapter_names import Adapters
from radixlm.engine.input_processor import (
    Prompt,
    Prompts,
    RequestFields,
    as_list,
    new_request,
    params_for,
    prompt_key,
)
from radixlm.engine.mailbox import Viewer
from radixlm.engine.watching import Scene
from radixlm.scheduler import depth_first

# Adapters that may be read at a time, and wait for that; how long one may take, its wait included.
MOST_LOADING = 2
MOST_WAITING_TO_LOAD = 64
SECONDS_TO_LOAD = 600.0
# How long the end waits for those that are being read.
SECONDS_TO_END = 1.0


class Embedding(NamedTuple):
    """An embedding, (dimensions,) float32, and how much of its prompt was cached."""

    embedding: npt.NDArray[np.float32]
    prompt_tokens: int
    cached_tokens: int


class _LocalEngine:
    """An engine in this process, for threads or for coroutines. client: the near side of the
    engine's thread, which takes requests.
    """

    def __init__(self, loaded: Loaded) -> None:
        self.client = loaded.client
        self.config = loaded.config
        self.info = loaded.info
        self.tokenizer = loaded.tokenizer
        self.chat_template = loaded.chat_template

    def request(
        self, prompt: Prompt, params: SamplingParams, **fields: Unpack[RequestFields]
    ) -> GenerateRequest:
        """A prompt as the client takes it. Raises InvalidRequestError for what is no prompt, or no
        adapter that is loaded.
        """
        if (adapter := fields.pop("lora_path", None)) is not None:
            namespace = fields.get("namespace") or Namespace()
            named = namespace._replace(adapter_id=self.adapters.id_of(adapter))
            fields["namespace"] = named
        return new_request(self._key(prompt), params, **fields)

    @property
    def limits(self) -> Limits:
        """The sizes that requests must keep to."""
        return self.client.processor.limits

    @property
    def adapters(self) -> Adapters:
        """The adapters that requests may have, by name."""
        return self.client.adapters

    def stream(
        self,
        prompt: Prompt,
        params: SamplingParams | None = None,
        **fields: Unpack[RequestFields],
    ) -> AsyncGenerator[RequestOutput, None]:
        """Yield what is new of one request, as it comes. Closing the iterator aborts it. Raises
        InvalidRequestError; the first step QueueFullError and EngineDeadError, too.
        """
        return self.client.stream([self.request(prompt, params or SamplingParams(), **fields)])

    def stats(self) -> EngineStats:
        """The engine in numbers, as of its last step."""
        return self.client.stats()

    def _named(self, prompt: Prompt, namespace: Namespace | None) -> tuple[Key, Namespace]:
        """A prompt as the cache knows it."""
        key = self._key(prompt)
        return key, (namespace or Namespace()).of_length(key.size, self.limits.short_length)

    def _key(self, prompt: Prompt) -> Key:
        return prompt_key(self.tokenizer.encode(prompt) if isinstance(prompt, str) else prompt)


class Engine(_LocalEngine):
    """A model in this process.

    Keywords are the flags of `radixlm serve` (see EngineConfig): model, kv_tokens, dtype,
    page_size, chunked_prefill_size, disable_radix_cache, ...

        with Engine() as engine:
            [out] = engine.generate("The capital of France is", SamplingParams(temperature=0))
    """

    def __init__(self, model: str | None = None, **flags: Any) -> None:
        super().__init__(load(EngineConfig.from_flags(model=model, **flags)))

    def generate(
        self,
        prompts: Prompts,
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        progress: bool = False,
        **fields: Unpack[RequestFields],
    ) -> list[RequestOutput]:
        """Continue a prompt, or each of a list, and return the outputs in order.

        prompts: text, token ids, or a list of either, run depth first through the tree of its
        prompts: each shared prefix is computed once even in a small pool. params: for all, or one
        for each. progress: show a bar on stderr. fields: of each request; priority counts under
        policies of that name. Raises InvalidRequestError before anything is run, EngineDeadError.
        """
        self.info.scoring.check_answers()
        items = as_list(prompts)
        each = params_for(params, len(items))
        requests = [
            self.request(prompt, own, **fields) for prompt, own in zip(items, each, strict=True)
        ]
        outputs = self.client.run(depth_first(requests))
        return collect(requests, _with_bar(outputs, len(requests)) if progress else outputs)

    def embed(
        self,
        prompts: Prompts,
        *,
        dimensions: int | None = None,
        prompt_name: str | None = None,
        **fields: Unpack[RequestFields],
    ) -> list[Embedding]:
        """Embed a prompt, or each of a list, in order, run as `generate` runs them.

        dimensions: the first of them alone. prompt_name: of the model's own texts, the one that
        goes before each text. Raises InvalidRequestError.
        """
        pooling = self.info.pooling
        pooling.check()
        before, params = pooling.prompt(prompt_name), SamplingParams(max_tokens=1, temperature=0.0)
        requests = [
            replace(
                self.request(before + each if isinstance(each, str) else each, params, **fields),
                pooled=pooling.pooled,
            )
            for each in as_list(prompts)
        ]
        pooling.check_dimensions(dimensions, self.info.hidden_size)
        outputs = collect(requests, self.client.run(depth_first(requests)))
        return [
            Embedding(
                pooling.embedding(each.hidden, dimensions), each.prompt_tokens, each.cached_tokens
            )
            for each in outputs
            if each.hidden is not None
        ]

    def load_lora_adapter(self, name: str, path: str) -> None:
        """Requests may have it from now on. Raises InvalidRequestError for a name that is taken,
        ConfigError, ModelError.
        """
        self.adapters.load(name, path)

    def unload_lora_adapter(self, name: str) -> None:
        """No more requests may have it; returns when the last one has ended. Raises
        InvalidRequestError where it is not loaded.
        """
        self.adapters.unload(name).result()

    def flush_cache(self) -> int:
        """Drop all cached tokens that no request uses; returns how many."""
        return self.client.ask(EngineCore.flush).result()[0]

    def pin(
        self, prompt: Prompt, *, namespace: Namespace | None = None, ttl: float | None = None
    ) -> Pin:
        """Keep what is cached for `ttl` seconds, or until `unpin(pin.id)`. Raises PinError."""
        key, own = self._named(prompt, namespace)
        return self.client.ask(lambda core: core.cache.pin(key, own, ttl=ttl)).result()

    def unpin(self, pin_id: int) -> None:
        """Let go of a pin. Raises PinError when no pin has that id (any more)."""
        self.client.ask(lambda core: core.cache.unpin(pin_id)).result()

    def snapshot(self, *, max_depth: int | None = None, min_tokens: int = 0) -> TreeSnapshot:
        """The radix tree as it is between two steps, whole or pruned."""
        return self.client.look(TreeQuery(max_depth, min_tokens)).result().tree

    def close(self) -> None:
        """Stop the engine. Further calls raise EngineDeadError."""
        self.client.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class AsyncEngine(_LocalEngine):
    """A model behind an asyncio interface; the engine itself runs on its own thread."""

    def __init__(self, loaded: Loaded) -> None:
        super().__init__(loaded)
        self._loading = SideThreads("loading adapters", MOST_LOADING, MOST_WAITING_TO_LOAD)

    @classmethod
    def from_config(cls, config: EngineConfig) -> AsyncEngine:
        """Load the model (blocks) and warm it. Raises ConfigError and ModelError."""
        return cls(load(config, warm=True))

    @property
    def model_name(self) -> str:
        return self.info.name

    def check_room(self) -> None:
        """Check for room, as EngineClient.check_room does."""
        self.client.check_room()

    def stream_all(
        self, requests: Sequence[GenerateRequest]
    ) -> AsyncGenerator[RequestOutput, None]:
        """Stream as EngineClient.stream does."""
        return self.client.stream(requests)

    async def generate(
        self, prompt: Prompt, params: SamplingParams, **fields: Unpack[RequestFields]
    ) -> RequestOutput:
        """Run a request to its end. Being cancelled aborts it."""
        outputs = self.stream(prompt, params, **fields)
        return RequestOutput.joined([output async for output in outputs])

    def abort(self, request_ids: Iterable[str] | None) -> int:
        """End these requests, with None all; returns how many. Raises EngineDeadError."""
        return self.client.abort_ids(None if request_ids is None else frozenset(request_ids))

    async def flush_cache(self) -> bool:
        """Drop all cached tokens that no request uses; False when requests were under way."""
        return (await asyncio.wrap_future(self.client.ask(EngineCore.flush)))[1]

    async def pin(
        self, prompt: Prompt, *, namespace: Namespace | None = None, ttl: float | None = None
    ) -> Pin:
        """Pin as Engine.pin does."""
        key, own = self._named(prompt, namespace)
        pinned = self.client.ask(lambda core: core.cache.pin(key, own, ttl=ttl))
        return await asyncio.wrap_future(pinned)

    async def unpin(self, pin_id: int) -> None:
        """Unpin as Engine.unpin does."""
        await asyncio.wrap_future(self.client.ask(lambda core: core.cache.unpin(pin_id)))

    async def snapshot(self, *, max_depth: int | None = None, min_tokens: int = 0) -> TreeSnapshot:
        """The snapshot of Engine.snapshot."""
        return (await self.look(TreeQuery(max_depth, min_tokens))).tree

    async def look(self, query: TreeQuery) -> Scene:
        """Look at what a query shows, of one moment. Raises NodeGoneError, QueueFullError."""
        _check_alone(query)
        return await asyncio.wrap_future(self.client.look(query))

    def watch(
        self, query: TreeQuery, *, max_waiting: int = MAX_WAITING, own: bool = False
    ) -> Viewer:
        """Watch as EngineClient.watch does."""
        _check_alone(query)
        return self.client.watch(query, max_waiting=max_waiting, own=own)

    async def explain(
        self, prompt: Prompt, *, namespace: Namespace | None = None, everywhere: bool = False
    ) -> Explained:
        """Explain why a prompt would miss now. everywhere: who holds it. Raises
        InvalidRequestError.
        """
        key, own = self._named(prompt, namespace)
        self.limits.check_prompt(key)
        explained = self.client.ask(
            lambda core: core.cache.explain(key, own, everywhere=everywhere)
        )
        return await asyncio.wrap_future(explained)

    async def load_lora_adapter(self, name: str, path: str) -> None:
        """Load an adapter as Engine.load_lora_adapter does. Raises TimeoutError after
        SECONDS_TO_LOAD, QueueFullError. Where it is given up, by that or by being cancelled,
        nothing is loaded.
        """
        read = partial(self.adapters.read, name, path)
        self.adapters.put(await self._loading.run(read, SECONDS_TO_LOAD))

    async def unload_lora_adapter(self, name: str) -> None:
        """Unload an adapter as Engine.unload_lora_adapter does. Being cancelled ends the wait only:
        the name is gone, and the weights go with the last request.
        """
        await asyncio.wrap_future(self.adapters.unload(name))

    async def hint(self, prompt: Prompt, hint: Hint, *, namespace: Namespace | None = None) -> int:
        """Say what comes after a prompt that was answered; returns how much of it is cached."""
        key, own = self._named(prompt, namespace)
        hinted = self.client.ask(lambda core: core.cache.hint(key, own, hint))
        return await asyncio.wrap_future(hinted)

    def health(self) -> None:
        """Raise EngineDeadError, with the reason, when the engine is gone."""
        self.client.check_health()

    async def close(self) -> None:
        """Stop the engine; requests under way end with an error."""
        await asyncio.to_thread(self._close)

    def _close(self) -> None:
        self.client.close()
        # Python can not end in good order while a thread is inside of torch.
        self._loading.close(SECONDS_TO_END)


def _check_alone(query: TreeQuery) -> None:
    if query.replica is not None:
        text = f"there is one engine here, and no replica {query.replica!r:.80}"
        raise InvalidRequestError(text, param="replica")


def _with_bar(outputs: Iterator[RequestOutput], count: int) -> Iterator[RequestOutput]:
    tokens = cached = 0
    with tqdm(total=count, unit=" requests", dynamic_ncols=True) as bar:
        for output in outputs:
            tokens += len(output.token_ids)
            if output.finished:
                cached += output.cached_tokens
                bar.set_postfix(new_tokens=tokens, cached_tokens=cached, refresh=False)
                bar.update()
            yield output
