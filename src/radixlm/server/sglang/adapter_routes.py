"""SGLang's routes that load adapters and let them go."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response
from pydantic import Field
from typing_extensions import TypedDict

from radixlm.core.errors import ConfigError, EngineDeadError, ModelError, QueueFullError, wrong
from radixlm.server.http.body import Body
from radixlm.server.http.http_errors import RequestTimeoutError
from radixlm.server.http.routes import Route, noted
from radixlm.server.pipeline.service import Service, service_of

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


router = APIRouter(route_class=Route)


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
    if body.lora_name == service.model_name:
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
