"""Errors as answers, those of routes that are not here too."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from fastapi import FastAPI, Request
from fastapi.responses import Response
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.routing import Match
from starlette.types import Scope

from radixlm.core.errors import RadixLMError
from radixlm.core.files import read_table
from radixlm.server.http.envelope import exchange_of
from radixlm.server.http.http_errors import (
    NotFoundError,
    UnknownRouteError,
    UnsupportedRouteError,
    WrongMethodError,
    error_response,
    in_words,
)

_VERSION: Final = "/v1"


# By the beginning of a path: what is not there, with its verb.
ABSENT = read_table("radixlm.server.http", "absent_routes.txt")
# What does here what another server's route does there.
INSTEAD = read_table("radixlm.server.http", "routes_instead.txt")


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
