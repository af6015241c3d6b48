"""OpenAI's routes, but for responses. The model that is served is described as Anthropic's clients
read it, too.

Sources: https://platform.openai.com/docs/api-reference/models,
https://docs.claude.com/en/api/models-list.
"""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Literal, NotRequired

from fastapi import APIRouter, Depends, Request
from fastapi.responses import JSONResponse, Response
from typing_extensions import TypedDict

from radixlm.server.bodies.protocol import ChatBody, CompletionBody
from radixlm.server.http.http_errors import Error, MessagesError, ModelNotFoundError, for_anthropic
from radixlm.server.http.routes import GENERATING, Route, noted
from radixlm.server.openai import completions as texts
from radixlm.server.openai.chat_writer import ChatChunk, ChatCompletion, ChatWriter
from radixlm.server.pipeline.answer import respond
from radixlm.server.pipeline.chat import chat_task
from radixlm.server.pipeline.service import Service, check_room, service_of, tenant_of


class ModelCard(TypedDict):
    """created: in seconds since 1970. max_model_len: tokens of prompt and answer. parent: of an
    adapter's, the model that it adds to.
    """

    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    shutdown_date: None
    max_model_len: int
    parent: NotRequired[str]


class ModelList(TypedDict):
    object: Literal["list"]
    data: list[ModelCard]


class AnthropicModel(TypedDict):
    """created_at: when serving began. max_input_tokens, max_tokens: of both together."""

    type: Literal["model"]
    id: str
    display_name: str
    created_at: str
    lifecycle: Literal["active"]
    line: None
    capabilities: None
    deprecated_at: None
    retires_at: None
    max_input_tokens: int
    max_tokens: int


class ModelPage(TypedDict):
    data: list[AnthropicModel]
    has_more: bool
    first_id: str
    last_id: str


def model_info(service: Service, name: str) -> AnthropicModel:
    """The model that is served, alone or with an adapter, as Anthropic shapes it."""
    length = service.engine.limits.longest
    return {
        "type": "model",
        "id": name,
        "display_name": name,
        "created_at": datetime.fromtimestamp(service.created, UTC).isoformat(),
        "lifecycle": "active",
        "line": None,
        "capabilities": None,
        "deprecated_at": None,
        "retires_at": None,
        "max_input_tokens": length,
        "max_tokens": length,
    }


def model_card(service: Service, name: str) -> ModelCard:
    """The model that is served, alone or with an adapter, as OpenAI shapes it."""
    card: ModelCard = {
        "id": name,
        "object": "model",
        "created": service.created,
        "owned_by": "radixlm",
        "shutdown_date": None,
        "max_model_len": service.engine.limits.longest,
    }
    return card if name in service.own_names else {**card, "parent": service.model_name}


router = APIRouter(route_class=Route)


@router.post(
    "/v1/chat/completions",
    response_model=ChatCompletion,
    dependencies=[Depends(check_room)],
    responses=noted(
        *GENERATING,
        events=ChatChunk,
        example={
            "messages": [{"role": "user", "content": "What is the capital of France?"}],
            "temperature": 0,
            "max_tokens": 16,
        },
    ),
)
async def chat_completions(request: Request, body: ChatBody) -> Response:
    """OpenAI's chat completions."""
    service = service_of(request)
    task = await asyncio.to_thread(chat_task, service, body, tenant_of(request))
    writer = ChatWriter(service, task, body)
    return await respond(request, task.generation, writer, stream=bool(body.stream))


@router.post(
    "/v1/completions",
    response_model=texts.TextCompletion,
    dependencies=[Depends(check_room)],
    responses=noted(
        *GENERATING,
        events=texts.TextChunk,
        example={"prompt": "The capital of France is", "temperature": 0, "max_tokens": 8},
    ),
)
async def completions(request: Request, body: CompletionBody) -> Response:
    """OpenAI's text completions."""
    service = service_of(request)
    tenant = tenant_of(request)
    generation = await asyncio.to_thread(texts.completion_generation, service, body, tenant)
    writer = texts.CompletionWriter(service, generation, body)
    return await respond(request, generation, writer, stream=bool(body.stream))


@router.get(
    "/v1/models", response_model=ModelList | ModelPage, responses=noted(error=Error | MessagesError)
)
async def models(request: Request) -> Response:
    """The model that is served, alone and with each adapter: OpenAI's list, or Anthropic's to its
    clients.
    """
    service = service_of(request)
    names = service.model_names
    if for_anthropic(request.scope):
        page = {"has_more": False, "first_id": names[0], "last_id": names[-1]}
        return JSONResponse({"data": [model_info(service, name) for name in names], **page})
    cards = [model_card(service, name) for name in names]
    return JSONResponse({"object": "list", "data": cards})


@router.get(
    "/v1/models/{name:path}",
    response_model=ModelCard | AnthropicModel,
    responses=noted(ModelNotFoundError, error=Error | MessagesError),
)
async def model(request: Request, name: str) -> Response:
    """The model that is served, by its name; see the list."""
    service = service_of(request)
    service.check_model(name)
    if for_anthropic(request.scope):
        return JSONResponse(model_info(service, name))
    return JSONResponse(model_card(service, name))
