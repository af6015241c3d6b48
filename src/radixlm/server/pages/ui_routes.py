"""The live tree: one page and its parts, files of this package, which hold no data of anyone."""

from __future__ import annotations

import hashlib
from functools import cache
from importlib.resources import files
from typing import NamedTuple

from fastapi import APIRouter, Request
from fastapi.responses import RedirectResponse, Response

from radixlm.server.http.envelope import PAGE_PATH, TOP_PATH
from radixlm.server.http.http_errors import NotFoundError
from radixlm.server.http.routes import Route
from radixlm.server.pipeline.service import service_of, tenant_of

PAGE = "index.html"
_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
    ".LICENSE": "text/plain; charset=utf-8",
}
# Prompts are shown on this page: whatever they hold, nothing of it may run or be fetched.
_POLICY = (
    "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "object-src 'none'; require-trusted-types-for 'script'"
)
_HEADERS = {
    "Cache-Control": "no-cache",
    "Content-Security-Policy": _POLICY,
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}

router = APIRouter(route_class=Route)


class _Part(NamedTuple):
    content: bytes
    media_type: str
    etag: str


@router.get(TOP_PATH)
async def top() -> Response:
    """The server's address leads a browser to the page."""
    return RedirectResponse(PAGE_PATH.removeprefix("/"))


@router.get(PAGE_PATH)
async def page(request: Request) -> Response:
    """The page. Where a key is needed and none is sent it is a 401 that asks for one: a browser
    can not send a key with its first request.
    """
    refusal = service_of(request).keys.key_refusal(tenant_of(request))
    return part_response(PAGE, request, status=200 if refusal is None else 401)


@router.get("/ui/")
async def page_below() -> Response:
    """The page's own place: its parts are named from there."""
    return RedirectResponse("../ui")


@router.get("/ui/{name:path}")
async def part(request: Request, name: str) -> Response:
    """A script, a style or a picture of the page; no key is needed."""
    return part_response(name, request)


def part_response(name: str, request: Request, *, status: int = 200) -> Response:
    """One of the page's files. Raises NotFoundError."""
    if (found := parts().get(name)) is None:
        raise NotFoundError(f"the page has no part {name!r:.80}")
    headers = {**_HEADERS, "ETag": found.etag}
    if status == 200 and request.headers.get("if-none-match") == found.etag:
        return Response(status_code=304, headers=headers)
    if status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    return Response(found.content, status, headers, found.media_type)


@cache
def parts() -> dict[str, _Part]:
    """All files of the page by their path below /ui/: only these are served, read once."""
    top = files("radixlm.server.pages") / "ui"
    found = {}
    for folder in ("", "vendor/"):
        for item in (top / folder if folder else top).iterdir():
            kind = _TYPES.get("." + item.name.rpartition(".")[2])
            if kind is not None:
                content = item.read_bytes()
                digest = hashlib.blake2b(content, digest_size=8).hexdigest()
                found[folder + item.name] = _Part(content, kind, f'"{digest}"')
    return found
