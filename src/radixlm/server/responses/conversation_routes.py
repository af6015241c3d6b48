"""The routes of /v1/conversations.

Source: https://platform.openai.com/docs/api-reference/conversations.
"""

from __future__ import annotations

import time
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from fastapi.responses import JSONResponse, Response

from radixlm.core.errors import InvalidRequestError, wrong
from radixlm.server.bodies.conversation import Json, new_id
from radixlm.server.http.http_errors import NotFoundError
from radixlm.server.http.lists import page_of
from radixlm.server.http.routes import Route, noted
from radixlm.server.http.store_thread import DiskFullError
from radixlm.server.pipeline.service import tenant_of
from radixlm.server.responses import conversation_store as conversations
from radixlm.server.responses import responses_body as bodies
from radixlm.server.responses import responses_wire as wire
from radixlm.server.responses.response_store import CONVERSATION, TurnStore
from radixlm.server.responses.responses_routes import (
    no_conversation,
    resolved,
    store_of,
    stored_item,
)

router = APIRouter(route_class=Route)
_HELLO = {"type": "message", "role": "user", "content": "Hello"}


@router.post(
    "/v1/conversations",
    response_model=wire.ConversationObject,
    responses=noted(
        NotFoundError, DiskFullError, example={"items": [_HELLO], "metadata": {"topic": "demo"}}
    ),
)
async def create_conversation(request: Request, body: bodies.ConversationBody) -> Response:
    """Begin a conversation, which responses may read and add to."""
    items = await _items(request, body.items or [])
    shown: wire.ConversationObject = {
        "id": new_id(CONVERSATION),
        "object": "conversation",
        "created_at": int(time.time()),
        "metadata": body.metadata or {},
    }
    store, owner = store_of(request), tenant_of(request)
    if not await store.call(conversations.create, owner, {**shown}, items, store.worked_on):
        raise _too_large()
    return JSONResponse(shown)


@router.get(
    "/v1/conversations/{conversation_id}",
    response_model=wire.ConversationObject,
    responses=noted(NotFoundError),
)
async def get_conversation(request: Request, conversation_id: str) -> Response:
    """A conversation without its items, which have a route of their own."""
    return JSONResponse(await _kept(request, conversation_id))


@router.post(
    "/v1/conversations/{conversation_id}",
    response_model=wire.ConversationObject,
    responses=noted(NotFoundError, example={"metadata": {"topic": "demo"}}),
)
async def update_conversation(
    request: Request, conversation_id: str, body: bodies.ConversationUpdate
) -> Response:
    """Give a conversation other metadata."""
    shown = {**await _kept(request, conversation_id), "metadata": body.metadata or {}}
    store = store_of(request)
    if not await store.call(conversations.update, tenant_of(request), shown, store.worked_on):
        raise no_conversation(conversation_id, "conversation_id")
    return JSONResponse(shown)


@router.delete(
    "/v1/conversations/{conversation_id}",
    response_model=wire.ConversationDeleted,
    responses=noted(NotFoundError),
)
async def delete_conversation(request: Request, conversation_id: str) -> Response:
    """Forget a conversation with its items. What is being answered in it is not ended by that."""
    await _kept(request, conversation_id)
    await store_of(request).call(TurnStore.delete, tenant_of(request), conversation_id)
    gone = {"id": conversation_id, "object": "conversation.deleted", "deleted": True}
    return JSONResponse(gone)


@router.post(
    "/v1/conversations/{conversation_id}/items",
    response_model=wire.InputItems,
    responses=noted(NotFoundError, DiskFullError, example={"items": [_HELLO]}),
)
async def add_items(
    request: Request,
    conversation_id: str,
    body: bodies.ItemsBody,
    query: Annotated[bodies.IncludeQuery, Query()],  # noqa: ARG001 (that it can be read is all)
) -> Response:
    """Add items to a conversation's end. An id that is taken is made anew."""
    await _kept(request, conversation_id)
    items = await _items(request, body.items)
    store, owner = store_of(request), tenant_of(request)
    added = await store.call(conversations.add, owner, conversation_id, items, store.worked_on)
    if added is None:
        await _kept(request, conversation_id)
        raise _too_large()
    return JSONResponse(page_of(added, len(added)))


@router.get(
    "/v1/conversations/{conversation_id}/items",
    response_model=wire.InputItems,
    responses=noted(NotFoundError),
)
async def list_items(
    request: Request, conversation_id: str, query: Annotated[bodies.ItemsQuery, Query()]
) -> Response:
    """The items of a conversation, the newest first."""
    await _kept(request, conversation_id)
    ascending = query.order == "asc"
    found = await store_of(request).call(
        conversations.page, conversation_id, query.after, query.limit + 1, ascending=ascending
    )
    return JSONResponse(page_of(found, query.limit, query.after))


@router.get(
    "/v1/conversations/{conversation_id}/items/{item_id}",
    response_model=dict[str, Any],
    responses=noted(NotFoundError),
)
async def get_item(
    request: Request,
    conversation_id: str,
    item_id: str,
    query: Annotated[bodies.IncludeQuery, Query()],  # noqa: ARG001 (that it can be read is all)
) -> Response:
    """An item of a conversation."""
    await _kept(request, conversation_id)
    found = await store_of(request).call(conversations.item, conversation_id, item_id)
    if found is None:
        raise _no_item(item_id)
    return JSONResponse(found)


@router.delete(
    "/v1/conversations/{conversation_id}/items/{item_id}",
    response_model=wire.ConversationObject,
    responses=noted(NotFoundError),
)
async def delete_item(request: Request, conversation_id: str, item_id: str) -> Response:
    """Take an item out of a conversation."""
    shown = await _kept(request, conversation_id)
    if not await store_of(request).call(conversations.delete_item, conversation_id, item_id):
        raise _no_item(item_id)
    return JSONResponse(shown)


async def _kept(request: Request, conversation_id: str) -> Json:
    """The client's own conversation of this id. Raises NotFoundError."""
    found = await store_of(request).call(conversations.get, tenant_of(request), conversation_id)
    if found is None:
        raise no_conversation(conversation_id, "conversation_id")
    return found


async def _items(request: Request, given: list[bodies.AnyItem]) -> list[Json]:
    """Items as they are kept. Raises NotFoundError for what they refer to and is not stored."""
    items = await resolved(store_of(request), [*given], tenant_of(request), "items")
    return [stored_item(item) for item in (given if items is None else items)]


def _no_item(item_id: str) -> NotFoundError:
    return NotFoundError(f"Item with id {item_id!r:.80} not found", param="item_id")


def _too_large() -> InvalidRequestError:
    return wrong("items", "would make the conversation larger than --max-stored-bytes")
