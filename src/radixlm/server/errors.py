"""Every error as OpenAI shapes it: {"error": {"message", "type", "param", "code"}}."""

from __future__ import annotations

from collections.abc import Callable

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
from radixlm.server.wire import Error

_BAD_REQUEST = "invalid_request_error"
_SERVER = "server_error"


class ModelNotFoundError(InvalidRequestError):
    """The request names a model that is not served here."""


class BodyTooLargeError(InvalidRequestError):
    """The request's body is longer than the server reads."""


class BodyTimeoutError(InvalidRequestError):
    """The client took too long to send the request's body."""


class HeaderTimeoutError(InvalidRequestError):
    """The client took too long to send the request's headers."""


class HeaderTooLongError(InvalidRequestError):
    """The request's headers are longer than the server reads."""


class InvalidApiKeyError(InvalidRequestError):
    """The request carries none of the keys that open this server."""


class AdminKeyNeededError(InvalidRequestError):
    """The request carries a key that opens this server, but not what is for admins."""


class RequestTimeoutError(RadixLMError):
    """The request took longer than the server lets one take; it was aborted."""


class GenerationFailedError(RadixLMError):
    """The engine gave up on a request that it had taken."""


class NotGeneratingError(RadixLMError):
    """The engine's loop runs, but no token came in time."""


def status_of(error: Exception) -> int:
    """The HTTP status that says what kind of error it is."""
    match error:
        case ModelNotFoundError():
            return 404
        case InvalidApiKeyError():
            return 401
        case AdminKeyNeededError():
            return 403
        case BodyTimeoutError() | HeaderTimeoutError():
            return 408
        case BodyTooLargeError():
            return 413
        case HeaderTooLongError():
            return 431
        case InvalidRequestError():
            return 400
        case QueueFullError():
            return 429
        case EngineDeadError() | NotGeneratingError():
            return 503
        case RequestTimeoutError():
            return 504
        case HTTPException():
            return error.status_code
        case _:
            return 500


def error_body(error: Exception) -> Error:
    """The JSON object for `error`; of an error nobody meant, only the kind is told."""
    status = status_of(error)
    if isinstance(error, HTTPException):
        message = str(error.detail)
    elif isinstance(error, RadixLMError):
        message = str(error)
    else:
        message = f"internal error ({type(error).__name__}); the server's log has the details"
    kinds = {
        403: "permission_error",
        429: "rate_limit_exceeded",
        503: "service_unavailable_error",
        504: "timeout_error",
    }
    kind = kinds.get(status, _BAD_REQUEST if status < 500 else _SERVER)
    param = error.param if isinstance(error, InvalidRequestError) else None
    return {"error": {"message": message, "type": kind, "param": param, "code": _code(error)}}


def error_response(error: Exception, retry_after: Callable[[], int] = lambda: 1) -> Response:
    """The whole HTTP answer for `error`.

    retry_after: in how many seconds a client that found the queue full should come again.
    """
    status = status_of(error)
    headers: dict[str, str] = {}
    match error:
        case QueueFullError():
            headers["Retry-After"] = str(retry_after())
        case InvalidApiKeyError():
            headers["WWW-Authenticate"] = "Bearer"
        case BodyTimeoutError():
            headers["Connection"] = "close"  # the rest of the body is not waited for
        case HTTPException():
            headers.update(error.headers or {})
    return JSONResponse(error_body(error), status_code=status, headers=headers)


def install_error_handlers(app: FastAPI, retry_after: Callable[[], int]) -> None:
    """Shape errors of all routes, those of the router itself (404, 405) included."""

    async def answer(_request: Request, error: Exception) -> Response:
        return error_response(error, retry_after)

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
        case InvalidApiKeyError():
            return "invalid_api_key"
        case AdminKeyNeededError():
            return "admin_key_needed"
        case BodyTimeoutError():
            return "body_timeout"
        case HeaderTimeoutError():
            return "header_timeout"
        case RequestTimeoutError():
            return "request_timeout"
        case _:
            return None
