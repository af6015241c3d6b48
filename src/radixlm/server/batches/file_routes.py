"""The routes of /v1/files.

Source: https://platform.openai.com/docs/api-reference/files.
"""

from __future__ import annotations

import time
from typing import Annotated, Literal

from fastapi import APIRouter, Query, Request
from fastapi.responses import FileResponse, JSONResponse, Response
from pydantic import Field
from typing_extensions import TypedDict

from radixlm.core.errors import InvalidRequestError, QueueFullError, wrong
from radixlm.server.batches.file_store import (
    LIFETIME,
    MOST_FILES,
    FileTable,
    Json,
    Table,
    file_object,
    new_file_id,
)
from radixlm.server.batches.keeper import BatchKeeper
from radixlm.server.batches.upload import Upload, uploaded
from radixlm.server.http.body import DIGITS, Body
from radixlm.server.http.http_errors import (
    BodyTimeoutError,
    BodyTooLargeError,
    NotFoundError,
    UnsupportedRouteError,
)
from radixlm.server.http.lists import page_of
from radixlm.server.http.routes import Route, noted
from radixlm.server.http.store_thread import DiskFullError, room_on_disk
from radixlm.server.pipeline.service import service_of, tenant_of

_LEAST_SECONDS = 3_600


class FileObject(TypedDict):
    """created_at, expires_at: in seconds since 1970."""

    id: str
    object: Literal["file"]
    bytes: int
    created_at: int
    expires_at: int
    filename: str
    purpose: Literal["batch", "batch_output"]
    status: Literal["processed"]
    status_details: None


class FileList(TypedDict):
    object: Literal["list"]
    data: list[FileObject]
    first_id: str | None
    last_id: str | None
    has_more: bool


class FileDeleted(TypedDict):
    id: str
    object: Literal["file"]
    deleted: bool


class FilesQuery(Body):
    """GET /v1/files."""

    purpose: str | None = None
    after: str | None = None
    limit: Annotated[int, Field(ge=1, le=10_000), DIGITS] = 10_000
    order: Literal["asc", "desc"] = "desc"


router = APIRouter(route_class=Route)
_FORM = {
    "type": "object",
    "required": ["file", "purpose"],
    "properties": {
        "file": {"type": "string", "contentMediaType": "application/octet-stream"},
        "purpose": {"const": "batch"},
    },
}
_FORM_BODY = {"required": True, "content": {"multipart/form-data": {"schema": _FORM}}}


def keeper_of(request: Request) -> BatchKeeper:
    """The batches, which `create_app` put into the application. Raises UnsupportedRouteError."""
    keeper: BatchKeeper | None = request.app.state.batches
    if keeper is None:
        raise UnsupportedRouteError("Files and batches are not supported by this server")
    return keeper


@router.post(
    "/v1/files",
    response_model=FileObject,
    openapi_extra={"requestBody": _FORM_BODY},
    responses=noted(
        *(InvalidRequestError, UnsupportedRouteError, BodyTooLargeError),
        *(BodyTimeoutError, QueueFullError, DiskFullError),
    ),
)
async def create_file(request: Request) -> Response:
    """Upload a file of JSON lines, for a batch."""
    store = keeper_of(request).store
    if await store.call(FileTable.count) >= MOST_FILES:
        raise QueueFullError(f"there are {MOST_FILES} files; delete some")
    with room_on_disk():
        upload = await uploaded(request, store, service_of(request).config.body_timeout)
    try:
        purpose = upload.fields.get("purpose")
        if purpose != "batch":
            raise wrong("purpose", f"must be batch, got {purpose!r:.80}")
        shown = file_object(
            *(new_file_id(), upload.size, upload.name, purpose, time.time()), _lifetime(upload)
        )
        place = upload.path.rename(store.table.content(shown["id"]))
    except BaseException:
        upload.path.unlink(missing_ok=True)
        raise
    try:
        await store.call(FileTable.put_files, tenant_of(request), [shown])
    except Exception:
        place.unlink()
        raise
    return JSONResponse(shown)


def _lifetime(upload: Upload) -> int:
    """The seconds after which the client wants its file to be gone. Raises InvalidRequestError."""
    given = upload.fields.get("expires_after[seconds]", str(LIFETIME))
    if not given.isdecimal() or not _LEAST_SECONDS <= int(given) <= LIFETIME:
        raise wrong(
            "expires_after[seconds]", f"must be {_LEAST_SECONDS} to {LIFETIME}, got {given!r:.80}"
        )
    return int(given)


@router.get("/v1/files", response_model=FileList, responses=noted(UnsupportedRouteError))
async def list_files(request: Request, query: Annotated[FilesQuery, Query()]) -> Response:
    """The client's files, the newest first."""
    found = await keeper_of(request).store.call(
        FileTable.page,
        "files",
        tenant_of(request),
        query.after,
        query.limit + 1,
        ascending=query.order == "asc",
        purpose=query.purpose,
    )
    return JSONResponse(page_of(found, query.limit, query.after))


@router.get(
    "/v1/files/{file_id}",
    response_model=FileObject,
    responses=noted(NotFoundError),
)
async def get_file(request: Request, file_id: str) -> Response:
    """A file's name, size and purpose."""
    return JSONResponse(await stored(request, "files", file_id))


@router.get(
    "/v1/files/{file_id}/content", response_class=FileResponse, responses=noted(NotFoundError)
)
async def file_content(request: Request, file_id: str) -> Response:
    """A file's content, as it came or was written."""
    shown = await stored(request, "files", file_id)
    path = keeper_of(request).store.table.content(shown["id"])
    return FileResponse(path, media_type="application/octet-stream")


@router.delete(
    "/v1/files/{file_id}",
    response_model=FileDeleted,
    responses=noted(InvalidRequestError, NotFoundError),
)
async def delete_file(request: Request, file_id: str) -> Response:
    """Forget a file, unless a batch still reads it."""
    keeper = keeper_of(request)
    shown = await stored(request, "files", file_id)
    if keeper.reads(shown["id"]):
        raise wrong(
            "file_id", f"{shown['id']} is the input of a batch that runs: cancel that first"
        )
    await keeper.store.call(FileTable.delete_file, tenant_of(request), shown["id"])
    return JSONResponse({"id": shown["id"], "object": "file", "deleted": True})


async def stored(request: Request, table: Table, wanted: str, param: str | None = None) -> Json:
    """The client's own file or batch of this id. Raises NotFoundError."""
    found = await keeper_of(request).store.call(FileTable.get, table, tenant_of(request), wanted)
    if found is None:
        what = "file" if table == "files" else "batch"
        raise NotFoundError(f"No such {what} object: {wanted!r:.80}", param=param or f"{what}_id")
    return found
