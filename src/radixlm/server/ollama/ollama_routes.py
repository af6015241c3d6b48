"""The routes of Ollama's API.

Source: https://github.com/ollama/ollama/blob/main/docs/api.md.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any, Literal, TypeVar

from fastapi import APIRouter, Depends, Request
from fastapi.responses import JSONResponse, Response
from typing_extensions import TypedDict

from radixlm.core.errors import InvalidRequestError, wrong
from radixlm.server.http.http_errors import OllamaError
from radixlm.server.http.routes import GENERATING, Route, noted
from radixlm.server.http.sse import LINES
from radixlm.server.ollama import ollama_body as bodies
from radixlm.server.ollama import ollama_tasks as tasks
from radixlm.server.ollama import ollama_writer as wire
from radixlm.server.pipeline.answer import respond
from radixlm.server.pipeline.chat import ChatTask
from radixlm.server.pipeline.service import Service, check_room, service_of, tenant_of

# The version of Ollama whose API this is: clients ask whether it has what they need.
_VERSION = "0.12.6"
# Models stay: so Ollama says it of those that are kept for ever.
_FOREVER = "2318-01-01T00:00:00Z"
_WEIGHTS = (".safetensors", ".gguf", ".bin")


class ModelDetails(TypedDict):
    parent_model: str
    format: str
    family: str
    families: list[str]
    parameter_size: str
    quantization_level: str


class ListedModel(TypedDict):
    """size: bytes of its files of weights. digest: of its name and its place."""

    name: str
    model: str
    modified_at: str
    size: int
    digest: str
    details: ModelDetails


class ListedModels(TypedDict):
    models: list[ListedModel]


class RunningModel(ListedModel):
    expires_at: str
    size_vram: int
    context_length: int


class RunningModels(TypedDict):
    models: list[RunningModel]


class ShownModel(TypedDict):
    """model_info: as GGUF files name it."""

    license: str
    modelfile: str
    parameters: str
    template: str
    modified_at: str
    details: ModelDetails
    model_info: dict[str, Any]
    capabilities: list[Literal["completion", "tools", "thinking", "embedding"]]


class OllamaVersion(TypedDict):
    version: str


router = APIRouter(route_class=Route)
_FEW = {"num_predict": 8, "temperature": 0}
_Endpoint = TypeVar("_Endpoint", bound=Callable[..., Any])


def _answering(
    path: str, model: type, example: Mapping[str, Any]
) -> Callable[[_Endpoint], _Endpoint]:
    """Decorate what answers at a path, with `model` or lines of them."""
    return router.post(
        path,
        response_model=model,
        dependencies=[Depends(check_room)],
        responses=noted(
            *GENERATING, error=OllamaError, events=model, event_type=LINES, example=example
        ),
    )


@_answering(
    "/api/chat",
    wire.OllamaChatAnswer,
    {"messages": [{"role": "user", "content": "Hello"}], "options": _FEW},
)
async def ollama_chat(request: Request, body: bodies.OllamaChatBody) -> Response:
    """Ollama's chats: lines of JSON, unless stream is false."""
    begun, service = time.monotonic_ns(), service_of(request)
    if not body.messages:
        return await _loaded(service, body, chats=True)
    task = await asyncio.to_thread(tasks.chat_task, service, body, tenant_of(request))
    return await _answered(request, task, body, begun, chats=True)


@_answering("/api/generate", wire.OllamaGenerated, {"prompt": "Hello", "options": _FEW})
async def ollama_generate(request: Request, body: bodies.OllamaGenerateBody) -> Response:
    """Ollama's answers to a prompt: lines of JSON, unless stream is false."""
    begun, service = time.monotonic_ns(), service_of(request)
    if not body.prompt:
        return await _loaded(service, body, chats=False)
    task = await asyncio.to_thread(tasks.generate_task, service, body, tenant_of(request))
    return await _answered(request, task, body, begun, chats=False)


@router.post(
    "/api/embed",
    response_model=wire.OllamaEmbeddings,
    dependencies=[Depends(check_room)],
    responses=noted(*GENERATING, error=OllamaError, example={"input": ["Hello", "Good night"]}),
)
async def ollama_embed(request: Request, body: bodies.OllamaEmbedBody) -> Response:
    """Ollama's embeddings."""
    texts = [body.input] if isinstance(body.input, str) else body.input
    return await _embedded(request, body, texts, "input", dimensions=body.dimensions)


@router.post(
    "/api/embeddings",
    response_model=wire.OllamaEmbedding,
    dependencies=[Depends(check_room)],
    responses=noted(*GENERATING, error=OllamaError, example={"prompt": "Hello"}),
)
async def ollama_embeddings(request: Request, body: bodies.OllamaEmbeddingBody) -> Response:
    """Ollama's older embeddings, of one text."""
    return await _embedded(request, body, [body.prompt], "prompt", older=True)


@router.get("/api/tags", response_model=ListedModels, responses=noted(error=OllamaError))
async def ollama_tags(request: Request) -> Response:
    """The model by each of its names, and with each adapter."""
    service = service_of(request)
    listed = await asyncio.to_thread(_listed, service)
    return JSONResponse({"models": listed})


@router.get("/api/ps", response_model=RunningModels, responses=noted(error=OllamaError))
async def ollama_ps(request: Request) -> Response:
    """The same: what is served is in memory, and stays."""
    service = service_of(request)
    length = service.engine.limits.longest
    listed = await asyncio.to_thread(_listed, service)
    running: list[RunningModel] = [
        {**each, "expires_at": _FOREVER, "size_vram": each["size"], "context_length": length}
        for each in listed
    ]
    return JSONResponse({"models": running})


@router.post(
    "/api/show",
    response_model=ShownModel,
    responses=noted(InvalidRequestError, error=OllamaError),
)
async def ollama_show(request: Request, body: bodies.ShowBody) -> Response:
    """A model's template, its length, and what it can do."""
    service = service_of(request)
    tasks.own_name(service, body.model or body.name)
    info, template = service.engine.info, service.engine.chat_template
    style, kind = service.answer_style, info.model_type
    thinks = style.thinking is not None or style.calls.channels
    can = {"completion": True, "tools": template is not None, "thinking": thinks}
    can["embedding"] = not info.pooling.refused
    shown = {
        "license": "",
        "modelfile": f"FROM {service.model_name}",
        "parameters": "",
        "template": "" if template is None else template.source,
        "modified_at": wire.at(service.created),
        "details": _details(service),
        "model_info": {
            "general.architecture": kind,
            f"{kind}.context_length": service.engine.limits.longest,
            f"{kind}.embedding_length": info.hidden_size,
            f"{kind}.vocab_size": info.vocab_size,
        },
        "capabilities": [name for name, able in can.items() if able],
    }
    return JSONResponse(shown)


@router.get("/api/version", response_model=OllamaVersion, responses=noted(error=OllamaError))
async def ollama_version() -> Response:
    """The version of Ollama whose API this is."""
    return JSONResponse({"version": _VERSION})


async def _loaded(service: Service, body: bodies.AnsweredBody, *, chats: bool) -> Response:
    await asyncio.to_thread(tasks.check_unasked, service, body)
    return JSONResponse(wire.loaded(body.model or service.model_name, chats=chats))


async def _answered(
    request: Request, task: ChatTask, body: bodies.AnsweredBody, begun: int, *, chats: bool
) -> Response:
    service = service_of(request)
    model = body.model or service.model_name
    writer = wire.OllamaWriter(service, task, model, begun, chats=chats, streams=body.streams)
    # A ping would be a line that is no JSON.
    return await respond(
        *(request, task.generation, writer), stream=body.streams, ping=b"", media_type=LINES
    )


async def _embedded(
    request: Request,
    body: bodies.OllamaBody,
    texts: list[str],
    param: str,
    *,
    dimensions: int | None = None,
    older: bool = False,
) -> Response:
    begun, service = time.monotonic_ns(), service_of(request)
    model = body.model or service.model_name
    if not texts:
        raise wrong(param, "is empty")
    generation = await asyncio.to_thread(
        tasks.embed_task,
        *(service, body, texts, tenant_of(request)),
        param=param,
        dimensions=dimensions,
    )
    writer = wire.embed_writer(
        *(service, generation, model, begun), dimensions=dimensions, older=older
    )
    return await respond(request, generation, writer, stream=False)


def _listed(service: Service) -> list[ListedModel]:
    place = service.engine.info.model_path
    size = _weights_size(Path(place))
    return [
        {
            "name": name,
            "model": name,
            "modified_at": wire.at(service.created),
            "size": size,
            "digest": sha256(f"{name}\n{place}".encode()).hexdigest(),
            "details": _details(service),
        }
        for name in service.model_names
    ]


def _details(service: Service) -> ModelDetails:
    info = service.engine.info
    return {
        "parent_model": "",
        "format": "gguf" if info.model_path.endswith(".gguf") else "safetensors",
        "family": info.model_type,
        "families": [info.model_type],
        "parameter_size": "",
        "quantization_level": info.quantization or info.dtype,
    }


def _weights_size(place: Path) -> int:
    """Bytes of a model's files of weights, 0 where they are not found."""
    files = [place] if place.is_file() else [*place.glob("*")] if place.is_dir() else []
    return sum(each.stat().st_size for each in files if each.suffix in _WEIGHTS)
