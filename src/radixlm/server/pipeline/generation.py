"""One HTTP request's work: its prompts and choices, run side by side."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

from radixlm.core.errors import InvalidRequestError
from radixlm.core.keys import Key
from radixlm.core.misses import MissReport
from radixlm.core.request import (
    Breakpoint,
    FinishReason,
    Namespace,
    RequestOutput,
    TokenLogprob,
)
from radixlm.core.sampling import SamplingParams
from radixlm.observe.causes import find
from radixlm.observe.outline import Outline
from radixlm.server.pipeline.answer_memory import Asked
from radixlm.server.pipeline.metrics import RequestTimes
from radixlm.server.pipeline.protocol import MAX_CHOICES
from radixlm.server.pipeline.service import Service

_QUEUED_OUTPUTS = 1024
_SEEDS = 2**64
_WHOLE = (FinishReason.STOP, FinishReason.LENGTH)

_Logprobs = tuple[TokenLogprob, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Job:
    """Choice p * n + i is answer i of prompt p; its seed is the prompt's plus i.

    params: of all prompts, unless there are own_params, one for each prompt.
    prompt_only: for each prompt, whether nothing is to be generated; none means of no prompt.
    breakpoints: what of each prompt is to be kept. outline: of the chat that is the prompt.
    asked: what the answers are remembered by, where they are; of a single prompt.
    cache_report: whether its answer tells why no more was cached. cached_details: where it was.
    Raises InvalidRequestError when there are more than MAX_CHOICES choices, or none.
    """

    request_id: str
    prompts: Sequence[Key]
    n: int
    params: SamplingParams
    namespace: Namespace
    priority: int
    tenant: str
    own_params: Sequence[SamplingParams] = ()
    prompt_only: Sequence[bool] = ()
    breakpoints: Sequence[Breakpoint] = ()
    asked: Asked | None = None
    outline: Outline | None = None
    cache_report: bool = False
    cached_details: bool = False

    def __post_init__(self) -> None:
        if self.choices > MAX_CHOICES:
            raise InvalidRequestError(
                f"{len(self.prompts)} prompts times n {self.n} is more than {MAX_CHOICES}",
                param="n",
            )
        if any(not prompt.size for prompt in self.prompts):
            raise InvalidRequestError("a prompt has no tokens", param="prompt")

    @property
    def choices(self) -> int:
        return len(self.prompts) * self.n

    def params_of(self, choice: int) -> SamplingParams:
        """The parameters of one choice: the same but for the seed, and the prompt's
        log-probabilities, which its first choice computes for all.
        """
        prompt, place = divmod(choice, self.n)
        params = self.own_params[prompt] if self.own_params else self.params
        if place and params.prompt_logprobs is not None:
            params = replace(params, prompt_logprobs=None, logprob_start_len=0)
        seed = params.seed
        if seed is None or not place:
            return params
        return replace(params, seed=seed + place if seed + place < _SEEDS else place - 1)

    def of_prompt_only(self, choice: int) -> bool:
        """Whether the prompt is all that is wanted of one choice."""
        return bool(self.prompt_only) and self.prompt_only[choice // self.n]

    def name_of(self, choice: int) -> str:
        """The engine's id for one choice."""
        return f"{self.request_id}-{choice}"


class Part(NamedTuple):
    """New output of one choice."""

    choice: int
    output: RequestOutput


class _Scores:
    """A prompt's log-probabilities: its first choice brings them, or, where that one is aborted
    before it has any, a request of their own for whoever waits.
    """

    def __init__(self, score: Callable[[], Coroutine[Any, Any, _Logprobs]]) -> None:
        self.brought: asyncio.Future[_Logprobs | None] = asyncio.get_running_loop().create_future()
        self._score = score
        self._own: asyncio.Task[_Logprobs] | None = None

    async def get(self) -> _Logprobs:
        known = await self.brought
        if known is None:
            self._own = self._own or asyncio.create_task(self._score())
            known = await self._own
        return known


def computed(output: RequestOutput) -> bool:
    """Whether the prompt was computed: an output without tokens that is no end by length is not."""
    return bool(output.token_ids) or output.finish_reason is FinishReason.LENGTH


async def stream_parts(service: Service, job: Job) -> AsyncGenerator[Part, None]:
    """Outputs of all choices as they come, each choice's in order. Closing it aborts the rest.

    A prompt's log-probabilities are computed once, and the same tuple in each of its choices.

    Raises what the engine raises.
    """
    most = service.config.max_queued_requests_per_key
    with service.queues.taken(job.tenant, job.choices, most):
        async with aclosing(_side_by_side(service, job)) as parts:
            async for part in parts:
                yield part


async def _side_by_side(service: Service, job: Job) -> AsyncGenerator[Part, None]:
    if job.choices == 1:
        async with aclosing(_one(service, job, 0)) as parts:
            async for part in parts:
                yield part
        return
    # All or none: those that had been taken would keep others out until they are aborted.
    service.engine.check_room(job.choices)
    queue: asyncio.Queue[Part | BaseException | None] = asyncio.Queue(_QUEUED_OUTPUTS)
    pumps = [asyncio.create_task(_pump(each, queue)) for each in _each(service, job)]
    try:
        running = len(pumps)
        while running:
            item = await queue.get()
            if item is None:
                running -= 1
            elif isinstance(item, BaseException):
                raise item
            else:
                yield item
    finally:
        for pump in pumps:
            pump.cancel()
        await asyncio.gather(*pumps, return_exceptions=True)


async def run_to_end(parts: AsyncGenerator[Part, None], choices: int) -> list[RequestOutput]:
    """Every choice's whole output, in order of the choices. Closes `parts`."""
    outputs: list[list[RequestOutput]] = [[] for _ in range(choices)]
    async with aclosing(parts):
        async for part in parts:
            outputs[part.choice].append(part.output)
    return [RequestOutput.joined(each) for each in outputs]


def _each(service: Service, job: Job) -> Iterator[AsyncGenerator[Part, None]]:
    """Every choice's parts; those of a prompt that is scored have its log-probabilities."""
    for prompt in range(len(job.prompts)):
        first = prompt * job.n
        scored = job.n > 1 and job.params_of(first).prompt_logprobs is not None
        # Held by its readers alone, so that it goes when the last of them has begun.
        scores = _Scores(partial(_scored, service, job, prompt)) if scored else None
        for choice in range(first, first + job.n):
            parts = _one(service, job, choice)
            yield parts if scores is None else _with_scores(parts, scores, brings=choice == first)


async def _with_scores(
    parts: AsyncGenerator[Part, None], scores: _Scores, *, brings: bool
) -> AsyncGenerator[Part, None]:
    """The same parts; the first one brings the prompt's log-probabilities, or waits for them."""
    async with aclosing(parts):
        choice, output = await anext(parts)
        if brings:
            scores.brought.set_result(output.prompt_logprobs if computed(output) else None)
        elif computed(output):
            output = replace(output, prompt_logprobs=await scores.get())
        del scores
        yield Part(choice, output)
        del output
        async for part in parts:
            yield part


async def _scored(service: Service, job: Job, prompt: int) -> _Logprobs:
    """A prompt's log-probabilities alone."""
    first = prompt * job.n
    alone = replace(
        job,
        request_id=f"{job.name_of(first)}-scores",
        prompts=[job.prompts[prompt]],
        n=1,
        params=replace(job.params_of(first), max_tokens=1, min_tokens=0),
        own_params=(),
        prompt_only=(True,),
        asked=None,
    )
    async with aclosing(_one(service, alone, 0)) as parts:
        return (await anext(parts)).output.prompt_logprobs


async def _pump(
    parts: AsyncGenerator[Part, None], queue: asyncio.Queue[Part | BaseException | None]
) -> None:
    try:
        async with aclosing(parts):
            async for part in parts:
                await queue.put(part)
        await queue.put(None)
    except Exception as error:  # handed over to the task that answers the client
        await queue.put(error)


async def _one(service: Service, job: Job, choice: int) -> AsyncGenerator[Part, None]:
    times = RequestTimes(service.metrics, service.clock)
    prompt_only = job.of_prompt_only(choice)
    answer: list[int] = []
    stream = service.engine.stream(
        job.prompts[choice // job.n],
        job.params_of(choice),
        request_id=job.name_of(choice),
        namespace=service.isolated(job.namespace, job.tenant),
        priority=job.priority,
        tenant=job.tenant,
        breakpoints=job.breakpoints,
    )
    owner = service.owner_of(job.tenant)
    with service.rids.running(owner, job.name_of(choice)), service.pace.one_more():
        async with aclosing(stream) as outputs:
            async for output in outputs:
                if output.miss is not None and choice % job.n == 0:
                    _take_miss(service, job, choice // job.n, output.miss)
                if output.queued is not None:
                    service.metrics.queue_time.observe(output.queued)
                times.take(len(output.token_ids))
                answer += output.token_ids
                # Before its end is told: who hears of it may ask at once.
                if output.finish_reason in _WHOLE and job.asked is not None and not prompt_only:
                    stop = output.matched_stop
                    # In a thread: a long one takes long to decode.
                    await asyncio.to_thread(
                        service.memory.remember,
                        *(job.asked, job.prompts[0], answer),
                        stop if isinstance(stop, str) else None,
                    )
                yield Part(choice, output.without_answer() if prompt_only else output)
    times.end()


def _take_miss(service: Service, job: Job, prompt: int, miss: MissReport) -> None:
    service.misses.sample(service.engine.stats())
    # To all who use the tenant's key, who need not know the salt.
    shown = not job.namespace.cache_salt or service.sees_salted(job.tenant)
    own = service.shows_cached_text(job.tenant, job.namespace)
    key, tokenizer = job.prompts[prompt], service.engine.tokenizer
    service.misses.add(
        job.tenant,
        miss,
        partial(find, tokenizer, miss, key, job.outline, others=not own),
        shows_text=shown and own,
    )
