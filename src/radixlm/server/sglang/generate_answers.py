"""/generate: from prompts to what is generated, and how SGLang writes that."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NotRequired

from typing_extensions import TypedDict

from radixlm.core.misses import MissReport
from radixlm.core.request import FinishReason, RequestOutput
from radixlm.server.bodies.logprobs import NativeLogprobs
from radixlm.server.http.body import in_callers_words
from radixlm.server.http.sse import DONE, framed, spliced
from radixlm.server.insight.usage import CacheReport, UsageMeter, as_drafts
from radixlm.server.pipeline.generation import Generation, computed, report_of
from radixlm.server.pipeline.service import Service
from radixlm.server.sglang.generate_body import GenerateBody
from radixlm.text.native_logprobs import NativeLists, NativeToken


class NativeFinish(TypedDict):
    """length: of the answer in tokens. matched: the stop string or token that ended it."""

    type: FinishReason
    length: NotRequired[int]
    matched: NotRequired[str | int | None]
    message: NotRequired[str]


class NativeLogprobLists(TypedDict, total=False):
    """They are there with return_logprob, the top ones with top_logprobs_num."""

    input_token_logprobs: list[NativeToken]
    output_token_logprobs: list[NativeToken]
    input_top_logprobs: list[list[NativeToken] | None]
    output_top_logprobs: list[list[NativeToken] | None]


class NativeMeta(NativeLogprobLists):
    """e2e_latency: in seconds, at the end; cache_report too, where it was asked for."""

    id: str
    finish_reason: NativeFinish | None
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    e2e_latency: NotRequired[float]
    cache_report: NotRequired[CacheReport]


class Generated(TypedDict):
    """index: in a stream of several answers, which one it is."""

    text: str
    output_ids: list[int]
    meta_info: NativeMeta
    index: NotRequired[int]


@dataclass(frozen=True, slots=True, eq=False)
class NativeTask:
    """A generation, and what its answers need to know.

    ids: of each choice, for the client. batched: answers go as a list.
    starts: for each prompt, where its log-probabilities begin, -1 for the answer's only.
    began: by the service's clock.
    """

    generation: Generation
    ids: Sequence[str]
    starts: Sequence[int]
    batched: bool
    with_text: bool
    began: float


def native_task(service: Service, body: GenerateBody, tenant: str, began: float) -> NativeTask:
    """Tokenize. Takes time in proportion to the prompts: call it off the event loop.

    Raises InvalidRequestError that names the field.
    """
    service.check_model(body.model)
    names, request_id = body.names(), f"gen-{uuid.uuid4().hex}"
    with in_callers_words(names):
        keys = [
            service.key(prompt, add_special_tokens=True, param=body.prompt_field)
            for prompt in body.to_prompts()
        ]
        each = body.each_prompt(keys, service.engine.limits.longest)
        n, params = each[0].n, [own.params for own in each]
        generation = Generation.of(
            *(service, request_id, keys, params, body, tenant),
            n=n,
            prompt_only=[own.prompt_only for own in each],
            names=names,
        )
        ids, rids = _names([request.request_id for request in generation.requests], n, body)
    generation = replace(generation, rids=rids)
    starts, batched = [own.start for own in each], body.batched or n > 1
    return NativeTask(generation, ids, starts, batched, bool(body.return_text_in_logprobs), began)


@dataclass(slots=True)
class _NativeChoice:
    """The state of one choice; see NativeWriter."""

    text: list[str] = field(default_factory=list)
    ids: list[int] = field(default_factory=list)
    logprobs: NativeLogprobs | None = None
    last: RequestOutput | None = None
    miss: MissReport | None = None
    took: float = 0.0


class NativeWriter:
    """SGLang's answers. Each holds everything so far, in a stream too.

    Source: https://docs.sglang.ai/basic_usage/native_api.html.
    """

    def __init__(self, service: Service, task: NativeTask, *, streams: bool) -> None:
        generation = task.generation
        self.meter = UsageMeter(generation.n, caches=service.caches)
        self._service = service
        self._task = task
        self._streams = streams
        self._generation = generation
        self._choices = [_NativeChoice() for _ in generation.requests]
        # Of each prompt, written once for all its choices.
        self._scores: dict[int, Mapping[str, bytes]] = {}
        for known, request in zip(self._choices, generation.requests, strict=True):
            if (top := request.params.logprobs) is not None:
                lists = NativeLists(
                    service.engine.tokenizer, with_text=task.with_text, with_top=top > 0
                )
                known.logprobs = NativeLogprobs(lists)

    def push(self, choice: int, output: RequestOutput) -> list[bytes]:
        known = self._choices[choice]
        if known.logprobs is not None:
            prompt = choice // self._generation.n
            if self._task.starts[prompt] >= 0 and known.last is None and computed(output):
                if prompt not in self._scores:
                    # Nothing is known of a prompt's first token.
                    key = self._generation.requests[choice].key
                    first = None if self._task.starts[prompt] else int(key[0])
                    written = known.logprobs.of_prompt(first, output.prompt_logprobs)
                    self._scores[prompt] = written
                known.logprobs.add_prompt(self._scores[prompt])
            known.logprobs.add_output(output.logprobs)
        known.text.append(output.text)
        known.ids.extend(output.token_ids)
        known.last = output
        known.miss = output.miss or known.miss
        known.took = self._service.clock.now() - self._task.began
        if not self._streams:
            return []
        # Of a list, it says which entry it is.
        index = {"index": choice} if self._task.batched else {}
        return [framed(self._entry(choice, **index))]

    async def finish(self) -> list[bytes]:
        return [DONE]

    def whole(self) -> bytes:
        """The answer, or a list of them."""
        entries = [self._entry(choice) for choice in range(len(self._choices))]
        return b"[" + b",".join(entries) + b"]" if self._task.batched else entries[0]

    def _entry(self, choice: int, **index: int) -> bytes:
        """A Generated as JSON."""
        known, generation = self._choices[choice], self._generation
        last = known.last or RequestOutput("")
        meta: NativeMeta = {
            "id": self._task.ids[choice],
            "finish_reason": _finish_reason(last, len(known.ids)),
            "prompt_tokens": last.prompt_tokens,
            "completion_tokens": len(known.ids),
            "cached_tokens": last.cached_tokens,
        }
        if last.finished:
            meta["e2e_latency"] = known.took
            if known.miss is not None and generation.cache_report:
                asked = self._service, generation, choice // generation.n, known.miss
                meta["cache_report"] = report_of(*asked, as_drafts([last.drafts]))
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


def _names(
    ids: Sequence[str], n: int, body: GenerateBody
) -> tuple[Sequence[str], dict[str, list[str]]]:
    """Each choice's id for the client, and the engine's ids that it may abort, by their names.

    A rid that is given for several answers is theirs together; each has its own as well: rid_0,
    rid_1, ... ids: the engine's, of each choice.
    """
    given = body.rids(len(ids) // n)
    if given is None:
        return ids, {}
    names = []
    held: dict[str, list[str]] = {}
    for choice, own_id in enumerate(ids):
        prompt, place = divmod(choice, n)
        if isinstance(given, str):
            rid, own = given, choice if body.batched or n > 1 else None
        else:
            rid, own = given[prompt], place if n > 1 else None
        names.append(rid if own is None else f"{rid}_{own}")
        for name in {rid, names[-1]}:
            held.setdefault(name, []).append(own_id)
    return names, held
