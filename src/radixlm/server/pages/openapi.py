"""/openapi.json: written from the types that requests are read into and answers are made as."""

from __future__ import annotations

import inspect
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from importlib.metadata import version
from typing import Any, Literal

from fastapi.routing import APIRoute
from pydantic import TypeAdapter

from radixlm.build import ModelInfo
from radixlm.core.errors import QueueFullError
from radixlm.server.config.server_config import ServerConfig
from radixlm.server.http.api_keys import OPEN_PATH
from radixlm.server.http.body_schema import fit_model
from radixlm.server.http.http_errors import (
    AdminKeyNeededError,
    BodyTimeoutError,
    HeaderTimeoutError,
    HeaderTooLongError,
    InvalidApiKeyError,
    RequestTimeoutError,
    status_of,
)
from radixlm.server.pages.described import DESCRIBED, Described

Json = dict[str, Any]
Mode = Literal["validation", "serialization"]
Schemas = Mapping[tuple[Any, Mode], Json]

_JSON = "application/json"
_KEY = "key"
_KEY_HEADER = "key_header"
# Of a connection whose headers never came whole: there is no request yet that could have an id.
_WITHOUT_ID = frozenset({HeaderTimeoutError, HeaderTooLongError})
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
_ERROR_HEADERS: Mapping[type[Exception], tuple[str, ...]] = {
    QueueFullError: ("Retry-After",),
    InvalidApiKeyError: ("WWW-Authenticate",),
}


def document(
    routes: Sequence[APIRoute], model_name: str, info: ModelInfo, config: ServerConfig
) -> Json:
    """The OpenAPI document of `routes`, as a server with this model and these flags answers them.

    Raises KeyError for a route that DESCRIBED does not know.
    """
    schemas, components = _schemas()
    paths: Json = {}
    for route in routes:
        path = route.path_format
        methods = paths.setdefault(path, {})
        for method in sorted(route.methods or ()):
            like = "GET" if method == "HEAD" else method
            described = DESCRIBED.get(f"{like} {path}") or DESCRIBED[path]
            told = _operation(route, described, schemas, config)
            place = re.sub(r"\W+", "_", path).strip("_")
            name = method.lower()
            methods[name] = {"operationId": f"{name}_{place}", **told}
    _fit_model(components, model_name, info, strict=config.strict_fields)
    document: Json = {
        "openapi": "3.1.0",
        "info": {"title": "RadixLM", "version": version("radixlm")},
        "paths": paths,
        "components": {"schemas": components, "headers": _HEADERS},
    }
    if config.api_key or config.admin_api_key:
        document["components"]["securitySchemes"] = {
            _KEY: {"type": "http", "scheme": "bearer"},
            _KEY_HEADER: {"type": "apiKey", "in": "header", "name": "x-api-key"},
        }
    if config.api_key:
        document["security"] = [{_KEY: []}, {_KEY_HEADER: []}]
    return document


def _schemas() -> tuple[Schemas, Json]:
    """Each type's schema, and the components that these refer to."""
    wanted: dict[tuple[Any, Mode], TypeAdapter[Any]] = {}
    for described in DESCRIBED.values():
        for answer in (*described.answer, described.events, described.error):
            if answer is not None:
                wanted[answer, "serialization"] = TypeAdapter(answer)
        if described.body is not None:
            wanted[described.body, "validation"] = TypeAdapter(described.body)
    schemas, rest = TypeAdapter.json_schemas(
        [(kind, mode, adapter) for (kind, mode), adapter in wanted.items()],
        ref_template="#/components/schemas/{model}",
    )
    return schemas, rest["$defs"]


def _fit_model(components: Json, model_name: str, info: ModelInfo, *, strict: bool) -> None:
    """What a body may hold hangs on the model: `model` names it, tokens are its own."""
    longest = min(info.context_length, info.kv_tokens)
    explained = {body.__name__ for body in DESCRIBED["/cache/explain"].bodies}
    for name, schema in components.items():
        fit_model(
            schema,
            vocab_size=info.vocab_size,
            longest=None if name in explained else longest,
            strict=strict,
        )
    for described in DESCRIBED.values():
        for body in described.bodies:
            if "model" in body.model_fields:
                fields = components[body.__name__]["properties"]
                fields["model"] = {"enum": [model_name, None], "default": None}


def _operation(
    route: APIRoute, described: Described, schemas: Schemas, config: ServerConfig
) -> Json:
    """What all methods of a route have in common."""
    summary, _, more = route.description.partition("\n")
    told: Json = {"summary": summary}
    if more:
        told["description"] = inspect.cleandoc(more)
    if parameters := _parameters(route, described):
        told["parameters"] = parameters
    if described.body is not None:
        media: Json = {
            "schema": schemas[described.body, "validation"],
            "example": described.example,
        }
        told["requestBody"] = {"required": True, "content": {_JSON: media}}
    if config.api_key and route.path_format == OPEN_PATH:
        told["security"] = []
    if described.admin and config.admin_api_key:
        told["security"] = [{_KEY: []}]
    answers = {status: _text(text) for status, text in described.texts.items()}
    if described.answer:
        answers[200] = _answer(described, schemas)
    failures = _failures(
        _errors_of(route, described, config), schemas[described.error, "serialization"]
    )
    told["responses"] = {
        str(status): answer for status, answer in sorted({**failures, **answers}.items())
    }
    return told


def _parameters(route: APIRoute, described: Described) -> list[Json]:
    """What stands in the path, and behind it."""
    parameters: list[Json] = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
        for name in re.findall(r"{(\w+)}", route.path_format)
    ]
    if described.query is not None:
        fields = TypeAdapter(described.query).json_schema()["properties"]
        parameters += [
            {"name": name, "in": "query", "schema": schema} for name, schema in fields.items()
        ]
    return parameters


def _answer(described: Described, schemas: Schemas) -> Json:
    parts = [schemas[kind, "serialization"] for kind in described.answer]
    content: Json = {_JSON: {"schema": parts[0] if len(parts) == 1 else {"allOf": parts}}}
    if described.events is not None:
        # `itemSchema` is OpenAPI 3.2's; readers of 3.1 that do not know it see an opaque stream.
        data = [schemas[kind, "serialization"] for kind in (described.events, described.error)]
        event = {"type": "string", "contentMediaType": _JSON, "contentSchema": {"anyOf": data}}
        content["text/event-stream"] = {
            "itemSchema": {
                "type": "object",
                "properties": {
                    "data": {"anyOf": [{"const": "[DONE]"}, event]},
                    "event": {"type": "string"},
                },
                "required": ["data"],
            }
        }
    return {"description": "The answer.", "content": content, "headers": _headers()}


def _text(text: str) -> Json:
    content = {"text/plain": {"schema": {"type": "string"}}}
    return {"description": text, "content": content, "headers": _headers()}


def _errors_of(
    route: APIRoute, described: Described, config: ServerConfig
) -> list[type[Exception]]:
    """What a route may raise on a server with these flags."""
    errors = [*described.errors, HeaderTooLongError]
    if config.header_timeout:
        errors.append(HeaderTimeoutError)
    if not config.body_timeout and BodyTimeoutError in errors:
        errors.remove(BodyTimeoutError)
    for_admins = described.admin and config.admin_api_key
    if for_admins:
        errors.append(AdminKeyNeededError)
    if for_admins or (config.api_key and route.path_format != OPEN_PATH):
        errors.append(InvalidApiKeyError)
    if config.request_timeout:
        errors.append(RequestTimeoutError)
    return errors


def _failures(errors: Iterable[type[Exception]], schema: Json) -> dict[int, Json]:
    """The answers to errors, by status."""
    texts: dict[int, list[str]] = defaultdict(list)
    headers: dict[int, Json] = {}
    for kind in errors:
        status = status_of(kind(""))
        texts[status].append((inspect.getdoc(kind) or "").partition("\n")[0])
        # A header is told where every error of this status has it.
        own = {} if kind in _WITHOUT_ID else _headers(*_ERROR_HEADERS.get(kind, ()))
        headers[status] = {name: own[name] for name in own if name in headers.get(status, own)}
    return {
        status: {
            "description": " ".join(told),
            "content": {_JSON: {"schema": schema}},
            "headers": headers[status],
        }
        for status, told in texts.items()
    }


def _headers(*more: str) -> Json:
    return {name: {"$ref": f"#/components/headers/{name}"} for name in ("x-request-id", *more)}
