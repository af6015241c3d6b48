"""The routes of /v1/messages."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

from fastapi import APIRouter, Depends, Request
from fastapi.responses import JSONResponse, Response

from radixlm.core.errors import InvalidRequestError
from radixlm.server.anthropic.messages_as_chat import in_own_words
from radixlm.server.anthropic.messages_body import CountBody, MessagesBody
from radixlm.server.anthropic.messages_run import MessageRun, message_task, token_count
from radixlm.server.anthropic.messages_wire import MessageEvent, MessageOut, TokenCount
from radixlm.server.http.http_errors import MessagesError
from radixlm.server.http.routes import GENERATING, Route, noted
from radixlm.server.http.sse import event
from radixlm.server.pipeline.answer import Parts, respond
from radixlm.server.pipeline.generation import stream_parts
from radixlm.server.pipeline.service import check_room, service_of, tenant_of

_PROMPT = {"messages": [{"role": "user", "content": "What is the capital of France?"}]}

router = APIRouter(route_class=Route)


@router.post(
    "/v1/messages",
    response_model=MessageOut,
    dependencies=[Depends(check_room)],
    responses=noted(
        *GENERATING,
        error=MessagesError,
        events=MessageEvent,
        example={**_PROMPT, "max_tokens": 16},
    ),
)
async def create_message(request: Request, body: MessagesBody) -> Response:
    """Anthropic's messages."""
    service = service_of(request)
    tenant = tenant_of(request)
    body.check()
    made = await asyncio.to_thread(message_task, service, body, tenant)
    run = MessageRun(service, made)

    async def events(parts: Parts) -> AsyncGenerator[bytes, None]:
        async with aclosing(parts):
            async for _, output in parts:
                for told in run.push(output):
                    yield event(told, told["type"])
        for told in run.finish():
            yield event(told, told["type"])

    async def whole(parts: Parts) -> MessageOut:
        async with aclosing(parts):
            async for _, output in parts:
                for _ in run.push(output):
                    pass
        for _ in run.finish():
            pass
        return run.message()

    parts = stream_parts(service, made.job)
    try:
        return await respond(
            request, parts, n=1, stream=bool(body.stream), events=events, whole=whole
        )
    except InvalidRequestError as error:
        raise in_own_words(error) from None


@router.post(
    "/v1/messages/count_tokens",
    response_model=TokenCount,
    responses=noted(error=MessagesError, example=_PROMPT),
)
async def count_tokens(request: Request, body: CountBody) -> Response:
    """How many tokens a message's prompt has."""
    body.check()
    count = await asyncio.to_thread(token_count, service_of(request), body, tenant_of(request))
    return JSONResponse(count)
