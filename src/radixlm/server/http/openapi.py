"""/openapi.json: FastAPI's document of the routes, with what this server's flags and model add."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from copy import copy
from importlib.metadata import version
from typing import Any, NamedTuple

from fastapi.openapi.utils import get_openapi

from radixlm.core.errors import InvalidRequestError, QueueFullError
from radixlm.server.config.server_config import ServerConfig
from radixlm.server.http import http_errors
from radixlm.server.http.envelope import OPEN_PATH
from radixlm.server.http.fields import fit_schema
from radixlm.server.http.routes import Route
from radixlm.server.http.sse import EVENTS

Json = dict[str, Any]

_JSON = "application/json"
# Of a connection whose headers never came whole: there is no request yet that could have an id.
_WITHOUT_ID = (http_errors.HeaderTimeoutError, http_errors.HeaderTooLongError)
_HEADERS: Json = {
    "x-request-id": {
        "description": "The client's own, or a fresh one.",
        "required": True,
        "schema": {"type": "string"},
    },
    "Retry-After": {
        "description": "In how many seconds to come again.",
        "required": True,
        "schema": {"type": "integer", "minimum": 1},
    },
    "WWW-Authenticate": {"required": True, "schema": {"type": "string"}},
}
_ERROR_HEADERS = {
    QueueFullError: ("Retry-After",),
    http_errors.InvalidApiKeyError: ("WWW-Authenticate",),
}
_SCHEMES: Json = {
    "key": {"type": "http", "scheme": "bearer"},
    "key_header": {"type": "apiKey", "in": "header", "name": "x-api-key"},
}


class Served(NamedTuple):
    """names: of the model, then of its adapters. longest: tokens that prompt and answer may have
    together.
    """

    names: tuple[str, ...]
    vocab_size: int
    longest: int


def document(routes: Sequence[Route], config: ServerConfig, served: Served) -> Json:
    """The document of `routes`, as a server with this model and these flags answers them."""
    shown = [each for route in routes for each in _by_method(route)]
    found: Json = get_openapi(title="RadixLM", version=version("radixlm"), routes=shown)
    # FastAPI writes each limit as a float.
    found = json.loads(json.dumps(found), parse_float=_as_written)
    for each in shown:
        (method,) = each.methods or {""}
        _complete(found["paths"][each.path_format][method.lower()], each, config)
    components = found["components"]
    for schema in components["schemas"].values():
        fit_schema(schema, *served, strict=config.strict_fields)
    components["headers"] = _HEADERS
    if config.api_key or config.admin_api_key:
        components["securitySchemes"] = _SCHEMES
    if config.api_key:
        found["security"] = [{name: []} for name in _SCHEMES]
    return found


def _as_written(number: str) -> float:
    return int(float(number)) if number.endswith(".0") else float(number)


def _by_method(route: Route) -> Iterator[Route]:
    """A route for each method: FastAPI would give all of them one operationId."""
    place = re.sub(r"\W+", "_", route.path_format).strip("_")
    for method in sorted(route.methods or ()):
        one = copy(route)
        one.methods, one.operation_id = {method}, f"{method.lower()}_{place}"
        yield one


def _complete(operation: Json, route: Route, config: ServerConfig) -> None:
    """Add examples, streams, errors and keys."""
    bodies = operation.get("requestBody", {}).get("content", {})
    if _JSON in bodies:
        bodies[_JSON]["example"] = route.notes.example
    if route.notes.admin and config.admin_api_key:
        operation["security"] = [{"key": []}]
    elif config.api_key and route.path_format == OPEN_PATH:
        operation["security"] = []
    responses = operation["responses"]
    error = _schema_of(responses.pop("default"))
    if "2XX" in responses:
        events = {"anyOf": [_schema_of(responses.pop("2XX")), error]}
        stream = route.notes.event_type
        item = _item_schema(events) if stream == EVENTS else events
        responses["200"]["content"][stream] = {"itemSchema": item}
    for answer in responses.values():
        answer["headers"] = _references(["x-request-id"])
    for kind in _errors_of(route, config):
        _add_error(responses, kind, error)


def _schema_of(response: Json) -> Json:
    [content] = response["content"].values()
    schema: Json = content["schema"]
    return schema


def _item_schema(events: Json) -> Json:
    """`itemSchema` is OpenAPI 3.2's; readers of 3.1 that do not know it see an opaque stream."""
    data = {"type": "string", "contentMediaType": _JSON, "contentSchema": events}
    return {
        "type": "object",
        "properties": {"data": {"anyOf": [{"const": "[DONE]"}, data]}, "event": {"type": "string"}},
        "required": ["data"],
    }


def _errors_of(route: Route, config: ServerConfig) -> Iterator[type[Exception]]:
    """The errors that a route may raise on a server with these flags."""
    yield from route.notes.errors
    if route.bodies:
        yield from (InvalidRequestError, http_errors.BodyTooLargeError)
        if config.body_timeout:
            yield http_errors.BodyTimeoutError
        if any("model" in body.model_fields for body in route.bodies):
            yield http_errors.ModelNotFoundError
    elif route.dependant.query_params:
        yield InvalidRequestError
    yield http_errors.HeaderTooLongError
    if config.header_timeout:
        yield http_errors.HeaderTimeoutError
    for_admins = route.notes.admin and config.admin_api_key
    if for_admins:
        yield http_errors.AdminKeyNeededError
    if for_admins or (config.api_key and route.path_format != OPEN_PATH):
        yield http_errors.InvalidApiKeyError
    if config.request_timeout:
        yield http_errors.RequestTimeoutError


def _add_error(responses: Json, kind: type[Exception], schema: Json) -> None:
    """A header is there where every error of a status has it."""
    text = (inspect.getdoc(kind) or "").partition("\n")[0]
    own = [] if kind in _WITHOUT_ID else ["x-request-id", *_ERROR_HEADERS.get(kind, ())]
    headers = _references(own)
    known = responses.get(str(http_errors.status_of(kind(""))))
    if known is not None:
        text = f"{known['description']} {text}"
        headers = {name: headers[name] for name in known["headers"] if name in headers}
    responses[str(http_errors.status_of(kind("")))] = {
        "description": text,
        "content": {_JSON: {"schema": schema}},
        "headers": headers,
    }


def _references(names: Iterable[str]) -> Json:
    return {name: {"$ref": f"#/components/headers/{name}"} for name in names}
