"""The routes of /v1/messages."""

from __future__ import annotations

import asyncio

from fastapi import APIRouter, Depends, Request
from fastapi.responses import JSONResponse, Response

from radixlm.core.errors import InvalidRequestError
from radixlm.server.anthropic.messages_as_chat import in_own_words
from radixlm.server.anthropic.messages_body import CountBody, MessagesBody
from radixlm.server.anthropic.messages_run import MessageWriter, message_task, token_count
from radixlm.server.anthropic.messages_wire import MessageEvent, MessageOut, TokenCount
from radixlm.server.http.envelope import exchange_of
from radixlm.server.http.http_errors import MessagesError
from radixlm.server.http.routes import GENERATING, Route, noted
from radixlm.server.pipeline.answer import respond
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
    writer = MessageWriter(service, made, exchange_of(request).errors.end)
    try:
        return await respond(request, made.chat.generation, writer, stream=bool(body.stream))
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
