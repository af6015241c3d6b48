"""/cache/explain: why a prompt would miss now, said without running it; /cache/hint: what comes
after one that was run.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Annotated, NotRequired, cast

from fastapi import APIRouter, Depends, Request
from fastapi.responses import JSONResponse, Response
from typing_extensions import TypedDict

from radixlm.core.errors import EngineDeadError, InvalidRequestError, QueueFullError
from radixlm.core.request import Hint, Namespace
from radixlm.server import explain_body as bodies
from radixlm.server.anthropic.messages_routes import message_task
from radixlm.server.http.body import in_callers_words
from radixlm.server.http.http_errors import AdminKeyNeededError, NotFoundError
from radixlm.server.http.routes import ReadAs, Route, noted
from radixlm.server.insight.advice import Advice
from radixlm.server.insight.usage import CacheReport
from radixlm.server.openai.completions import completion_generation
from radixlm.server.pipeline.chat import chat_task
from radixlm.server.pipeline.generation import Generation, report_of
from radixlm.server.pipeline.service import check_room, service_of, tenant_of
from radixlm.server.responses.responses_routes import response_task, store_of
from radixlm.server.sglang.generate_answers import native_task


class CachedPrefix(TypedDict):
    """How many of a prompt's first tokens are cached in a namespace."""

    adapter_id: str
    cache_salt: str
    extra_key: str
    tokens: int


class Explanation(TypedDict):
    """reports: one for each prompt. longer_elsewhere: with across_namespaces, for each prompt the
    other namespaces that hold more of it, the one that holds most first.
    """

    reports: list[CacheReport]
    longer_elsewhere: NotRequired[list[list[CachedPrefix]]]


class Hinted(TypedDict):
    """cached_tokens: of each prompt, those that are cached, of which the policy knows it now."""

    cached_tokens: list[int]


async def _generation_of(request: Request, body: bodies.ExplainBody) -> Generation:
    """The generation that the body's own route would run."""
    service, tenant = service_of(request), tenant_of(request)
    match body:
        case bodies.ExplainChat():
            return (await asyncio.to_thread(chat_task, service, body, tenant)).generation
        case bodies.ExplainCompletion():
            return await asyncio.to_thread(completion_generation, service, body, tenant)
        case bodies.ExplainResponse():
            chat, _ = await response_task(service, store_of(request), body, tenant)
            return chat.generation
        case bodies.ExplainMessages():
            chat, _ = await asyncio.to_thread(message_task, service, body, tenant)
            return chat.generation
        case bodies.ExplainGenerate():
            began = service.clock.now()
            return (await asyncio.to_thread(native_task, service, body, tenant, began)).generation


def _longer(holders: Mapping[Namespace, int], own: Namespace, cached: int) -> list[CachedPrefix]:
    longer = [(n, name) for name, n in holders.items() if name != own and n > cached]
    return [
        cast("CachedPrefix", {**name._asdict(), "tokens": tokens})
        for tokens, name in sorted(longer, reverse=True)
    ]


router = APIRouter(route_class=Route)


@router.post(
    "/cache/explain",
    response_model=Explanation,
    dependencies=[Depends(check_room)],
    responses=noted(
        *(NotFoundError, QueueFullError, EngineDeadError, AdminKeyNeededError),
        example={"prompt": "The capital of France is"},
    ),
)
async def explain(
    request: Request, body: Annotated[bodies.ExplainBody, ReadAs(bodies.explain_body)]
) -> Response:
    """Explain why a prompt would miss now; it is not run, and leaves no trace.

    The body is that of a request to any route that computes a prompt. Only the request's own
    namespace is looked into; across_namespaces is for admins.
    """
    service, everywhere = service_of(request), bool(body.across_namespaces)
    if everywhere and not service.keys.is_admin(tenant_of(request)):
        raise AdminKeyNeededError("across_namespaces needs one of the keys of --admin-api-key")
    answer: Explanation = {"reports": []}
    generation = await _generation_of(request, body)
    namespace = generation.requests[0].namespace
    for index, key in enumerate(generation.prompts):
        with in_callers_words(generation.names):
            explained = await service.engine.explain(
                key, namespace=namespace, everywhere=everywhere
            )
        report = report_of(service, generation, index, explained.report)
        answer["reports"].append(report)
        if everywhere:
            holders = cast("Mapping[Namespace, int]", explained.holders)
            longer = _longer(holders, namespace, explained.report.cached)
            answer.setdefault("longer_elsewhere", []).append(longer)
    return JSONResponse(answer)


@router.post(
    "/cache/hint",
    response_model=Hinted,
    dependencies=[Depends(check_room)],
    responses=noted(
        *(NotFoundError, QueueFullError, EngineDeadError),
        example={"prompt": "The capital of France is", "cache_hint": "session_end"},
    ),
)
async def hint(
    request: Request, body: Annotated[bodies.ExplainBody, ReadAs(bodies.explain_body)]
) -> Response:
    """Say by cache_hint or cache_ttl what comes after a prompt that was answered; it is not run.

    The body is that of a request to any route that computes a prompt. Only the request's own
    namespace is meant.
    """
    said = body.hint()
    if said is Hint.NONE:
        raise InvalidRequestError("give cache_hint or cache_ttl", param="cache_hint")
    generation = await _generation_of(request, body)
    answer: Hinted = {"cached_tokens": []}
    namespace, engine = generation.requests[0].namespace, service_of(request).engine
    for key in generation.prompts:
        answer["cached_tokens"].append(await engine.hint(key, said, namespace=namespace))
    return JSONResponse(answer)


@router.get("/cache/advice", response_model=Advice)
async def advice(request: Request) -> Response:
    """Report what the last prompts had to compute, by cause and place, and what to do about it.

    Of the same key's requests only; with an admin's key, or where there are no keys, of all.
    """
    service, tenant = service_of(request), tenant_of(request)
    keyless = not (service.config.api_key or service.config.admin_api_key)
    owner = None if keyless or service.keys.is_admin(tenant) else tenant
    return JSONResponse(service.misses.advice(service.engine.stats(), owner))
