"""One HTTP request's work: its prompts and choices, run side by side."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Collection, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from radixlm.core.errors import InvalidRequestError
from radixlm.core.keys import Key
from radixlm.core.misses import MissReport
from radixlm.core.request import (
    Breakpoint,
    FinishReason,
    GenerateRequest,
    Namespace,
    Pooled,
    RequestOutput,
    TokenLogprob,
)
from radixlm.core.sampling import SamplingParams
from radixlm.formats.trace_lines import Recorded
from radixlm.observe.causes import Finding, Outline, find
from radixlm.server.bodies.protocol import MAX_CHOICES, CacheParams
from radixlm.server.http.body import in_callers_words
from radixlm.server.insight.metrics import RequestTimes
from radixlm.server.insight.usage import (
    CacheReport,
    CacheReported,
    DraftedTokens,
    UsageMeter,
    as_report,
)
from radixlm.server.pipeline.answer_memory import Asked
from radixlm.server.pipeline.service import Service

_SEEDS = 2**64
_WHOLE = (FinishReason.STOP, FinishReason.LENGTH)


@dataclass(frozen=True, slots=True, eq=False)
class Generation:
    """One HTTP request's work for the engine, and what its answer needs to know.

    requests: request p * n + i is choice i of prompt p.
    prompt_only: for each prompt, whether nothing is to be generated; empty means of no prompt.
    asked: by which the answers are remembered, where they are; of a single prompt.
    outline: of the chat that is the prompt. changes: what of the request was not taken as it came.
    cache_report: whether the answer says why no more was cached.
    rids: the client's names for its requests, each with the engine's ids.
    names: the client's fields, by what the pipeline and the engine call them; see `renamed`.
    """

    request_id: str
    requests: Sequence[GenerateRequest]
    n: int = 1
    prompt_only: Sequence[bool] = ()
    asked: Asked | None = None
    outline: Outline | None = None
    changes: Sequence[str] = ()
    cache_report: bool = False
    rids: Mapping[str, Sequence[str]] = field(default_factory=dict)
    names: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        service: Service,
        request_id: str,
        keys: Sequence[Key],
        params: Sequence[SamplingParams],
        fields: CacheParams,
        tenant: str,
        *,
        n: int = 1,
        breakpoints: tuple[Breakpoint, ...] = (),
        names: Mapping[str, str] = MappingProxyType({}),
        changes: Sequence[str] = (),
        prediction: Key | None = None,
        pooled: Pooled = Pooled.NOTHING,
        **more: Any,
    ) -> Generation:
        """params: one for each prompt. fields: whose cache it may share, and whether it asks for a
        report. breakpoints, prediction, pooled: of each prompt. more: further fields.

        More tokens than fit after a prompt are as many as fit; with --strict-fields the engine
        refuses them. Raises InvalidRequestError for more than MAX_CHOICES, and for a prompt without
        tokens.
        """
        _check(service, keys, n, pooled)
        changes = [*changes, *_passed_over(service, fields)]
        if not service.config.strict_fields:
            given, limits = params, service.engine.limits
            params = [limits.fitted(key, own) for key, own in zip(keys, given, strict=True)]
            asked = {own.max_tokens for own, fit in zip(given, params, strict=True) if own != fit}
            field_name = names.get("max_tokens", "max_tokens")
            changes += _too_long(asked, field_name, limits.longest)
        namespace = service.isolated(service.namespace_of(fields), tenant)
        requests = [
            GenerateRequest(
                f"{request_id}-{prompt * n + place}",
                key,
                _of_choice(own, place),
                namespace=namespace.of_length(key.size, service.engine.limits.short_length),
                priority=fields.priority or 0,
                tenant=tenant,
                breakpoints=breakpoints,
                hint=fields.hint(breakpoints),
                prediction=prediction,
                pooled=pooled,
                rank=fields.data_parallel_rank,
            )
            for prompt, (key, own) in enumerate(zip(keys, params, strict=True))
            for place in range(n)
        ]
        return cls(
            *(request_id, requests, n),
            changes=changes,
            cache_report=bool(fields.cache_report),
            names=names,
            **more,
        )

    @property
    def tenant(self) -> str:
        return self.requests[0].tenant

    @property
    def adapter(self) -> str:
        """The name of the one that computes it; empty: the model alone."""
        return self.requests[0].namespace.adapter

    @property
    def params(self) -> SamplingParams:
        """The sampling parameters of the first choice."""
        return self.requests[0].params

    @property
    def prompts(self) -> list[Key]:
        return [request.key for request in self.requests[:: self.n]]

    def of_prompt_only(self, choice: int) -> bool:
        """Whether the prompt is all that is wanted of one choice."""
        return bool(self.prompt_only) and self.prompt_only[choice // self.n]


def _check(service: Service, keys: Sequence[Key], n: int, pooled: Pooled) -> None:
    if not pooled:
        service.engine.info.scoring.check_answers()
    if len(keys) * n > MAX_CHOICES:
        raise InvalidRequestError(
            f"{len(keys)} prompts times n {n} is more than {MAX_CHOICES}", param="n"
        )
    if any(not key.size for key in keys):
        raise InvalidRequestError("a prompt has no tokens", param="prompt")


def _passed_over(service: Service, fields: CacheParams) -> list[str]:
    """The notice of unknown fields, also in the log."""
    said = [
        f"{path!a:.200} is not a field that is known here; it is passed over"
        for path in fields.passed_over
    ]
    for text in said:
        service.notices.once(text)
    return said


def _too_long(asked: Collection[int | None], field: str, longest: int) -> list[str]:
    """The notice of answers' lengths for which there is no room."""
    return [
        f"{field} {most} is more than fits: with its prompt it is at most {longest} tokens"
        for most in asked
    ]


def _of_choice(params: SamplingParams, place: int) -> SamplingParams:
    """A prompt's parameters for one of its choices: the same, but each has another seed, and the
    first one alone computes the prompt's log-probabilities.
    """
    if place and params.prompt_logprobs is not None:
        params = replace(params, prompt_logprobs=None, logprob_start_len=0)
    seed = params.seed
    if seed is None or not place:
        return params
    return replace(params, seed=seed + place if seed + place < _SEEDS else place - 1)


class Part(NamedTuple):
    """New output of one choice."""

    choice: int
    output: RequestOutput


def computed(output: RequestOutput) -> bool:
    """Whether the prompt was computed: an output without tokens that is no end by length is not."""
    return bool(output.token_ids) or output.finish_reason is FinishReason.LENGTH


async def run(service: Service, generation: Generation) -> AsyncGenerator[Part, None]:
    """Outputs of all choices as they come, each choice's in order. Closing it aborts the rest.

    A prompt's log-probabilities are computed once, and the same tuple in each of its choices.

    Raises what the engine raises, about the client's own fields.
    """
    tenant = generation.tenant
    places = {request.request_id: at for at, request in enumerate(generation.requests)}
    scores = _PromptScores(service, generation)
    owner, behind = service.owner_of(tenant), generation.requests[0].priority < 0
    with (
        in_callers_words(generation.names),
        service.under_way.held(tenant, places, owner, generation.rids, behind=behind) as ended,
    ):
        times = [RequestTimes(service.metrics) for _ in places]
        answers: list[list[int]] = [[] for _ in places]
        began = time.time()
        chat = generation.outline is not None
        async with aclosing(service.stream(generation.requests, chat=chat)) as outputs:
            async for output in outputs:
                choice = places[output.request_id]
                part = Part(choice, output)
                answers[choice] += output.token_ids
                if output.miss is not None and choice % generation.n == 0:
                    _take_miss(service, generation, generation.requests[choice], output.miss)
                if output.queued is not None:
                    service.metrics.queue_time.observe(output.queued)
                times[choice].take(len(output.token_ids))
                if output.finished:
                    if service.recorder is not None:
                        request = generation.requests[choice]
                        service.recorder.note(_recorded(service, request, began, answers[choice]))
                    await _remember(service, generation, part, answers[choice])
                for each in await scores.shared(part):
                    yield each
                if output.finished:
                    times[choice].end()
                    ended()


def _recorded(
    service: Service, request: GenerateRequest, began: float, answer: Sequence[int]
) -> Recorded:
    return Recorded(
        began,
        request.key,
        np.array(answer, dtype=np.int32),
        namespace="" if request.namespace == Namespace() else str(request.namespace),
        tenant=request.tenant,
        priority=request.priority,
        max_tokens=service.engine.limits.resolve_max_tokens(request.key, request.params),
        breakpoints=request.breakpoints,
        hint=request.hint,
    )


def _take_miss(
    service: Service, generation: Generation, request: GenerateRequest, miss: MissReport
) -> None:
    service.misses.sample(service.engine.stats())
    tenant = request.tenant
    # To all who use the tenant's key, who need not know the salt.
    unsalted = request.namespace.cache_salt == service.isolated(Namespace(), tenant).cache_salt
    shown = unsalted or service.sees_salted(tenant)
    own = service.shows_cached_text(tenant, request.namespace)
    look = partial(_find, service, generation, request, miss)
    service.misses.add(tenant, miss, look, shows_text=shown and own)


def _find(
    service: Service, generation: Generation, request: GenerateRequest, miss: MissReport
) -> Finding:
    others = not service.shows_cached_text(request.tenant, request.namespace)
    tokenizer, outline = service.engine.tokenizer, generation.outline
    return find(tokenizer, miss, request.key, outline, others=others)


async def _remember(
    service: Service, generation: Generation, part: Part, answer: Sequence[int]
) -> None:
    """Keep the tokens of an answer that has come to its end, before the client learns of it: it may
    go on from there at once.
    """
    choice, output = part
    if output.finish_reason not in _WHOLE or generation.asked is None:
        return
    if not generation.of_prompt_only(choice):
        stop = output.matched_stop if isinstance(output.matched_stop, str) else None
        key = generation.requests[choice].key
        # In a thread: a long one takes long to decode.
        await asyncio.to_thread(service.memory.remember, generation.asked, key, answer, stop)


@dataclass(slots=True, eq=False)
class _PromptScores:
    """Gives prompts' log-probabilities to all of their choices. The first one brings them, or,
    where that one is aborted before it has any, a request of their own. Outputs of the others wait
    for them.
    """

    service: Service
    generation: Generation
    # By prompt: None once it is known that the first choice brings none. O(prompts).
    known: dict[int, tuple[TokenLogprob, ...] | None] = field(default_factory=dict)
    waiting: dict[int, list[Part]] = field(default_factory=dict)
    begun: set[int] = field(default_factory=set)

    async def shared(self, part: Part) -> list[Part]:
        """The outputs that can be given to the client now that this one has come."""
        generation, prompt = self.generation, part.choice // self.generation.n
        first = generation.requests[prompt * generation.n].params
        if generation.n == 1 or first.prompt_logprobs is None:
            return [self._shown(part)]
        if part.choice % generation.n == 0 and prompt not in self.known:
            output = part.output
            self.known[prompt] = output.prompt_logprobs if computed(output) else None
        parts = [*self.waiting.pop(prompt, ()), part]
        if prompt not in self.known and any(computed(each.output) for each in parts):
            self.waiting[prompt] = parts
            return []
        return [self._shown(await self._scored(each, prompt)) for each in parts]

    async def _scored(self, part: Part, prompt: int) -> Part:
        choice, output = part
        if choice in self.begun:
            return part
        self.begun.add(choice)
        if choice % self.generation.n == 0 or not computed(output):
            return part
        scores = self.known[prompt]
        if scores is None:
            scores = self.known[prompt] = await self._alone(prompt)
        first = prompt * self.generation.n
        if self.begun.issuperset(range(first, first + self.generation.n)):
            self.known[prompt] = ()  # megabytes that nobody reads any more
        return Part(choice, replace(output, prompt_logprobs=scores))

    async def _alone(self, prompt: int) -> tuple[TokenLogprob, ...]:
        first = self.generation.requests[prompt * self.generation.n]
        alone = replace(
            first,
            request_id=f"{first.request_id}-scores",
            params=replace(first.params, max_tokens=1, min_tokens=0),
        )
        async with aclosing(self.service.engine.stream_all([alone])) as outputs:
            return (await anext(outputs)).prompt_logprobs

    def _shown(self, part: Part) -> Part:
        if self.generation.of_prompt_only(part.choice):
            return part._replace(output=part.output.without_answer())
        return part


def reported(service: Service, generation: Generation, meter: UsageMeter) -> CacheReported:
    """The report beside an answer's usage: nothing, unless a report was asked for.

    It takes a part of a millisecond for each prompt.
    """
    if not generation.cache_report or not meter.misses:
        return {}
    reports = [
        report_of(service, generation, prompt, miss, meter.drafts(prompt))
        for prompt, miss in sorted(meter.misses.items())
    ]
    return {"cache_report": reports[0] if len(generation.prompts) == 1 else reports}


def report_of(
    service: Service,
    generation: Generation,
    prompt: int,
    miss: MissReport,
    drafts: Mapping[str, DraftedTokens] = MappingProxyType({}),
) -> CacheReport:
    """The report of one of a generation's prompts. drafts: see CacheReport."""
    request = generation.requests[prompt * generation.n]
    shown = service.shows_cached_text(request.tenant, request.namespace)
    found = _find(service, generation, request, miss)
    report = as_report(prompt, miss, found, shows_text=shown)
    if generation.changes:
        report["changes"] = list(generation.changes)
    if drafts:
        report["drafts"] = dict(drafts)
    return report
