"""Several replicas as one engine: what an ingress serves."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from ray.exceptions import ActorDiedError, RayError
from ray.serve.handle import DeploymentHandle, DeploymentResponseGenerator

from radixlm.core.config import EngineConfig
from radixlm.core.errors import (
    EngineDeadError,
    InvalidRequestError,
    QueueFullError,
    check_queue,
    counted,
    wrong,
)
from radixlm.core.keys import Key
from radixlm.core.misses import Explained
from radixlm.core.reports import MAX_WAITING, TreeQuery
from radixlm.core.request import FinishReason, GenerateRequest, Hint, Namespace, RequestOutput
from radixlm.core.sampling import SamplingParams
from radixlm.engine import EngineStats
from radixlm.engine.adapter_names import AdapterNames
from radixlm.engine.input_processor import Prompt, new_request, prompt_key
from radixlm.engine.totals import Totals
from radixlm.engine.watching import Scene
from radixlm.ray.replica import Described
from radixlm.ray.replica_calls import (
    FAILED,
    ReplicaDiedError,
    ReplicaViewer,
    answered,
    begun,
    cause_of,
    failed_itself,
    items,
    streamed,
)
from radixlm.ray.router_handle import RouterHandle
from radixlm.routing import Offer, PrefixMap, ReplicaStatus
from radixlm.routing.resuming import OtherAnswerError, Sent, repeatable
from radixlm.text.chat_template import ChatTemplate
from radixlm.text.tokenizer import Tokenizer

_logger = logging.getLogger("radixlm.ray")

# A request goes on to another replica this many times; fewer where it may be what they die of.
_MOST_TRIES, _MOST_DEATHS = 5, 2
_SECONDS_TO_NEXT_TRY = 0.5
_SECONDS_BETWEEN_LOOKS, _SECONDS_AT_START = 1.0, 0.1
_SILENT_SECONDS = 30.0
# Between two who look at all prefixes, which takes the router some milliseconds.
_MOST_ONLOOKERS, _SECONDS_FOR_DECISIONS = 16, 0.05
_FIXED = "replicas have the adapters of --lora-paths; deploy with others there"


class ReplicatedEngine:
    """An engine, as AsyncEngine is one, over all replicas of a deployment. Belongs to one event
    loop.

    A request whose replica dies is sent again, and its answer goes on where it was (`Sent`). Sizes
    (`info`, `limits`) are those of one replica, `stats` are sums.
    """

    def __init__(
        self,
        handle: DeploymentHandle[Any],
        router: RouterHandle,
        described: Described,
        tokenizer: Tokenizer,
        chat_template: ChatTemplate | None,
    ) -> None:
        self.config: EngineConfig = described.config
        self.info, self.limits = replace(described.info, routed=True), described.limits
        self.tokenizer, self.chat_template = tokenizer, chat_template
        self.adapters = AdapterNames(described.adapters)
        self._handle, self._router = handle, router
        self._calls: dict[str, DeploymentResponseGenerator[Any]] = {}
        self._aborted: set[str] = set()
        self._replicas: list[ReplicaStatus] = []
        self._time = asyncio.get_running_loop().time
        self._looked = self._answered = 0.0
        self._onlookers, self._one_looks = 0, asyncio.Lock()
        self._totals = Totals()
        self._looking = asyncio.create_task(self._look_at_replicas())

    # Requests

    def check_room(self, count: int = 1) -> None:
        """Check for room as EngineClient.check_room does; each replica adds its own room."""
        self.health()
        most, replicas = self.config.max_queued_requests, len(self._replicas)
        limit = f"--max-queued-requests {most} of {counted(replicas, 'replica')}"
        check_queue(len(self._calls), count, most * max(replicas, 1), limit)

    async def stream_all(
        self, requests: Sequence[GenerateRequest]
    ) -> AsyncGenerator[RequestOutput, None]:
        """Stream as EngineClient.stream does; each request goes where the router says."""
        for request in requests:
            self.limits.resolve_max_tokens(request.key, request.params)
        self.check_room(len(requests))
        streams = [self._outputs(request) for request in requests]
        merged = streams[0] if len(streams) == 1 else _merged(streams)
        try:
            async for output in merged:
                yield output
        finally:
            await merged.aclose()

    async def generate(self, prompt: Prompt, params: SamplingParams) -> RequestOutput:
        """Run a request to its end."""
        request = new_request(self._key(prompt), params)
        return RequestOutput.joined([output async for output in self.stream_all([request])])

    def abort(self, request_ids: Iterable[str] | None) -> int:
        """Abort as AsyncEngine.abort does, requests that came through here."""
        under_way = self._calls.keys()
        wanted = set(under_way) if request_ids is None else under_way & set(request_ids)
        self._aborted |= wanted
        for request_id in wanted:
            with suppress(*FAILED):  # it has just failed by itself
                self._calls[request_id].cancel()
        return len(wanted)

    async def _outputs(self, request: GenerateRequest) -> AsyncGenerator[RequestOutput, None]:
        """The outputs of one request, from one replica after the other until one has answered."""
        request, sent = repeatable(request), Sent()
        name, cached = request.request_id, 0
        failures: list[Exception] = []
        try:
            while True:
                sent.begin_again()
                call = begun(self._handle.generate, request, tokenizer=self.tokenizer.digest)
                self._calls[name] = call
                try:
                    async for output in items(call):
                        cached = output.cached_tokens
                        if (rest := sent.rest(output)) is not None:
                            yield rest
                except OtherAnswerError:
                    raise
                except FAILED as error:
                    failures.append(error)
                else:
                    failures.append(EngineDeadError("a replica ended it without an answer"))
                if sent.finished:
                    return
                if name not in self._aborted:
                    _check_may_go_on(failures)
                    _logger.warning("%s is sent again: %s", name, failures[-1])
                    await asyncio.sleep(_SECONDS_TO_NEXT_TRY)
                if name in self._aborted:  # meanwhile, or it failed for that
                    yield RequestOutput(
                        name,
                        prompt_tokens=request.key.size,
                        cached_tokens=cached,
                        finish_reason=FinishReason.ABORT,
                    )
                    return
        finally:
            self._calls.pop(name, None)
            self._aborted.discard(name)

    # What is known of replicas: of those with the same tokenizer, while others are replaced

    def replicas(self) -> list[ReplicaStatus]:
        """The replicas as the router knew them last; silent: until now."""
        since = self._time() - self._answered
        return [each._replace(silent=each.silent + since) for each in self._replicas]

    def stats(self) -> EngineStats:
        return self._totals.now

    def health(self) -> None:
        """Raise EngineDeadError when the router has heard of no replica for a while; while it is
        away itself, replicas go on.
        """
        silent = self._answered - self._looked
        alive = [each for each in self._replicas if each.silent + silent < _SILENT_SECONDS]
        if self._looked and not alive:
            raise EngineDeadError("no replica is alive")

    async def offers(self, namespace: Namespace, key: Key) -> list[Offer]:
        """The cost of a prompt in each replica now."""
        found: list[Offer] = await self._asked("offers", namespace, key, self._names())
        return found

    async def prefixes(self, query: TreeQuery) -> PrefixMap:
        """The prefixes and where they live. Raises QueueFullError where very many ask: the router
        decides nothing meanwhile.
        """
        if self._onlookers >= _MOST_ONLOOKERS:
            raise QueueFullError("too many look at the prefixes of all replicas; try again later")
        self._onlookers += 1
        try:
            async with self._one_looks:
                found: PrefixMap = await self._asked("prefixes", query, self._names())
                await asyncio.sleep(_SECONDS_FOR_DECISIONS)
        finally:
            self._onlookers -= 1
        return found

    async def _asked(self, method: str, *arguments: Any) -> Any:
        """The router's answer. Raises EngineDeadError where it is away."""
        try:
            return await self._router.look(method, *arguments)
        except RayError as error:
            raise EngineDeadError(f"the router is away: {error}") from None

    async def ready(self) -> None:
        """Wait until a replica is heard of."""
        while not self._replicas:
            await asyncio.sleep(_SECONDS_AT_START)

    async def _look_at_replicas(self) -> None:
        while True:
            with suppress(RayError):
                found = await self._router.ask("replicas")
                own = [each for each in found if each.tokenizer == self.tokenizer.digest]
                self._answered = self._time()
                if own:  # a router that was started again knows nobody for a moment
                    self._replicas, self._looked = own, self._answered
                    # Any of them may get a request.
                    smallest = min(each.largest_request for each in own)
                    self.limits = replace(self.limits, capacity=smallest)
                    self._totals.take({each.replica: each.stats for each in own if each.stats})
            await asyncio.sleep(_SECONDS_BETWEEN_LOOKS if self._replicas else _SECONDS_AT_START)

    # Caches

    async def flush_cache(self) -> bool:
        """Flush the caches of all replicas, as AsyncEngine.flush_cache does."""
        return all(await answered(self._handle.broadcast("flush_cache").results_async()))

    async def load_lora_adapter(self, name: str, path: str) -> None:  # noqa: ARG002
        """Replicas that are started later would not have it. Raises InvalidRequestError."""
        raise wrong("lora_name", f"{name!r:.80}: {_FIXED}")

    async def unload_lora_adapter(self, name: str) -> None:
        """Unload an adapter, as load_lora_adapter loads one."""
        raise wrong("lora_name", f"{name!r:.80}: {_FIXED}")

    async def look(self, query: TreeQuery) -> Scene:
        """Look, as AsyncEngine.look does, at the replica that the query names."""
        named = self._named(query)
        scene: Scene = await answered(self._handle.look.remote(query, replica=named))
        return scene

    def watch(
        self,
        query: TreeQuery,
        *,
        max_waiting: int = MAX_WAITING,
        own: bool = False,  # noqa: ARG002 - of those who are in the replica's process
    ) -> ReplicaViewer:
        """Watch, as AsyncEngine.watch does, the replica that the query names."""
        named, watch = self._named(query), self._handle.watch
        return ReplicaViewer(lambda: streamed(watch, query, max_waiting, replica=named))

    async def explain(
        self, prompt: Prompt, *, namespace: Namespace | None = None, everywhere: bool = False
    ) -> Explained:
        """Explain as AsyncEngine.explain does, by the replica that has most of the prompt."""
        found = await self._holder(prompt, namespace)
        explained: Explained = await answered(
            self._handle.explain.remote(**found, everywhere=everywhere)
        )
        return explained

    async def hint(self, prompt: Prompt, hint: Hint, *, namespace: Namespace | None = None) -> int:
        """Hint as AsyncEngine.hint does, to the replica that has most of the prompt."""
        found = await self._holder(prompt, namespace)
        hinted: int = await answered(self._handle.hint.remote(**found, hint=hint))
        return hinted

    async def _holder(self, prompt: Prompt, namespace: Namespace | None) -> dict[str, Any]:
        """Arguments of a call of the replica that has most of a prompt; of any, where none has."""
        key, own = self._key(prompt), namespace or Namespace()
        offers = await self.offers(own, key)
        best = max(offers, key=lambda offer: offer.cached_tokens, default=None)
        return {"prompt": key, "namespace": own, "replica": best and best.replica}

    async def close(self) -> None:
        self._looking.cancel()
        await asyncio.gather(self._looking, return_exceptions=True)
        await self._router.close()

    def _names(self) -> list[str]:
        return sorted(each.replica for each in self._replicas)

    def _named(self, query: TreeQuery) -> str:
        names = self._names()
        if not names:
            raise EngineDeadError("no replica is alive")
        if query.replica is None:
            return names[0]
        if query.replica not in names:
            raise InvalidRequestError(
                f"there is no replica {query.replica!r:.80}, there are {', '.join(names)}",
                param="replica",
            )
        return query.replica

    def _key(self, prompt: Prompt) -> Key:
        return prompt_key(self.tokenizer.encode(prompt) if isinstance(prompt, str) else prompt)


def _check_may_go_on(failures: Sequence[Exception]) -> None:
    """Whether another replica is tried, after these errors. Raises EngineDeadError, and the last
    one where all would fail alike.
    """
    last = failures[-1]
    if failed_itself(last):
        raise last
    deaths = {_death(each) for each in failures} - {None}
    if len(deaths) >= _MOST_DEATHS:
        raise EngineDeadError(
            f"{len(deaths)} replicas have died while they had this request, and no more are tried"
        ) from last
    if len(failures) >= _MOST_TRIES:
        raise EngineDeadError(f"no replica answers: {cause_of(last)}") from last


def _death(error: Exception) -> str | None:
    """The error of a replica's death, where the other one is for that."""
    if isinstance(error, ActorDiedError):
        return str(error.actor_id)
    cause = cause_of(error)
    return str(cause) if isinstance(cause, ReplicaDiedError) else None


async def _merged(
    streams: Sequence[AsyncGenerator[RequestOutput, None]],
) -> AsyncGenerator[RequestOutput, None]:
    """Outputs of all streams as they come. Raises the first error, and closes the rest."""
    pending = {asyncio.ensure_future(anext(stream)): stream for stream in streams}
    try:
        while pending:
            done, _ = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                stream = pending.pop(task)
                with suppress(StopAsyncIteration):
                    output = task.result()
                    pending[asyncio.ensure_future(anext(stream))] = stream
                    yield output
    finally:
        for task in pending:
            task.cancel()
        await asyncio.gather(*pending, return_exceptions=True)
        for stream in streams:
            await stream.aclose()
