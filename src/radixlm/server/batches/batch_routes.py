"""The routes of /v1/batches.

Source: https://platform.openai.com/docs/api-reference/batch.
"""

from __future__ import annotations

import time
import uuid
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Request
from fastapi.responses import JSONResponse, Response
from pydantic import Field
from typing_extensions import TypedDict

from radixlm.batch.lines import ENDPOINTS
from radixlm.core.errors import QueueFullError, wrong
from radixlm.server.batches.file_routes import keeper_of, stored
from radixlm.server.batches.file_store import FileTable, Json
from radixlm.server.http.body import DIGITS, Body, Metadata
from radixlm.server.http.http_errors import NotFoundError, UnsupportedRouteError
from radixlm.server.http.lists import page_of
from radixlm.server.http.routes import Route, noted
from radixlm.server.http.store_thread import DiskFullError
from radixlm.server.pipeline.service import tenant_of

WINDOW_SECONDS = 86_400
_STAGES = (
    *("in_progress", "finalizing", "completed", "failed", "expired", "cancelling", "cancelled"),
)


class BatchBody(Body):
    """POST /v1/batches."""

    input_file_id: str
    endpoint: str
    completion_window: Literal["24h"]
    metadata: Metadata | None = None

    def check(self) -> None:
        if self.endpoint not in ENDPOINTS:
            raise wrong(
                "endpoint", f"must be one of {', '.join(ENDPOINTS)}, got {self.endpoint!r:.80}"
            )


class BatchesQuery(Body):
    """GET /v1/batches."""

    after: str | None = None
    limit: Annotated[int, Field(ge=1, le=100), DIGITS] = 20


class BatchError(TypedDict):
    code: str
    message: str
    param: str | None
    line: int | None


class BatchErrors(TypedDict):
    object: Literal["list"]
    data: list[BatchError]


class RequestCounts(TypedDict):
    total: int
    completed: int
    failed: int


class BatchObject(TypedDict):
    """..._at: in seconds since 1970."""

    id: str
    object: Literal["batch"]
    endpoint: str
    errors: BatchErrors | None
    input_file_id: str
    completion_window: Literal["24h"]
    status: Literal[
        "validating",
        "in_progress",
        "finalizing",
        "completed",
        "failed",
        "expired",
        "cancelling",
        "cancelled",
    ]
    output_file_id: str | None
    error_file_id: str | None
    created_at: int
    expires_at: int
    in_progress_at: int | None
    finalizing_at: int | None
    completed_at: int | None
    failed_at: int | None
    expired_at: int | None
    cancelling_at: int | None
    cancelled_at: int | None
    request_counts: RequestCounts
    metadata: dict[str, str] | None


class BatchList(TypedDict):
    object: Literal["list"]
    data: list[BatchObject]
    first_id: str | None
    last_id: str | None
    has_more: bool


router = APIRouter(route_class=Route)


def new_batch(body: BatchBody) -> Json:
    """A batch whose lines were not looked at yet."""
    now = int(time.time())
    batch: dict[str, Any] = {
        "id": f"batch_{uuid.uuid4().hex}",
        "object": "batch",
        "endpoint": body.endpoint,
        "errors": None,
        "input_file_id": body.input_file_id,
        "completion_window": body.completion_window,
        "status": "validating",
        "output_file_id": None,
        "error_file_id": None,
        "created_at": now,
        "expires_at": now + WINDOW_SECONDS,
    }
    batch |= dict.fromkeys([f"{stage}_at" for stage in _STAGES])
    counts = {"total": 0, "completed": 0, "failed": 0}
    return batch | {"request_counts": counts, "metadata": body.metadata}


@router.post(
    "/v1/batches",
    response_model=BatchObject,
    responses=noted(
        *(NotFoundError, QueueFullError, DiskFullError),
        example={
            "input_file_id": "file-0",
            "endpoint": "/v1/chat/completions",
            "completion_window": "24h",
        },
    ),
)
async def create_batch(request: Request, body: BatchBody) -> Response:
    """Answer the lines of a file, behind other requests."""
    keeper = keeper_of(request)
    source = await stored(request, "files", body.input_file_id, "input_file_id")
    if source["purpose"] != "batch":
        raise wrong("input_file_id", f"is a file for {source['purpose']}, not for batch")
    batch = new_batch(body)
    await keeper.add(tenant_of(request), batch)
    return JSONResponse(batch)


@router.get("/v1/batches", response_model=BatchList, responses=noted(UnsupportedRouteError))
async def list_batches(request: Request, query: Annotated[BatchesQuery, Query()]) -> Response:
    """The client's batches, the newest first."""
    keeper = keeper_of(request)
    found = await keeper.store.call(
        FileTable.page, "batches", tenant_of(request), query.after, query.limit + 1
    )
    page = page_of(found, query.limit, query.after)
    page["data"] = [keeper.live(batch) for batch in page["data"]]
    return JSONResponse(page)


@router.get("/v1/batches/{batch_id}", response_model=BatchObject, responses=noted(NotFoundError))
async def get_batch(request: Request, batch_id: str) -> Response:
    """A batch as it is now."""
    return JSONResponse(keeper_of(request).live(await stored(request, "batches", batch_id)))


@router.post(
    "/v1/batches/{batch_id}/cancel", response_model=BatchObject, responses=noted(NotFoundError)
)
async def cancel_batch(request: Request, batch_id: str) -> Response:
    """End a batch; what was answered can be fetched. One that has ended stays as it is."""
    keeper = keeper_of(request)
    batch = await stored(request, "batches", batch_id)
    await keeper.cancel(batch["id"])
    return JSONResponse(keeper.live(await stored(request, "batches", batch_id)))
