"""What can go wrong with a request, and the HTTP answer that says so."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
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


class WrongMethodError(InvalidRequestError):
    """There is such a route, but not with this method.

    methods: that it has.
    """

    def __init__(self, asked: str, methods: Sequence[str]) -> None:
        super().__init__(f"{asked} is not possible; use {in_words(methods)}")
        self.methods = methods


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


_STATUSES: Mapping[type[Exception], int] = {
    InvalidRequestError: 400,
    InvalidApiKeyError: 401,
    AdminKeyNeededError: 403,
    **dict.fromkeys((ModelNotFoundError, NotFoundError, NodeGoneError), 404),
    WrongMethodError: 405,
    **dict.fromkeys((BodyTimeoutError, HeaderTimeoutError), 408),
    BodyTooLargeError: 413,
    QueueFullError: 429,
    HeaderTooLongError: 431,
    **dict.fromkeys((EngineDeadError, NoTrialError, NotGeneratingError), 503),
    RequestTimeoutError: 504,
}


def timed_out(limit: float) -> RequestTimeoutError:
    """limit: --request-timeout, in seconds."""
    return RequestTimeoutError(
        f"the request took longer than --request-timeout {limit:g} s and was aborted"
    )


def in_words(methods: Sequence[str]) -> str:
    """GET goes without saying that HEAD goes, too."""
    return " or ".join(each for each in methods if each != "HEAD")


def status_of(error: Exception) -> int:
    """The HTTP status that says what kind of error it is."""
    if isinstance(error, HTTPException):
        return error.status_code
    return next((_STATUSES[kind] for kind in type(error).__mro__ if kind in _STATUSES), 500)


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
        case WrongMethodError():
            headers["Allow"] = ", ".join(error.methods)
        case BodyTimeoutError():
            headers["Connection"] = "close"  # the rest of the body is not waited for
        case HTTPException():
            headers.update(error.headers or {})
    return JSONResponse(body(error), status_code=status, headers=headers)
