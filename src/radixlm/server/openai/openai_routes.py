"""The HTTP routes. Each reads its request, hands it on, and shapes nothing itself."""

from __future__ import annotations

import asyncio
from dataclasses import asdict

from fastapi import APIRouter, Depends, Request
from fastapi.responses import JSONResponse, PlainTextResponse, Response

from radixlm.core.errors import EngineDeadError, InvalidRequestError
from radixlm.server.anthropic.models import ModelInfo as AnthropicModel
from radixlm.server.anthropic.models import ModelPage, model_info, model_page
from radixlm.server.http.http_errors import Error, MessagesError, ModelNotFoundError, for_anthropic
from radixlm.server.http.routes import GENERATING, Route, noted
from radixlm.server.openai.chat_writer import ChatWriter
from radixlm.server.openai.completions import CompletionWriter, completion_generation
from radixlm.server.openai.openai_wire import (
    ChatChunk,
    ChatCompletion,
    Detokenized,
    ModelCard,
    ModelList,
    ServedModel,
    Status,
    TextChunk,
    TextCompletion,
    Tokenized,
    TokenizerInfo,
)
from radixlm.server.pipeline.answer import respond
from radixlm.server.pipeline.chat import chat_task
from radixlm.server.pipeline.protocol import ChatBody, CompletionBody
from radixlm.server.pipeline.service import Service, check_room, service_of, tenant_of
from radixlm.server.sglang.tokenize import (
    DetokenizeBody,
    TokenizeBody,
    detokenized,
    tokenized,
    tokenizer_info,
)

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
    try:
        return await respond(request, task.generation, writer, stream=bool(body.stream))
    except InvalidRequestError as error:
        error.param = body.field_of(error.param)
        raise


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
    return JSONResponse({"object": "list", "data": [_model_card(service)]})


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
    return JSONResponse(_model_card(service))


@router.get("/health", response_model=Status, responses=noted(EngineDeadError))
async def health(request: Request) -> Response:
    """200 for as long as the engine's loop runs, else 503 with the reason.

    Where there are keys this route needs none, so the reason stays in the log.
    """
    service = service_of(request)
    try:
        service.engine.health()
    except EngineDeadError:
        if not service.config.api_key:
            raise
        raise EngineDeadError("the engine is dead; the server's log says why") from None
    return JSONResponse({"status": "ok"})


@router.post(
    "/tokenize",
    response_model=Tokenized,
    responses=noted(example={"prompt": "The capital of France is"}),
)
async def tokenize(request: Request, body: TokenizeBody) -> Response:
    """A text's or a chat's token ids."""
    return JSONResponse(await asyncio.to_thread(tokenized, service_of(request), body))


@router.post(
    "/detokenize", response_model=Detokenized, responses=noted(example={"tokens": [1, 2, 3]})
)
async def detokenize(request: Request, body: DetokenizeBody) -> Response:
    """The text of token ids."""
    return JSONResponse(await asyncio.to_thread(detokenized, service_of(request), body))


@router.get("/tokenizer_info", response_model=TokenizerInfo)
async def get_tokenizer_info(request: Request) -> Response:
    """The tokenizer's configuration."""
    return JSONResponse(tokenizer_info(service_of(request)))


@router.get("/model_info", response_model=ServedModel)
@router.get("/get_model_info", response_model=ServedModel)
async def get_model_info(request: Request) -> Response:
    """What was loaded, and how."""
    service = service_of(request)
    info = asdict(service.engine.info)
    info["eos_token_ids"] = sorted(info["eos_token_ids"])
    return JSONResponse({"served_model_name": service.model_name, "is_generation": True, **info})


@router.api_route(
    "/flush_cache",
    methods=["GET", "POST"],
    response_class=PlainTextResponse,
    response_description="The cache is empty.",
    responses={
        400: {
            "description": "Requests are running: only what they do not use was dropped.",
            "content": {"text/plain": {"schema": {"type": "string"}}},
        },
        **noted(EngineDeadError, admin=True),
    },
)
async def flush_cache(request: Request) -> Response:
    """Drop every cached token; 400 when requests run, since theirs stay. For admins."""
    service = service_of(request)
    service.check_admin(request)
    if await service.engine.flush_cache():
        return PlainTextResponse("The cache is empty.\n")
    text = "Requests are running: only what they do not use was dropped.\n"
    return PlainTextResponse(text, status_code=400)


@router.get("/metrics", response_class=PlainTextResponse)
async def metrics(request: Request) -> Response:
    """Prometheus' text format."""
    return Response(service_of(request).metrics.render(), media_type="text/plain; version=0.0.4")


def _model_card(service: Service) -> ModelCard:
    return {
        "id": service.model_name,
        "object": "model",
        "created": service.created,
        "owned_by": "radixlm",
        "shutdown_date": None,
        "max_model_len": service.engine.info.context_length,
    }
