"""POST /cache/explain: why a prompt would miss, without running it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import cast

from radixlm.core.errors import InvalidRequestError
from radixlm.core.request import Namespace
from radixlm.server.anthropic import as_chat as messages
from radixlm.server.anthropic.run import message_task
from radixlm.server.cache.explain_body import (
    ExplainBody,
    ExplainChat,
    ExplainCompletion,
    ExplainGenerate,
    ExplainMessages,
    ExplainResponse,
)
from radixlm.server.cache.reports import report_of
from radixlm.server.cache.wire import Explanation, Held
from radixlm.server.chat import chat_task
from radixlm.server.completions import completion_job
from radixlm.server.generation import Job
from radixlm.server.native import generate_job
from radixlm.server.responses import as_chat as responses
from radixlm.server.responses.prompt import response_task
from radixlm.server.service import Service


async def explanation(service: Service, body: ExplainBody, tenant: str) -> Explanation:
    """The answer. Raises InvalidRequestError, as the body's own route would."""
    job = await _job_of(service, body, tenant)
    everywhere = bool(body.across_namespaces)
    namespace = service.isolated(job.namespace, tenant)
    reports, elsewhere = [], []
    for index, key in enumerate(job.prompts):
        try:
            told = await service.engine.explain(key, namespace=namespace, everywhere=everywhere)
        except InvalidRequestError as error:
            raise _in_words_of(body, error) from None
        reports.append(report_of(service, job, index, told.report))
        holders = cast("Mapping[Namespace, int]", told.holders)
        elsewhere.append(_longer(holders, namespace, told.report.cached))
    return (
        {"reports": reports, "longer_elsewhere": elsewhere} if everywhere else {"reports": reports}
    )


async def _job_of(service: Service, body: ExplainBody, tenant: str) -> Job:
    """What the body's own route would run."""
    match body:
        case ExplainChat():
            return (await asyncio.to_thread(chat_task, service, body, tenant)).job
        case ExplainCompletion():
            return await asyncio.to_thread(completion_job, service, body, tenant)
        case ExplainResponse():
            body.check()
            return (await response_task(service, body, tenant)).chat.job
        case ExplainMessages():
            body.check()
            return (await asyncio.to_thread(message_task, service, body, tenant)).job
        case ExplainGenerate():
            began = service.clock.now()
            try:
                return (await asyncio.to_thread(generate_job, service, body, tenant, began)).job
            except InvalidRequestError as error:
                raise body.explain(error) from None


def _in_words_of(body: ExplainBody, error: InvalidRequestError) -> InvalidRequestError:
    """The same error about what was made of the body, as its own route tells it."""
    match body:
        case ExplainChat():
            error.param = body.field_of(error.param)
            return error
        case ExplainResponse():
            return responses.in_own_words(error, body)
        case ExplainMessages():
            return messages.in_own_words(error)
        case ExplainGenerate():
            return body.explain(error)
        case ExplainCompletion():
            return error


def _longer(holders: Mapping[Namespace, int], own: Namespace, cached: int) -> list[Held]:
    longer = [(n, name) for name, n in holders.items() if name != own and n > cached]
    return [
        {
            "adapter_id": name.adapter_id,
            "cache_salt": name.cache_salt,
            "extra_key": name.extra_key,
            "tokens": tokens,
        }
        for tokens, name in sorted(longer, reverse=True)
    ]
