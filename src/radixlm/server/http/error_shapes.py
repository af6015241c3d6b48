"""How each API tells of an error: OpenAI's way, Anthropic's and Ollama's on their own paths."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from starlette.types import Scope

from radixlm.core.errors import (
    EngineDeadError,
    EngineStoppedError,
    InvalidRequestError,
    QueueFullError,
    RequestTooLargeError,
)
from radixlm.server.http.http_errors import (
    AdminKeyNeededError,
    BodyTimeoutError,
    HeaderTimeoutError,
    InvalidApiKeyError,
    ModelNotFoundError,
    NotFoundError,
    RequestTimeoutError,
    UnknownRouteError,
    UnsupportedRouteError,
    WrongMethodError,
    message_of,
    status_of,
)
from radixlm.server.http.sse import DONE, event
from radixlm.server.openai.openai_wire import Error, MessagesError, MessagesErrorDetails

MESSAGES_PATH = "/v1/messages"
_MODELS_PATH = "/v1/models"
OLLAMA_PATH = "/api"
_CODES: Mapping[type[Exception], str] = {
    ModelNotFoundError: "model_not_found",
    UnsupportedRouteError: "unsupported_route",
    UnknownRouteError: "unknown_url",
    NotFoundError: "not_found",
    WrongMethodError: "method_not_supported",
    RequestTooLargeError: "context_length_exceeded",
    QueueFullError: "queue_full",
    EngineStoppedError: "server_shutting_down",
    EngineDeadError: "engine_dead",
    InvalidApiKeyError: "invalid_api_key",
    AdminKeyNeededError: "admin_key_needed",
    BodyTimeoutError: "body_timeout",
    HeaderTimeoutError: "header_timeout",
    RequestTimeoutError: "request_timeout",
}


class ErrorShape(NamedTuple):
    """body: the JSON answer. end: what a stream ends with that the error cuts short."""

    body: Callable[[Exception], Mapping[str, Any]]
    end: Callable[[Exception], bytes]


def openai_error(error: Exception) -> Error:
    """Source: https://platform.openai.com/docs/guides/error-codes."""
    status = status_of(error)
    kinds = {
        403: "permission_error",
        429: "rate_limit_exceeded",
        503: "service_unavailable_error",
        504: "timeout_error",
    }
    kind = kinds.get(status, "invalid_request_error" if status < 500 else "server_error")
    param = error.param if isinstance(error, InvalidRequestError) else None
    return {
        "error": {
            "message": message_of(error),
            "type": kind,
            "param": param,
            "code": _code_of(error),
        }
    }


def messages_error(error: Exception, request_id: str) -> MessagesError:
    """Source: https://docs.claude.com/en/api/errors."""
    status = status_of(error)
    kinds = {
        401: "authentication_error",
        403: "permission_error",
        404: "not_found_error",
        413: "request_too_large",
        429: "rate_limit_error",
        503: "overloaded_error",
        504: "timeout_error",
    }
    kind = kinds.get(status, "invalid_request_error" if status < 500 else "api_error")
    message = message_of(error)
    if isinstance(error, RequestTooLargeError) and error.prompt_tokens is not None:
        # Clients that make room when it is full look for these words.
        length = f"{error.prompt_tokens} tokens > {error.longest_prompt} maximum"
        message = f"prompt is too long: {length}"
    told: MessagesErrorDetails = {"type": kind, "message": message}
    if isinstance(error, InvalidRequestError) and error.param == "thread":
        # Their package reads this, and sends the whole conversation from then on.
        told["details"] = {
            "error_code": "thread_unsupported_request",
            "unsupported": ["thread"],
        }
    return {"type": "error", "error": told, "request_id": request_id}


def _code_of(error: Exception) -> str | None:
    return next((_CODES[kind] for kind in type(error).__mro__ if kind in _CODES), None)


OPENAI = ErrorShape(openai_error, lambda error: event(openai_error(error)) + DONE)


def shape_of(scope: Scope, request_id: str) -> ErrorShape:
    """The shape of errors on a request's path, whether or not there is a route."""
    if _below(scope, OLLAMA_PATH):
        return OPENAI._replace(body=lambda error: {"error": message_of(error)})
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
