"""What can go wrong with a request, and the HTTP answer that says so."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from fastapi.responses import JSONResponse, Response
from starlette.exceptions import HTTPException

from radixlm.core.errors import (
    EngineDeadError,
    EngineStoppedError,
    InvalidRequestError,
    NodeGoneError,
    NoTrialError,
    QueueFullError,
    RadixLMError,
)


class ModelNotFoundError(InvalidRequestError):
    """The request names a model that is not served here."""


class NotFoundError(InvalidRequestError):
    """Nothing that the client may see is stored under this id."""


class UnsupportedRouteError(NotFoundError):
    """The route is of an API, or a part of one, that this server does not have."""


class UnknownRouteError(NotFoundError):
    """There is no such route."""


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


def timed_out(limit: float) -> RequestTimeoutError:
    """limit: --request-timeout, in seconds."""
    return RequestTimeoutError(
        f"the request took longer than --request-timeout {limit:g} s and was aborted"
    )


def status_of(error: Exception) -> int:
    """The HTTP status that says what kind of error it is."""
    match error:
        case ModelNotFoundError() | NotFoundError() | NodeGoneError():
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
        case EngineDeadError() | NoTrialError() | NotGeneratingError():
            return 503
        case RequestTimeoutError():
            return 504
        case HTTPException():
            return error.status_code
        case _:
            return 500


def message_of(error: Exception) -> str:
    """What the client is told; of an error nobody meant, only the kind."""
    if isinstance(error, HTTPException):
        return str(error.detail)
    if isinstance(error, EngineStoppedError):
        return "the server is shutting down; send the request again when it is back"
    if isinstance(error, RadixLMError):
        return str(error)
    return f"internal error ({type(error).__name__}); the server's log has the details"


def error_response(
    error: Exception,
    body: Callable[[Exception], Mapping[str, Any]],
    retry_after: Callable[[], int] = lambda: 1,
) -> Response:
    """The whole HTTP answer for `error`.

    body: how the API shapes errors; see error_shapes.
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
    return JSONResponse(body(error), status_code=status, headers=headers)
