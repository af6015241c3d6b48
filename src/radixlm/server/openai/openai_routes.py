"""The HTTP routes. Each reads its request, hands it on, and shapes nothing itself."""

from __future__ import annotations

import asyncio
from dataclasses import asdict

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, PlainTextResponse, Response

from radixlm.core.errors import EngineDeadError, InvalidRequestError
from radixlm.server.anthropic.models import model_info, model_page
from radixlm.server.http.error_shapes import for_anthropic
from radixlm.server.http.head import HeadRoute
from radixlm.server.openai.completions import CompletionShape, completion_job
from radixlm.server.openai.openai_wire import ModelCard
from radixlm.server.pipeline.answer import answer
from radixlm.server.pipeline.chat import ChatShape, chat_task
from radixlm.server.pipeline.protocol import ChatBody, CompletionBody
from radixlm.server.pipeline.reading import body_of
from radixlm.server.pipeline.service import Service, service_of, tenant_of
from radixlm.server.sglang.tokenize import (
    DetokenizeBody,
    TokenizeBody,
    detokenized,
    tokenized,
    tokenizer_info,
)

router = APIRouter(route_class=HeadRoute)


@router.post("/v1/chat/completions")
async def chat_completions(request: Request) -> Response:
    """OpenAI's chat completions."""
    service = service_of(request)
    service.check_room(tenant_of(request))
    body = await body_of(request, ChatBody)
    task = await asyncio.to_thread(chat_task, service, body, tenant_of(request))
    shape = ChatShape(service.engine.tokenizer, task, body)
    try:
        return await answer(
            request, task.job, shape, stream=bool(body.stream), usage=body.told_usage
        )
    except InvalidRequestError as error:
        error.param = body.field_of(error.param)
        raise


@router.post("/v1/completions")
async def completions(request: Request) -> Response:
    """OpenAI's text completions."""
    service = service_of(request)
    service.check_room(tenant_of(request))
    body = await body_of(request, CompletionBody)
    job = await asyncio.to_thread(completion_job, service, body, tenant_of(request))
    shape = CompletionShape(service.engine.tokenizer, job, body)
    return await answer(request, job, shape, stream=bool(body.stream), usage=body.told_usage)


@router.get("/v1/models")
async def models(request: Request) -> Response:
    """The one model that is served, as a list: OpenAI's, or Anthropic's to its clients."""
    service = service_of(request)
    if for_anthropic(request.scope):
        return JSONResponse(model_page(service))
    return JSONResponse({"object": "list", "data": [_model_card(service)]})


@router.get("/v1/models/{name:path}")
async def model(request: Request, name: str) -> Response:
    """The model that is served, by its name; see the list."""
    service = service_of(request)
    service.check_model(name)
    if for_anthropic(request.scope):
        return JSONResponse(model_info(service))
    return JSONResponse(_model_card(service))


@router.get("/health")
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


@router.post("/tokenize")
async def tokenize(request: Request) -> Response:
    """A text's or a chat's token ids."""
    body = await body_of(request, TokenizeBody)
    return JSONResponse(await asyncio.to_thread(tokenized, service_of(request), body))


@router.post("/detokenize")
async def detokenize(request: Request) -> Response:
    """The text of token ids."""
    body = await body_of(request, DetokenizeBody)
    return JSONResponse(await asyncio.to_thread(detokenized, service_of(request), body))


@router.get("/tokenizer_info")
async def get_tokenizer_info(request: Request) -> Response:
    """The tokenizer's configuration."""
    return JSONResponse(tokenizer_info(service_of(request)))


@router.get("/model_info")
@router.get("/get_model_info")
async def get_model_info(request: Request) -> Response:
    """What was loaded, and how."""
    service = service_of(request)
    info = asdict(service.engine.info)
    info["eos_token_ids"] = sorted(info["eos_token_ids"])
    return JSONResponse({"served_model_name": service.model_name, "is_generation": True, **info})


@router.api_route("/flush_cache", methods=["GET", "POST"])
async def flush_cache(request: Request) -> Response:
    """Drop every cached token; 400 when requests run, since theirs stay. For admins."""
    service = service_of(request)
    service.check_admin(request)
    if await service.engine.flush_cache():
        return PlainTextResponse("The cache is empty.\n")
    text = "Requests are running: only what they do not use was dropped.\n"
    return PlainTextResponse(text, status_code=400)


@router.get("/metrics")
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
