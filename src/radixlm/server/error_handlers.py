"""Errors of all routes, those of the router itself (404, 405) included, on their way out."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from fastapi import FastAPI, Request
from fastapi.responses import Response
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from radixlm.core.errors import RadixLMError
from radixlm.server.absent import absence
from radixlm.server.errors import error_response
from radixlm.server.exchange import exchange_of


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
