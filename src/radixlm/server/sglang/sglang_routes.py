"""SGLang's native routes, with vLLM's: /generate, and those about the server itself."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from typing import Annotated, Literal

from fastapi import APIRouter, Depends, Request
from fastapi.responses import JSONResponse, PlainTextResponse, Response
from pydantic import Field
from typing_extensions import TypedDict

from radixlm.assembly import ModelInfo
from radixlm.core.config import EngineConfig
from radixlm.core.errors import ConfigError, EngineDeadError, ModelError, QueueFullError, wrong
from radixlm.core.sampling import SamplingParams
from radixlm.engine.engine_stats import EngineStats
from radixlm.server.config.server_config import KVEventSource
from radixlm.server.http.body import Body
from radixlm.server.http.envelope import exchange_of
from radixlm.server.http.http_errors import NotGeneratingError, RequestTimeoutError
from radixlm.server.http.routes import GENERATING, Route, noted
from radixlm.server.pipeline.answer import respond
from radixlm.server.pipeline.service import Service, check_room, service_of, tenant_of
from radixlm.server.sglang.generate_answers import Generated, NativeWriter, native_task
from radixlm.server.sglang.generate_body import AbortBody, GenerateBody

HEALTH_SECONDS = 20.0
_HEALTH_POLL_SECONDS = 0.05
# Flags that may be left open, by their names in ModelInfo.
_RESOLVED = ("dtype", "device", "context_length", "kv_tokens", "max_pinned_tokens", "threads")


class Status(TypedDict):
    status: Literal["ok"]


class Aborted(TypedDict):
    """How many requests were under way."""

    aborted: int


class CacheReset(TypedDict):
    success: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedModel(ModelInfo):
    """max_model_len: of prompt and answer together."""

    served_model_name: str
    max_model_len: int
    is_generation: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerFacts(EngineConfig):
    """kv_events: null where they are not published, or not over TCP. threads: of a step."""

    threads: int
    served_model_name: str
    model_path: str
    max_total_num_tokens: int
    max_req_input_len: int
    version: str
    kv_events: KVEventSource | None
    internal_states: list[EngineStats]


class Load(TypedDict):
    dp_rank: int
    timestamp: float
    num_running_reqs: int
    num_waiting_reqs: int
    num_used_tokens: int
    max_total_num_tokens: int
    token_usage: float
    cache_hit_rate: float
    utilization: float
    max_running_requests: int


class Loads(TypedDict):
    """timestamp: as ISO 8601. loads: one entry, since there is one engine."""

    timestamp: str
    version: str
    loads: list[Load]


router = APIRouter(route_class=Route)


@router.api_route(
    "/generate",
    methods=["POST", "PUT"],
    response_model=Generated | list[Generated],
    dependencies=[Depends(check_room)],
    responses=noted(
        *GENERATING,
        events=Generated,
        example={
            "text": "The capital of France is",
            "sampling_params": {"temperature": 0, "max_new_tokens": 8},
        },
    ),
)
async def generate(request: Request, body: GenerateBody) -> Response:
    """SGLang's own way to generate."""
    service = service_of(request)
    began = exchange_of(request).begun
    task = await asyncio.to_thread(native_task, service, body, tenant_of(request), began)
    streams = bool(body.stream)
    writer = NativeWriter(service, task, streams=streams)
    return await respond(request, task.generation, writer, stream=streams)


@router.post(
    "/abort_request",
    response_model=Aborted,
    responses=noted(EngineDeadError, example={"rid": "mine"}, admin=True),
)
async def abort_request(request: Request, body: AbortBody) -> Response:
    """End requests by the client's name for them, or all; says how many were under way.

    With --isolate-by-key only those of the same key. To abort everybody's is for admins.
    """
    service = service_of(request)
    owner = service.owner_of(tenant_of(request))
    ids: Collection[str] | None
    if body.abort_all:
        ids = None if service.sees_all(request) else service.under_way.of(owner)
    else:
        ids = service.under_way.of(owner, body.rid or "")
    return JSONResponse({"aborted": service.engine.abort(ids)})


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


@router.get(
    "/health_generate", response_model=Status, responses=noted(EngineDeadError, NotGeneratingError)
)
async def health_generate(request: Request) -> Response:
    """200 when a token comes in time, else 503."""
    engine = service_of(request).engine
    before = engine.stats().output_tokens
    try:
        async with asyncio.timeout(HEALTH_SECONDS):
            try:
                await engine.generate([0], SamplingParams(max_tokens=1, temperature=0.0))
            except QueueFullError:  # another request's token will do
                while engine.stats().output_tokens == before:
                    await asyncio.sleep(_HEALTH_POLL_SECONDS)
                    engine.health()
    except TimeoutError:
        if engine.stats().output_tokens == before:
            text = f"no token was generated in {HEALTH_SECONDS:g} s"
            raise NotGeneratingError(text) from None
    return JSONResponse({"status": "ok"})


@router.get("/model_info", response_model=ServedModel)
@router.get("/get_model_info", response_model=ServedModel)
async def get_model_info(request: Request) -> Response:
    """Report what was loaded, and how."""
    service = service_of(request)
    info = asdict(service.engine.info)
    info["eos_token_ids"] = sorted(info["eos_token_ids"])
    info["max_model_len"] = service.engine.limits.longest
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


@router.get("/server_info", response_model=ServerFacts)
@router.get("/get_server_info", response_model=ServerFacts)
async def server_info(request: Request) -> Response:
    """The flags, with what was made of those that were left open, and the engine in numbers."""
    service = service_of(request)
    engine, info, events = service.engine, service.engine.info, service.config.kv_events
    return JSONResponse(
        {
            **asdict(engine.config),
            **{name: getattr(info, name) for name in _RESOLVED},
            "model": info.model_path,
            "tokenizer": engine.config.tokenizer or info.model_path,
            "served_model_name": service.model_name,
            "model_path": info.model_path,
            "max_total_num_tokens": info.kv_tokens,
            "max_req_input_len": engine.limits.longest - 1,
            "version": version("radixlm"),
            "kv_events": None if events is None else events.described(info.page_size),
            "internal_states": [asdict(engine.stats())],
        }
    )


@router.get("/v1/loads", response_model=Loads)
async def loads(request: Request) -> Response:
    """How busy the engine is, for a balancer; one entry, since there is one engine."""
    engine = service_of(request).engine
    stats = engine.stats()
    now = datetime.now(UTC)
    most = engine.config.max_running_requests
    load: Load = {
        "dp_rank": 0,
        "timestamp": now.timestamp(),
        "num_running_reqs": stats.running,
        "num_waiting_reqs": stats.waiting,
        "num_used_tokens": stats.kv_in_use,
        "max_total_num_tokens": stats.kv_capacity,
        "token_usage": stats.token_usage,
        "cache_hit_rate": stats.hit_rate,
        "utilization": stats.running / most,
        "max_running_requests": most,
    }
    return JSONResponse(
        {"timestamp": now.isoformat(), "version": version("radixlm"), "loads": [load]}
    )


@router.post(
    "/reset_prefix_cache", response_model=CacheReset, responses=noted(EngineDeadError, admin=True)
)
async def reset_prefix_cache(request: Request) -> Response:
    """vLLM's name for /flush_cache; no success when requests run, since theirs stay. For admins."""
    service = service_of(request)
    service.check_admin(request)
    return JSONResponse({"success": await service.engine.flush_cache()})


@router.get("/ping", response_model=Status)
async def ping() -> Response:
    """200 for as long as the process answers, whatever the engine does; see /health."""
    return JSONResponse({"status": "ok"})


_Text = Annotated[str, Field(min_length=1, max_length=4096)]


class LoadAdapterBody(Body):
    """lora_path: the adapter's folder on the server. pinned: all stay until they are unloaded."""

    lora_name: _Text
    lora_path: _Text
    pinned: bool | None = None


class UnloadAdapterBody(Body):
    lora_name: _Text


class AdaptersOut(TypedDict):
    """loaded_adapters: all names, with their folders."""

    success: bool
    error_message: str
    loaded_adapters: dict[str, str]


@router.post(
    "/load_lora_adapter",
    response_model=AdaptersOut,
    responses=noted(
        EngineDeadError,
        QueueFullError,
        RequestTimeoutError,
        admin=True,
        example={"lora_name": "french", "lora_path": "adapters/french"},
    ),
)
async def load_lora_adapter(request: Request, body: LoadAdapterBody) -> Response:
    """Load an adapter from a folder on the server; requests may name it from then on. For admins.

    A name that is loaded has to be unloaded first.
    """
    service = service_of(request)
    service.check_admin(request)
    service.engine.health()
    if body.lora_name in service.own_names:
        raise wrong("lora_name", f"{body.lora_name!r:.80} is the model's own")
    try:
        await service.engine.load_lora_adapter(body.lora_name, body.lora_path)
    except (ConfigError, ModelError) as error:
        raise wrong("lora_path", f"can not be loaded: {error}") from None
    except TimeoutError:
        text = f"it took too long to read {body.lora_path!r:.200}, and nothing was loaded"
        raise RequestTimeoutError(f"{text}; look whether its disk answers") from None
    return _answer(service)


@router.post(
    "/unload_lora_adapter",
    response_model=AdaptersOut,
    responses=noted(EngineDeadError, admin=True, example={"lora_name": "french"}),
)
async def unload_lora_adapter(request: Request, body: UnloadAdapterBody) -> Response:
    """Let an adapter go: no request may name it any more. Answers when those that have it have
    ended. For admins.
    """
    service = service_of(request)
    service.check_admin(request)
    service.engine.health()
    await service.engine.unload_lora_adapter(body.lora_name)
    return _answer(service)


def _answer(service: Service) -> Response:
    loaded = {name: adapter.path for name, adapter in service.engine.adapters.named.items()}
    return JSONResponse({"success": True, "error_message": "", "loaded_adapters": loaded})
