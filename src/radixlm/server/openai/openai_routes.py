"""OpenAI's routes, but for responses."""

from __future__ import annotations

import asyncio

from fastapi import APIRouter, Depends, Request
from fastapi.responses import JSONResponse, Response

from radixlm.server.http.http_errors import Error, MessagesError, ModelNotFoundError, for_anthropic
from radixlm.server.http.routes import GENERATING, Route, noted
from radixlm.server.openai.chat_writer import ChatChunk, ChatCompletion, ChatWriter
from radixlm.server.openai.completions import (
    CompletionWriter,
    TextChunk,
    TextCompletion,
    completion_generation,
)
from radixlm.server.pipeline.answer import respond
from radixlm.server.pipeline.chat import chat_task
from radixlm.server.pipeline.protocol import ChatBody, CompletionBody
from radixlm.server.pipeline.served_models import (
    AnthropicModel,
    ModelCard,
    ModelList,
    ModelPage,
    model_card,
    model_info,
    model_page,
)
from radixlm.server.pipeline.service import check_room, service_of, tenant_of

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
    response_model=TextCompletion,
    dependencies=[Depends(check_room)],
    responses=noted(
        *GENERATING,
        events=TextChunk,
        example={"prompt": "The capital of France is", "temperature": 0, "max_tokens": 8},
    ),
)
async def completions(request: Request, body: CompletionBody) -> Response:
    """OpenAI's text completions."""
    service = service_of(request)
    tenant = tenant_of(request)
    generation = await asyncio.to_thread(completion_generation, service, body, tenant)
    writer = CompletionWriter(service, generation, body)
    return await respond(request, generation, writer, stream=bool(body.stream))


@router.get(
    "/v1/models",
    response_model=ModelList | ModelPage,
    responses=noted(error=Error | MessagesError),
)
async def models(request: Request) -> Response:
    """The one model that is served, as a list: OpenAI's, or Anthropic's to its clients."""
    service = service_of(request)
    if for_anthropic(request.scope):
        return JSONResponse(model_page(service))
    return JSONResponse({"object": "list", "data": [model_card(service)]})


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
        return JSONResponse(model_info(service))
    return JSONResponse(model_card(service))
