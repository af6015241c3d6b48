"""Errors of requests, and how OpenAI's, Anthropic's and Ollama's API say them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple, NotRequired

from fastapi.responses import JSONResponse, Response
from starlette.exceptions import HTTPException
from starlette.types import Scope
from typing_extensions import TypedDict

from radixlm.core import errors
from radixlm.server.http.sse import DONE, compact, event

MESSAGES_PATH = "/v1/messages"
_MODELS_PATH = "/v1/models"
OLLAMA_PATH = "/api"


class ErrorDetails(TypedDict):
    """param: the request's field that is wrong."""

    message: str
    type: str
    param: str | None
    code: str | None


class Error(TypedDict):
    """Every error, as OpenAI shapes it; in a stream, its last event but [DONE]."""

    error: ErrorDetails


class MessagesErrorDetails(TypedDict):
    """details: for programs, where there is something that they can do."""

    type: str
    message: str
    details: NotRequired[dict[str, Any]]


class MessagesError(TypedDict):
    """Every error on the routes of /v1/messages, as Anthropic shapes it."""

    type: Literal["error"]
    error: MessagesErrorDetails
    request_id: str


class OllamaError(TypedDict):
    """Every error, as Ollama shapes it; in a stream, its last line."""

    error: str


class RequestTimeoutError(errors.RadixLMError):
    """The request took longer than the server lets one take; it was aborted."""


class GenerationFailedError(errors.RadixLMError):
    """The engine gave up on a request that it had taken."""


class NotGeneratingError(errors.RadixLMError):
    """The engine's loop runs, but no token came in time."""


# The HTTP status of an error, and OpenAI's code for it where there is one.
_KNOWN: dict[type[Exception], tuple[int, str | None]] = {
    errors.InvalidRequestError: (400, None),
    errors.RequestTooLargeError: (400, "context_length_exceeded"),
    errors.NodeGoneError: (404, None),
    errors.QueueFullError: (429, "queue_full"),
    errors.EngineDeadError: (503, "engine_dead"),
    errors.EngineStoppedError: (503, "server_shutting_down"),
    errors.NoTrialError: (503, None),
    NotGeneratingError: (503, None),
    RequestTimeoutError: (504, "request_timeout"),
}


class Refusal(errors.InvalidRequestError):
    """A refusal of a request, before it reaches the engine."""

    def __init_subclass__(cls, *, status: int, code: str | None = None) -> None:
        _KNOWN[cls] = (status, code)


class ModelNotFoundError(Refusal, status=404, code="model_not_found"):
    """The request names a model that is not served here."""


class ConversationLockedError(Refusal, status=400, code="conversation_locked"):
    """Another response is being made in the conversation."""


class NotFoundError(Refusal, status=404, code="not_found"):
    """An error: nothing that the client may see is stored under this id."""


class UnsupportedRouteError(NotFoundError, status=404, code="unsupported_route"):
    """The route is of an API, or a part of one, that this server does not have."""


class UnknownRouteError(NotFoundError, status=404, code="unknown_url"):
    """There is no such route."""


class WrongMethodError(Refusal, status=405, code="method_not_supported"):
    """There is such a route, but not with this method.

    methods: that it has.
    """

    def __init__(self, asked: str, methods: Sequence[str]) -> None:
        super().__init__(f"{asked} is not possible; use {in_words(methods)}")
        self.methods = methods


class BodyTooLargeError(Refusal, status=413):
    """The request's body is longer than the server reads."""


class BodyTimeoutError(Refusal, status=408, code="body_timeout"):
    """The client took too long to send the request's body."""


class HeaderTimeoutError(Refusal, status=408, code="header_timeout"):
    """The client took too long to send the request's headers."""


class HeaderTooLongError(Refusal, status=431):
    """The request's headers are longer than the server reads."""


class InvalidApiKeyError(Refusal, status=401, code="invalid_api_key"):
    """The request carries none of the keys that open this server."""


class AdminKeyNeededError(Refusal, status=403, code="admin_key_needed"):
    """The request carries a key that opens this server, but not what is for admins."""


# Their kinds, by status; others are the request's fault, or the server's.
_OPENAI_TYPES = {
    403: "permission_error",
    429: "rate_limit_exceeded",
    503: "service_unavailable_error",
    504: "timeout_error",
}
_ANTHROPIC_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
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
    return error.status_code if isinstance(error, HTTPException) else _known(error)[0]


def _known(error: Exception) -> tuple[int, str | None]:
    return next((_KNOWN[kind] for kind in type(error).__mro__ if kind in _KNOWN), (500, None))


def message_of(error: Exception) -> str:
    """The message for the client; of an unexpected error only its kind."""
    if isinstance(error, HTTPException):
        return str(error.detail)
    if isinstance(error, errors.EngineStoppedError):
        return "the server is shutting down; send the request again when it is back"
    if isinstance(error, errors.RadixLMError):
        return str(error)
    return f"internal error ({type(error).__name__}); the server's log has the details"


def error_response(
    error: Exception,
    body: Callable[[Exception], Mapping[str, Any]],
    retry_after: Callable[[], int] = lambda: 1,
) -> Response:
    """The whole HTTP answer for `error`.

    body: how the API shapes errors; see ErrorShape.
    retry_after: in how many seconds a client that found the queue full should come again.
    """
    status = status_of(error)
    headers: dict[str, str] = {}
    match error:
        case errors.QueueFullError():
            headers["Retry-After"] = str(retry_after())
        case InvalidApiKeyError():
            headers["WWW-Authenticate"] = "Bearer"
        case WrongMethodError():
            headers["Allow"] = ", ".join(error.methods)
        case BodyTimeoutError():
            headers["Connection"] = "close"  # the rest of the body is not waited for
        case HTTPException():
            headers.update(error.headers or {})
        case errors.RadixLMError():
            pass
        case _:
            headers["Connection"] = "close"  # uvicorn ends it after what nobody expected
    return JSONResponse(body(error), status_code=status, headers=headers)


class ErrorShape(NamedTuple):
    """body: the JSON answer. end: what a stream ends with that the error cuts short."""

    body: Callable[[Exception], Mapping[str, Any]]
    end: Callable[[Exception], bytes]


def openai_error(error: Exception) -> Error:
    """Source: https://platform.openai.com/docs/guides/error-codes."""
    status = status_of(error)
    rest = "invalid_request_error" if status < 500 else "server_error"
    param = error.param if isinstance(error, errors.InvalidRequestError) else None
    return {
        "error": {
            "message": message_of(error),
            "type": _OPENAI_TYPES.get(status, rest),
            "param": param,
            "code": _known(error)[1],
        }
    }


def messages_error(error: Exception, request_id: str) -> MessagesError:
    """Source: https://docs.claude.com/en/api/errors."""
    status = status_of(error)
    rest = "invalid_request_error" if status < 500 else "api_error"
    message = message_of(error)
    if isinstance(error, errors.RequestTooLargeError) and error.prompt_tokens is not None:
        # Clients that make room when it is full look for these words.
        length = f"{error.prompt_tokens} tokens > {error.longest_prompt} maximum"
        message = f"prompt is too long: {length}"
    details: MessagesErrorDetails = {"type": _ANTHROPIC_TYPES.get(status, rest), "message": message}
    if isinstance(error, errors.InvalidRequestError) and error.param == "thread":
        # Their package reads this, and sends the whole conversation from then on.
        details["details"] = {"error_code": "thread_unsupported_request", "unsupported": ["thread"]}
    return {"type": "error", "error": details, "request_id": request_id}


def ollama_error(error: Exception) -> OllamaError:
    """Source: https://github.com/ollama/ollama/blob/main/docs/errors.mdx."""
    return {"error": message_of(error)}


OPENAI = ErrorShape(openai_error, lambda error: event(openai_error(error)) + DONE)


def shape_of(scope: Scope, request_id: str) -> ErrorShape:
    """The shape of errors on a request's path, whether or not there is a route."""
    if _below(scope, OLLAMA_PATH):
        return ErrorShape(ollama_error, lambda error: compact(ollama_error(error)) + b"\n")
    if not for_anthropic(scope):
        return OPENAI
    return ErrorShape(
        lambda error: messages_error(error, request_id),
        lambda error: event(messages_error(error, request_id), "error"),
    )


def for_anthropic(scope: Scope) -> bool:
    """Whether a request is of Anthropic's API: by its path, or, where that is OpenAI's too, by the
    version that each of its clients names.
    """
    if _below(scope, MESSAGES_PATH):
        return True
    named = any(name == b"anthropic-version" for name, _ in scope["headers"])
    return named and _below(scope, _MODELS_PATH)


def _below(scope: Scope, root: str) -> bool:
    path = str(scope["path"]).removeprefix(scope.get("root_path", ""))
    return path == root or path.startswith(root + "/")
