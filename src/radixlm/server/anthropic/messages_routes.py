"""The routes of /v1/messages."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import NotRequired

from fastapi import APIRouter, Depends, Request
from fastapi.responses import JSONResponse, Response
from typing_extensions import TypedDict

from radixlm.core.errors import RequestTooLargeError
from radixlm.core.request import Namespace
from radixlm.server.anthropic.messages_blocks import AppliedEdit, SentMessage, edited
from radixlm.server.anthropic.messages_body import CountBody, MessagesBody, PromptBody
from radixlm.server.anthropic.messages_conversation import NAMES, conversation_of, params_of, use_of
from radixlm.server.anthropic.messages_writer import PING, MessageEvent, MessageOut, MessageWriter
from radixlm.server.bodies.conversation import Conversation, new_id
from radixlm.server.http.body import in_callers_words, not_too_deep
from radixlm.server.http.http_errors import MessagesError
from radixlm.server.http.routes import GENERATING, Route, noted
from radixlm.server.pipeline.answer import respond
from radixlm.server.pipeline.chat import ChatTask, chat_prompt, task_of
from radixlm.server.pipeline.service import Service, check_room, service_of, tenant_of

_PROMPT = {"messages": [{"role": "user", "content": "What is the capital of France?"}]}

router = APIRouter(route_class=Route)


class OriginalCount(TypedDict):
    original_input_tokens: int


class TokenCount(TypedDict):
    """context_management: where edits were asked for; input_tokens are those after them."""

    input_tokens: int
    context_management: NotRequired[OriginalCount]


@router.post(
    "/v1/messages",
    response_model=MessageOut,
    dependencies=[Depends(check_room)],
    responses=noted(
        *GENERATING, error=MessagesError, events=MessageEvent, example={**_PROMPT, "max_tokens": 16}
    ),
)
async def create_message(request: Request, body: MessagesBody) -> Response:
    """Anthropic's messages."""
    service, tenant = service_of(request), tenant_of(request)
    chat, applied = await asyncio.to_thread(message_task, service, body, tenant)
    writer = MessageWriter(service, chat, body, applied)
    return await respond(request, chat.generation, writer, stream=bool(body.stream), ping=PING)


@router.post(
    "/v1/messages/count_tokens",
    response_model=TokenCount,
    responses=noted(error=MessagesError, example=_PROMPT),
)
async def count_tokens(request: Request, body: CountBody) -> Response:
    """How many tokens a message's prompt has."""
    count = await asyncio.to_thread(token_count, service_of(request), body, tenant_of(request))
    return JSONResponse(count)


@not_too_deep()
def message_task(
    service: Service, body: MessagesBody, tenant: str
) -> tuple[ChatTask, Sequence[AppliedEdit]]:
    """The task of a message, and the edits of its context. Takes time in proportion to the
    messages: call it off the event loop.

    Raises InvalidRequestError that names the field.
    """
    service.check_model(body.model)
    with in_callers_words(NAMES):
        chat, applied = _edited(service, body)
        params, use = params_of(body, service.sampling_defaults), use_of(body)
        prompt = chat_prompt(service, chat, whose=(tenant, *service.namespace_of(body)))
        task = task_of(
            *(service, prompt, use, params, body, tenant),
            request_id=new_id("msg"),
            names=NAMES,
            prompt_only=body.prompt_only,
        )
    return task, applied


@not_too_deep()
def token_count(service: Service, body: CountBody, tenant: str) -> TokenCount:
    """Tokens of the prompt. Takes time in proportion to it: call it off the event loop.

    Raises InvalidRequestError that names the field.
    """
    service.check_model(body.model)
    with in_callers_words(NAMES):
        chat, applied = _edited(service, body)
        whose = (tenant, *Namespace())
        tokens = chat_prompt(service, replace(chat, wishes=()), whose=whose).key.size
    count: TokenCount = {"input_tokens": tokens}
    if body.edits:
        cleared = sum(edit["cleared_input_tokens"] for edit in applied)
        count["context_management"] = {"original_input_tokens": tokens + cleared}
    return count


def _edited(service: Service, body: PromptBody) -> tuple[Conversation, Sequence[AppliedEdit]]:
    """The conversation that the edits of the context leave, and those that were made."""

    def size(messages: Sequence[SentMessage]) -> int:
        chat = conversation_of(body.model_copy(update={"messages": messages}))
        try:
            return chat_prompt(service, chat).key.size
        except RequestTooLargeError as error:
            if error.prompt_tokens is None:
                raise
            return error.prompt_tokens  # at least

    made = edited(body.messages, body.edits, size)
    left = body.model_copy(update={"messages": made.messages})
    return conversation_of(left, made.changed), made.applied
