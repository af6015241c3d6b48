"""Routes, from which FastAPI writes /openapi.json; their bodies are read here, under limits. And
errors as answers, those of routes that are not here too.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, get_args, get_type_hints

from fastapi import FastAPI, Request
from fastapi.responses import Response
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.routing import Match
from starlette.types import Scope

from radixlm.core.errors import EngineDeadError, NoTrialError, QueueFullError, RadixLMError
from radixlm.formats.files import read_table
from radixlm.server.http import http_errors
from radixlm.server.http.body import Body, parse_body, query_of
from radixlm.server.http.envelope import exchange_of
from radixlm.server.http.sse import EVENTS

# What may be raised where an answer is generated.
GENERATING = (QueueFullError, http_errors.GenerationFailedError, EngineDeadError, NoTrialError)
_VERSION: Final = "/v1"
# By the beginning of a path: what is not there, with its verb.
ABSENT = read_table("radixlm.server.http", "absent_routes.txt")
# What does here what another server's route does there.
INSTEAD = read_table("radixlm.server.http", "routes_instead.txt")


class ReadLimits(NamedTuple):
    """seconds: until the whole body must be there, 0 for no limit. strict: --strict-fields."""

    max_bytes: int
    seconds: float
    strict: bool


class ReadAs(NamedTuple):
    """Metadata of a body parameter that `parse_body` does not read.

    read: makes it from JSON; its second argument is --strict-fields. Raises InvalidRequestError.
    """

    read: Callable[[bytes, bool], Any]


@dataclass(frozen=True, slots=True)
class Notes:
    """Notes on a route for /openapi.json, beyond its signature and its `response_model`.

    errors: what it may raise, beyond what any route may and what reading its parameters may.
    error: the type of errors' JSON. events: the type of a stream's events. event_type: what the
        stream is.
    example: a body that is answered.
    admin: with --admin-api-key, only such a key opens it, or part of what it does.
    """

    errors: tuple[type[Exception], ...] = ()
    error: Any = http_errors.Error
    events: Any = None
    event_type: str = EVENTS
    example: Mapping[str, Any] = field(default_factory=dict)
    admin: bool = False


def noted(*errors: type[Exception], **notes: Any) -> dict[int | str, Any]:
    """`responses` of a Route: its Notes."""
    return {"notes": Notes(errors, **notes)}


class Route(APIRoute):
    """Declared as FastAPI's routes are, and read more strictly than FastAPI would.

    A body has limits of bytes, time and depth, is JSON whatever its content type says, holds no
    name twice, and is refused in this server's words. Dependencies run before the body is read:
    to refuse a request must cost next to nothing.

    GET also takes HEAD, as Starlette's own routes do; uvicorn leaves the body out. A route that
    takes POST, too, changes something; it has no HEAD, nor has a stream without an end.
    """

    def __init__(self, path: str, endpoint: Callable[..., Any], **options: Any) -> None:
        responses = dict(options.pop("responses", None) or {})
        self.notes: Notes = responses.pop("notes", None) or Notes()
        # `openapi.document` moves these two to where they belong.
        responses["default"] = {"model": self.notes.error}
        if self.notes.events is not None:
            responses["2XX"] = {"model": self.notes.events}
        super().__init__(path, endpoint, responses=responses, **options)
        self.summary, _, more = self.description.partition("\n")
        self.description = inspect.cleandoc(more)
        if self.methods == {"GET"} and self.notes.events is None:
            self.methods.add("HEAD")

    def get_route_handler(self) -> Callable[[Request], Awaitable[Response]]:  # type: ignore[override]
        before = [each.dependency for each in self.dependencies if each.dependency is not None]
        reads_request = self.dependant.request_param_name
        queries: dict[str, Any] = {
            each.name: each.field_info.annotation for each in self.dependant.query_params
        }
        body = self.body_field
        read = None if body is None else _reader(self.endpoint, body.name)

        async def handle(request: Request) -> Response:
            for check in before:
                check(request)
            given: dict[str, Any] = dict(request.path_params)
            if reads_request is not None:
                given[reads_request] = request
            for name, kind in queries.items():
                given[name] = query_of(request, kind)
            if body is not None and read is not None:
                limits: ReadLimits = request.app.state.read_limits
                given[body.name] = read(await _read(request, limits), limits.strict)
            answer: Response = await self.endpoint(**given)
            return answer

        return handle

    @property
    def bodies(self) -> tuple[type[Body], ...]:
        """The types that the body is one of."""
        kind = None if self.body_field is None else self.body_field.field_info.annotation
        return () if kind is None else get_args(kind) or (kind,)


def _reader(endpoint: Callable[..., Any], name: str) -> Callable[[bytes, bool], Any]:
    kind = get_type_hints(endpoint, include_extras=True)[name]
    for each in getattr(kind, "__metadata__", ()):
        if isinstance(each, ReadAs):
            return each.read
    return lambda body, strict: parse_body(kind, body, strict=strict)


async def _read(request: Request, limits: ReadLimits) -> bytes:
    """The request's body.

    Raises BodyTooLargeError as soon as it is longer than --max-request-bytes, BodyTimeoutError when
    it has not come whole within --body-timeout.
    """
    try:
        async with asyncio.timeout(limits.seconds or None):
            declared = request.headers.get("content-length", "")
            body = bytearray()
            if not declared.isdecimal() or int(declared) <= limits.max_bytes:
                async for chunk in request.stream():
                    body += chunk
                    if len(body) > limits.max_bytes:
                        break
                else:
                    return bytes(body)
    except TimeoutError:
        raise http_errors.BodyTimeoutError(
            f"the request's body took longer than --body-timeout {limits.seconds:g} s"
        ) from None
    raise http_errors.BodyTooLargeError(
        f"the request's body is longer than {limits.max_bytes} bytes"
    )


def absence(
    scope: Scope, status: int, routes: Sequence[APIRoute]
) -> http_errors.NotFoundError | http_errors.WrongMethodError | None:
    """The error in place of the router's own 404 or 405; None where `routes` do not have the path
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
            return http_errors.UnsupportedRouteError(
                f"{what} not supported by this server: no {asked}{advice}"
            )
    if status == 404:
        advice = advice or "; GET /openapi.json lists those that there are"
        return http_errors.UnknownRouteError(
            f"Invalid URL ({asked}): there is no such route{advice}"
        )
    methods = _methods_at(scope, routes)
    return http_errors.WrongMethodError(asked, methods) if methods else None


def _methods_at(scope: Scope, routes: Sequence[APIRoute]) -> list[str]:
    """The methods of a path. The router itself names those of the path's first route only."""
    here = [route for route in routes if route.matches(scope)[0] is not Match.NONE]
    # A path without parameters is no id of another route.
    here = [route for route in here if "{" not in route.path] or here
    return sorted({method for route in here for method in route.methods or ()})


def _under_another_prefix(path: str, scope: Scope, routes: Sequence[APIRoute]) -> str | None:
    """The route that is meant where a base URL lacks /v1, or has it once too often."""
    for meant in (_VERSION + path, path.removeprefix(_VERSION)):
        there = {**scope, "path": scope.get("root_path", "") + meant}
        if meant != path and (methods := _methods_at(there, routes)):
            return f"{http_errors.in_words(methods)} {meant:.200}"
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
        return http_errors.error_response(error, exchange_of(request).errors.body, retry_after)

    async def leave(_request: Request, _error: Exception) -> Response:
        return Response(status_code=499)  # the client left while it sent its body

    for kind in (RadixLMError, HTTPException, Exception):
        app.add_exception_handler(kind, answer)
    app.add_exception_handler(ClientDisconnect, leave)
