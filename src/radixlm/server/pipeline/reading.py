"""A request's body as it comes in."""

from __future__ import annotations

import asyncio
from typing import TypeVar

from fastapi import Request

from radixlm.server.http.body import Body, parse_body
from radixlm.server.http.http_errors import BodyTimeoutError, BodyTooLargeError
from radixlm.server.pipeline.service import service_of

M = TypeVar("M", bound=Body)


async def body_of(request: Request, model: type[M]) -> M:
    """The request's body as a `model`. Raises as read_body and parse_body."""
    strict = service_of(request).config.strict_fields
    return parse_body(model, await read_body(request), strict=strict)


async def read_body(request: Request) -> bytes:
    """The request's body.

    Raises BodyTooLargeError as soon as it is longer than --max-request-bytes, BodyTimeoutError when
    it has not come whole within --body-timeout.
    """
    service = service_of(request)
    config = service.config
    try:
        async with asyncio.timeout(config.body_timeout or None):
            return await _read(request, service.max_request_bytes)
    except TimeoutError:
        raise BodyTimeoutError(
            f"the request's body took longer than --body-timeout {config.body_timeout:g} s"
        ) from None


async def _read(request: Request, limit: int) -> bytes:
    declared = request.headers.get("content-length", "")
    body = bytearray()
    if not declared.isdecimal() or int(declared) <= limit:
        async for chunk in request.stream():
            body += chunk
            if len(body) > limit:
                break
        else:
            return bytes(body)
    raise BodyTooLargeError(f"the request's body is longer than {limit} bytes")
