"""Every error as OpenAI shapes it: {"error": {"message", "type", "param", "code"}}."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from radixlm.core.errors import (
    EngineDeadError,
    InvalidRequestError,
    QueueFullError,
    RadixLMError,
    RequestTooLargeError,
)

_RETRY_AFTER_SECONDS = 1
_BAD_REQUEST = "invalid_request_error"
_SERVER = "server_error"


class ModelNotFoundError(InvalidRequestError):
    """The request names a model that is not served here."""


class BodyTooLargeError(InvalidRequestError):
    """The request's body is longer than the server reads."""


class GenerationFailedError(RadixLMError):
    """The engine gave up on a request that it had taken."""


class NotGeneratingError(RadixLMError):
    """The engine's loop runs, but no token came in time."""


def status_of(error: Exception) -> int:
    """The HTTP status that says what kind of error it is."""
    match error:
        case ModelNotFoundError():
            return 404
        case BodyTooLargeError():
            return 413
        case InvalidRequestError():
            return 400
        case QueueFullError():
            return 429
        case EngineDeadError() | NotGeneratingError():
            return 503
        case HTTPException():
            return error.status_code
        case _:
            return 500


def error_body(error: Exception) -> dict[str, Any]:
    """The JSON object for `error`; of an error nobody meant, only the kind is told."""
    status = status_of(error)
    if isinstance(error, HTTPException):
        message = str(error.detail)
    elif isinstance(error, RadixLMError):
        message = str(error)
    else:
        message = f"internal error ({type(error).__name__}); the server's log has the details"
    kinds = {429: "rate_limit_error", 503: "service_unavailable_error"}
    kind = kinds.get(status, _BAD_REQUEST if status < 500 else _SERVER)
    param = error.param if isinstance(error, InvalidRequestError) else None
    return {"error": {"message": message, "type": kind, "param": param, "code": _code(error)}}


def error_response(error: Exception) -> Response:
    """The whole HTTP answer for `error`."""
    status = status_of(error)
    headers = {"Retry-After": str(_RETRY_AFTER_SECONDS)} if status == 429 else {}
    if isinstance(error, HTTPException):
        headers.update(error.headers or {})
    return JSONResponse(error_body(error), status_code=status, headers=headers)


def install_error_handlers(app: FastAPI) -> None:
    """Shape errors of all routes, those of the router itself (404, 405) included."""

    async def answer(_request: Request, error: Exception) -> Response:
        return error_response(error)

    async def leave(_request: Request, _error: Exception) -> Response:
        return Response(status_code=499)  # the client left while it sent its body

    for kind in (RadixLMError, HTTPException, Exception):
        app.add_exception_handler(kind, answer)
    app.add_exception_handler(ClientDisconnect, leave)


def _code(error: Exception) -> str | None:
    match error:
        case ModelNotFoundError():
            return "model_not_found"
        case RequestTooLargeError():
            return "context_length_exceeded"
        case QueueFullError():
            return "queue_full"
        case EngineDeadError():
            return "engine_dead"
        case _:
            return None
