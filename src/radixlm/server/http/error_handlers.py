"""Routes of published APIs that this server does not have, and what is said where clients probe."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from fastapi import FastAPI, Request
from fastapi.responses import Response
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.routing import Match
from starlette.types import Scope

from radixlm.core.errors import RadixLMError
from radixlm.server.http.envelope import exchange_of
from radixlm.server.http.http_errors import (
    NotFoundError,
    UnknownRouteError,
    UnsupportedRouteError,
    WrongMethodError,
    error_response,
    in_words,
)

_EMBEDDINGS: Final = "Embeddings are"
_RANKING: Final = "Ranking and classifying are"
_ADAPTERS: Final = "LoRA adapters are"
_WEIGHTS: Final = "Other weights while it runs are"
_SESSIONS: Final = "Sessions are"
_OLLAMA: Final = "Ollama's API is"

# By the beginning of a path: what is not there, with its verb.
ABSENT: Mapping[str, str] = {
    **dict.fromkeys(("/v1/embeddings", "/embeddings", "/embedding", "/v1/embed"), _EMBEDDINGS),
    **dict.fromkeys(("/encode", "/pooling"), _EMBEDDINGS),
    **dict.fromkeys(("/v1/rerank", "/v2/rerank", "/rerank", "/v1/score", "/score"), _RANKING),
    **dict.fromkeys(("/v1/reranking", "/reranking", "/v1/classify", "/classify"), _RANKING),
    **dict.fromkeys(("/v1/load_lora_adapter", "/v1/unload_lora_adapter"), _ADAPTERS),
    **dict.fromkeys(("/load_lora_adapter", "/unload_lora_adapter", "/lora-adapters"), _ADAPTERS),
    "/infill": "Filling in between a prefix and a suffix is",
    "/update_weights": _WEIGHTS,
    **dict.fromkeys(("/open_session", "/close_session"), _SESSIONS),
    **dict.fromkeys(("/sleep", "/wake_up"), "Sleeping and waking are"),
    **dict.fromkeys(("/start_profile", "/stop_profile"), "Profiles are"),
    "/v1/audio": "Sounds are",
    "/v1/images": "Images are",
    "/v1/moderations": "Moderation is",
    **dict.fromkeys(("/v1/files", "/v1/uploads", "/v1/batches"), "Files and batches are"),
    "/v1/messages/batches": "Batches are",
    "/v1/fine_tuning": "Training is",
    "/v1/realtime": "Realtime sessions are",
    **dict.fromkeys(("/v1/assistants", "/v1/threads", "/v1/vector_stores"), "Assistants are"),
    "/v1/conversations": "Conversations beside stored responses are",
    "/v1/responses/compact": "Compacting a conversation is",
    **dict.fromkeys(
        ("/v1/chat/completions/render", "/v1/completions/render", "/v1/responses/render"),
        "Rendering without an answer is",
    ),
    "/v1/complete": "Anthropic's older completions are",
    "/api": _OLLAMA,
}


# What does here what another server's route does there.
INSTEAD: Mapping[str, str] = {
    # llama.cpp
    "/completion": "POST /v1/completions",
    "/props": "GET /server_info and GET /model_info",
    "/slots": "GET /v1/loads for what runs, GET /cache/tree for what is cached",
    "/apply-template": "POST /tokenize, which takes messages",
    # Ollama
    "/api/chat": "POST /v1/chat/completions",
    "/api/generate": "POST /v1/completions",
    "/api/tags": "GET /v1/models",
    "/api/ps": "GET /v1/models",
    "/api/show": "GET /model_info",
    "/api/version": "GET /server_info",
    # vLLM, SGLang, and what all clients try
    "/invocations": "POST /v1/chat/completions or POST /v1/completions",
    "/v1/chat": "POST /v1/chat/completions",
    "/chat": "POST /v1/chat/completions",
    "/load": "GET /v1/loads",
    "/get_load": "GET /v1/loads",
    "/version": "GET /server_info",
    **dict.fromkeys(("/healthz", "/livez", "/readyz"), "GET /health"),
    **dict.fromkeys(("/docs", "/redoc"), "GET /openapi.json"),
}
_VERSION: Final = "/v1"


def absence(
    scope: Scope, status: int, routes: Sequence[APIRoute]
) -> NotFoundError | WrongMethodError | None:
    """What is said instead of the router's own 404 or 405; None where `routes` do not have the path
    of a 405.
    """
    root = scope.get("root_path", "")
    path = str(scope["path"]).removeprefix(root)
    asked = f"{scope['method']} {path:.200}"
    parts = path.split("/")
    instead = INSTEAD.get(path) or _under_another_prefix(path, scope, routes)
    advice = "" if instead is None else f"; use {instead}"
    for end in range(len(parts), 1, -1):
        if (what := ABSENT.get("/".join(parts[:end]))) is not None:
            return UnsupportedRouteError(f"{what} not supported by this server: no {asked}{advice}")
    if status == 404:
        advice = advice or "; GET /openapi.json lists those that there are"
        return UnknownRouteError(f"Invalid URL ({asked}): there is no such route{advice}")
    methods = _methods_at(scope, routes)
    return WrongMethodError(asked, methods) if methods else None


def _methods_at(scope: Scope, routes: Sequence[APIRoute]) -> list[str]:
    """What may be done at a path. The router itself tells this of the path's first route only."""
    here = [route for route in routes if route.matches(scope)[0] is not Match.NONE]
    # A path of its own is no id of another's.
    here = [route for route in here if "{" not in route.path] or here
    return sorted({method for route in here for method in route.methods or ()})


def _under_another_prefix(path: str, scope: Scope, routes: Sequence[APIRoute]) -> str | None:
    """The route that is meant where a base URL lacks /v1, or has it once too often."""
    for meant in (_VERSION + path, path.removeprefix(_VERSION)):
        there = {**scope, "path": scope.get("root_path", "") + meant}
        if meant != path and (methods := _methods_at(there, routes)):
            return f"{in_words(methods)} {meant:.200}"
    return None


def install_error_handlers(
    app: FastAPI, routes: Sequence[APIRoute], retry_after: Callable[[], int]
) -> None:
    """Answer errors in the shape of the API whose path it is.

    routes: those of the API, for what is said of others. retry_after: see error_response.
    """

    async def answer(request: Request, error: Exception) -> Response:
        if isinstance(error, HTTPException) and error.status_code in (404, 405):
            error = absence(request.scope, error.status_code, routes) or error
        return error_response(error, exchange_of(request).errors.body, retry_after)

    async def leave(_request: Request, _error: Exception) -> Response:
        return Response(status_code=499)  # the client left while it sent its body

    for kind in (RadixLMError, HTTPException, Exception):
        app.add_exception_handler(kind, answer)
    app.add_exception_handler(ClientDisconnect, leave)
