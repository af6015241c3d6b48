"""/generate: prompts to a job, outputs to SGLang's answers."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from functools import partial

from fastapi.responses import Response

from radixlm.core.misses import MissReport
from radixlm.core.request import FinishReason, RequestOutput
from radixlm.server.http.sse import DONE, framed, spliced
from radixlm.server.openai.openai_wire import NativeFinish, NativeMeta
from radixlm.server.pipeline.cache_report import report_of
from radixlm.server.pipeline.generation import Job, Part, computed, stream_parts
from radixlm.server.pipeline.logprobs import NativeLogprobs
from radixlm.server.pipeline.service import Service
from radixlm.server.sglang.generate_body import GenerateBody


@dataclass(frozen=True, slots=True, eq=False)
class NativeJob:
    """A job, and what its answers need to know.

    ids: of each choice, for the client. rids: the client's names, each with the engine's ids.
    starts: for each prompt, where its log-probabilities begin, -1 for the answer's only.
    began: by the service's clock.
    """

    job: Job
    ids: Sequence[str]
    rids: Mapping[str, Sequence[str]]
    starts: Sequence[int]
    batched: bool
    with_text: bool
    began: float


def generate_job(service: Service, body: GenerateBody, tenant: str, began: float) -> NativeJob:
    """Tokenize. Takes time in proportion to the prompts: call it off the event loop.

    Raises InvalidRequestError that names the field.
    """
    service.check_model(body.model)
    keys = [
        service.key(prompt, add_special_tokens=True, param=body.prompt_field)
        for prompt in body.to_prompts()
    ]
    each = body.each_sampling(len(keys))
    info = service.engine.info
    params = body.to_params(keys, min(info.context_length, info.kv_tokens))
    n = each[0].n or 1
    job = Job(
        request_id=f"gen-{uuid.uuid4().hex}",
        prompts=keys,
        n=n,
        params=params[0],
        namespace=body.namespace,
        priority=body.priority or 0,
        tenant=tenant,
        own_params=params,
        prompt_only=[own.prompt_only for own in each],
        cache_report=bool(body.cache_report),
    )
    ids, rids = _names(job, body)
    return NativeJob(
        job=job,
        ids=ids,
        rids=rids,
        starts=body.starts(keys),
        batched=body.batched or n > 1,
        with_text=bool(body.return_text_in_logprobs),
        began=began,
    )


async def native_parts(service: Service, native: NativeJob) -> AsyncGenerator[Part, None]:
    """As `stream_parts`; the job can be aborted by the client's names meanwhile."""
    with service.rids.held(service.owner_of(native.job.tenant), native.rids):
        async with aclosing(stream_parts(service, native.job)) as parts:
            async for part in parts:
                yield part


@dataclass(slots=True)
class _Choice:
    """What is known of one choice; see Answers."""

    text: list[str] = field(default_factory=list)
    ids: list[int] = field(default_factory=list)
    logprobs: NativeLogprobs | None = None
    last: RequestOutput | None = None
    miss: MissReport | None = None
    took: float = 0.0


class Answers:
    """SGLang's answers of one job. Each holds everything so far, in a stream too.

    Source: https://docs.sglang.ai/basic_usage/native_api.html.
    """

    def __init__(self, service: Service, native: NativeJob) -> None:
        self._service = service
        self._native = native
        self._choices = [_Choice() for _ in range(native.job.choices)]
        # Of each prompt, written once for all its choices.
        self._scores: dict[int, Mapping[str, bytes]] = {}
        for choice, known in enumerate(self._choices):
            params = native.job.params_of(choice)
            if params.logprobs is not None:
                known.logprobs = NativeLogprobs(
                    service.engine.tokenizer,
                    with_text=native.with_text,
                    with_top=params.logprobs > 0,
                )

    async def events(self, parts: AsyncGenerator[Part, None]) -> AsyncGenerator[bytes, None]:
        """The answer as it grows; of a list, each says which entry it is."""
        async with aclosing(parts):
            async for choice, output in parts:
                await self._add(choice, output)
                index = {"index": choice} if self._native.batched else {}
                yield framed(self._entry(choice, **index))
        yield DONE

    async def whole(self, parts: AsyncGenerator[Part, None]) -> Response:
        """The answer, or a list of them."""
        async with aclosing(parts):
            async for choice, output in parts:
                await self._add(choice, output)
        return await asyncio.to_thread(self._written)

    def _written(self) -> Response:
        """Entry by entry, for a thread: making JSON keeps the interpreter to itself, and prompts'
        log-probabilities are megabytes of it. So do the reports of many misses.
        """
        entries = [self._entry(choice) for choice in range(len(self._choices))]
        body = b"[" + b",".join(entries) + b"]" if self._native.batched else entries[0]
        return Response(body, media_type="application/json")

    async def _add(self, choice: int, output: RequestOutput) -> None:
        known = self._choices[choice]
        if known.logprobs is not None:
            prompt = choice // self._native.job.n
            if self._native.starts[prompt] >= 0 and known.last is None and computed(output):
                if prompt not in self._scores:
                    write = partial(known.logprobs.of_prompt, self._first(prompt))
                    # In a thread: a long prompt's are megabytes.
                    self._scores[prompt] = await asyncio.to_thread(write, output.prompt_logprobs)
                known.logprobs.add_prompt(self._scores[prompt])
            known.logprobs.add_output(output.logprobs)
        known.text.append(output.text)
        known.ids.extend(output.token_ids)
        known.last = output
        known.miss = known.miss or output.miss
        known.took = self._service.clock.now() - self._native.began

    def _first(self, prompt: int) -> int | None:
        """A prompt's first token, where its log-probabilities begin there."""
        return None if self._native.starts[prompt] else int(self._native.job.prompts[prompt][0])

    def _entry(self, choice: int, **index: int) -> bytes:
        """A Generated as JSON."""
        known = self._choices[choice]
        last = known.last or RequestOutput(self._native.job.name_of(choice))
        meta: NativeMeta = {
            "id": self._native.ids[choice],
            "finish_reason": _finish_reason(last, len(known.ids)),
            "prompt_tokens": last.prompt_tokens,
            "completion_tokens": len(known.ids),
            "cached_tokens": last.cached_tokens,
        }
        if last.finished:
            meta["e2e_latency"] = known.took
            if known.miss is not None and self._native.job.cache_report:
                job = self._native.job
                prompt = choice // job.n
                meta["cache_report"] = report_of(self._service, job, prompt, known.miss)
        lists = {} if known.logprobs is None else known.logprobs.as_json()
        answer = {"text": "".join(known.text), "output_ids": known.ids}
        return spliced({**answer, **index}, {"meta_info": spliced(meta, lists)})


def _finish_reason(output: RequestOutput, length: int) -> NativeFinish | None:
    match output.finish_reason:
        case None:
            return None
        case FinishReason.LENGTH:
            return {"type": FinishReason.LENGTH, "length": length}
        case FinishReason.STOP:
            return {"type": FinishReason.STOP, "matched": output.matched_stop}
        case other:
            return {"type": other, "message": "Aborted"}


def _names(job: Job, body: GenerateBody) -> tuple[list[str], dict[str, list[str]]]:
    """Each choice's id, and what the client may abort by which name.

    A rid that is given for several answers is theirs together; each has its own behind it too:
    rid_0, rid_1, ...
    """
    given = body.rids(len(job.prompts))
    if given is None:
        return [job.name_of(choice) for choice in range(job.choices)], {}
    ids = []
    held: dict[str, list[str]] = {}
    for choice in range(job.choices):
        prompt, place = divmod(choice, job.n)
        if isinstance(given, str):
            rid, own = given, choice if body.batched or job.n > 1 else None
        else:
            rid, own = given[prompt], place if job.n > 1 else None
        ids.append(rid if own is None else f"{rid}_{own}")
        for name in {rid, ids[-1]}:
            held.setdefault(name, []).append(job.name_of(choice))
    return ids, held
