"""The public Engine."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator, Sequence
from types import TracebackType
from typing import Any, Self, Unpack

from tqdm import tqdm

from radixlm.build.loading import load
from radixlm.cache import Pin
from radixlm.core.config import EngineConfig
from radixlm.core.reports import TreeQuery, TreeSnapshot
from radixlm.core.request import Namespace, RequestOutput
from radixlm.core.sampling import SamplingParams
from radixlm.engine import EngineStats, collect
from radixlm.engine.input_processor import Prompt, Prompts, RequestFields, as_list, params_for
from radixlm.scheduler import depth_first


class Engine:
    """A model in this process.

    Keywords are the flags of `radixlm serve` (see EngineConfig): model, kv_tokens, dtype,
    page_size, chunked_prefill_size, disable_radix_cache, ...

        with Engine() as engine:
            [out] = engine.generate("The capital of France is", SamplingParams(temperature=0))
    """

    def __init__(self, model: str | None = None, **flags: Any) -> None:
        self._loaded = load(EngineConfig.from_flags(model=model, **flags))
        self.config = self._loaded.config
        self.info = self._loaded.info
        self.tokenizer = self._loaded.tokenizer
        self.chat_template = self._loaded.chat_template

    def generate(
        self,
        prompts: Prompts,
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        progress: bool = False,
        **fields: Unpack[RequestFields],
    ) -> list[RequestOutput]:
        """Continue a prompt, or each of a list, and return the outputs in order.

        prompts: text, token ids, or a list of either; a list is run depth first through the tree
        of its prompts, so that each shared prefix is computed once even in a small pool.
        params: for all, or one for each. progress: show a bar on stderr.
        fields: of each request: namespace, priority (higher is more important, under `priority`
        policies), tenant (tenants are served in turn, by tokens).
        Raises InvalidRequestError before anything is run, EngineDeadError.
        """
        items = as_list(prompts)
        each = params_for(params, len(items))
        requests = [
            self._loaded.request(prompt, own, **fields)
            for prompt, own in zip(items, each, strict=True)
        ]
        outputs = self._loaded.client.run(depth_first(requests))
        return collect(requests, _with_bar(outputs, len(requests)) if progress else outputs)

    def stream(
        self,
        prompt: Prompt,
        params: SamplingParams | None = None,
        **fields: Unpack[RequestFields],
    ) -> AsyncGenerator[RequestOutput, None]:
        """Yield what is new of one request, as it comes. Closing the iterator aborts it."""
        request = self._loaded.request(prompt, params or SamplingParams(), **fields)
        return self._loaded.client.stream([request])

    def flush_cache(self) -> int:
        """Drop all cached tokens that no request uses; returns how many."""
        return self._loaded.client.flush().result().tokens

    def pin(
        self, prompt: Prompt, *, namespace: Namespace | None = None, ttl: float | None = None
    ) -> Pin:
        """Keep what is cached of a prompt for `ttl` seconds, or until `unpin(pin.id)`.

        Raises PinError when nothing of it is cached, or over --max-pinned-tokens.
        """
        key = self._loaded.key(prompt)
        return self._loaded.client.pin(key, namespace or Namespace(), ttl).result()

    def unpin(self, pin_id: int) -> None:
        """Let go of a pin. Raises PinError when there is none of that id (any more)."""
        self._loaded.client.unpin(pin_id).result()

    def snapshot(self, *, max_depth: int | None = None, min_tokens: int = 0) -> TreeSnapshot:
        """The radix tree as it is between two steps, whole or pruned."""
        return self._loaded.client.look(TreeQuery(max_depth, min_tokens)).result().tree

    def stats(self) -> EngineStats:
        """The engine in numbers, as of its last step."""
        return self._loaded.client.stats()

    def close(self) -> None:
        """Stop the engine. Further calls raise EngineDeadError."""
        self._loaded.client.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


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
