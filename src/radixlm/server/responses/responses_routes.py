"""The routes of /v1/responses."""

from __future__ import annotations

import asyncio
import json
from contextlib import aclosing
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Request
from fastapi.responses import JSONResponse, Response

from radixlm.core.errors import InvalidRequestError
from radixlm.server.http.body import renamed
from radixlm.server.http.http_errors import NotFoundError, timed_out
from radixlm.server.http.routes import GENERATING, Route, noted
from radixlm.server.pipeline.answer import respond
from radixlm.server.pipeline.conversation import new_id
from radixlm.server.pipeline.generation import Generation, run
from radixlm.server.pipeline.service import Service, check_room, service_of, tenant_of
from radixlm.server.responses import responses_wire as wire
from radixlm.server.responses.response_store import ResponseStore, Turn, TurnStore
from radixlm.server.responses.responses_body import AnyItem, ItemsQuery, ResponseBody, RetrieveQuery
from radixlm.server.responses.responses_conversation import items_of
from radixlm.server.responses.responses_task import not_found, response_task
from radixlm.server.responses.responses_writer import ResponseWriter

# What the ids of items begin with.
_KINDS = {
    "message": "msg",
    "function_call": "fc",
    "function_call_output": "fco",
    "reasoning": "rs",
}

router = APIRouter(route_class=Route)


def store_of(request: Request) -> ResponseStore:
    """The stored responses, which `create_app` put into the application."""
    store: ResponseStore = request.app.state.responses
    return store


@router.post(
    "/v1/responses",
    response_model=wire.ResponseObject,
    dependencies=[Depends(check_room)],
    responses=noted(
        *GENERATING,
        NotFoundError,
        events=wire.AnyEvent,
        example={"input": "What is the capital of France?", "max_output_tokens": 16},
    ),
)
async def create_response(request: Request, body: ResponseBody) -> Response:
    """OpenAI's responses: made, and stored unless store is false."""
    service, store = service_of(request), store_of(request)
    chat, body = await response_task(service, store, body, tenant_of(request))
    writer = ResponseWriter(service, store, chat, body, stored_items(body))
    if body.background:
        return await _begin_in_background(request, chat.generation, writer)
    return await respond(request, chat.generation, writer, stream=bool(body.stream))


@router.post(
    "/v1/responses/input_tokens",
    response_model=wire.InputTokens,
    responses=noted(NotFoundError, example={"input": "What is the capital of France?"}),
)
async def count_input_tokens(request: Request, body: ResponseBody) -> Response:
    """How many tokens a response's prompt has."""
    service, tenant = service_of(request), tenant_of(request)
    chat, _ = await response_task(service, store_of(request), body, tenant)
    tokens = chat.prompt.key.size
    return JSONResponse(wire.InputTokens(object="response.input_tokens", input_tokens=tokens))


@router.get(
    "/v1/responses/{response_id}",
    response_model=wire.ResponseObject,
    responses=noted(NotFoundError),
)
async def get_response(
    request: Request,
    response_id: str,
    query: Annotated[RetrieveQuery, Query()],  # noqa: ARG001 (that it can be read is all)
) -> Response:
    """A stored response as it is now."""
    return _as_stored(await _stored(request, response_id))


@router.delete(
    "/v1/responses/{response_id}", response_model=wire.Deleted, responses=noted(NotFoundError)
)
async def delete_response(request: Request, response_id: str) -> Response:
    """Forget a stored response. Those that continue it can still be continued."""
    store = store_of(request)
    turn = await _stored(request, response_id)
    await store.stop(turn.id)
    await store.call(TurnStore.delete, turn.owner, turn.id)
    return JSONResponse({"id": turn.id, "object": "response", "deleted": True})


@router.post(
    "/v1/responses/{response_id}/cancel",
    response_model=wire.ResponseObject,
    responses=noted(InvalidRequestError, NotFoundError),
)
async def cancel_response(request: Request, response_id: str) -> Response:
    """End a response that is made in the background; one that has ended stays as it is."""
    turn = await _stored(request, response_id)
    if not (await asyncio.to_thread(json.loads, turn.response))["background"]:
        raise InvalidRequestError(
            f"the response {turn.id} is not made in the background: close its connection instead",
            param="response_id",
        )
    await store_of(request).stop(turn.id)
    return _as_stored(await _stored(request, response_id))


@router.get(
    "/v1/responses/{response_id}/input_items",
    response_model=wire.InputItems,
    responses=noted(NotFoundError),
)
async def list_input_items(
    request: Request, response_id: str, query: Annotated[ItemsQuery, Query()]
) -> Response:
    """The items that a stored response was given; of those before it there is its own list."""
    turn = await _stored(request, response_id)
    return JSONResponse(_listed(await asyncio.to_thread(json.loads, turn.input), query))


async def _begin_in_background(
    request: Request, generation: Generation, writer: ResponseWriter
) -> Response:
    """Store a response and begin to make it. Gives it as it is now.

    Raises InvalidRequestError when it is not stored: nobody could ever fetch it.
    """
    if not await writer.store():
        raise InvalidRequestError(
            "the response is not made in the background, since it can not be stored: it is larger "
            "than --max-stored-bytes, or what it continues is gone",
            param="background",
        )
    begun = JSONResponse(writer.response())
    work = _make(service_of(request), generation, writer)
    store_of(request).start(generation.request_id, work)
    return begun


async def _make(service: Service, generation: Generation, writer: ResponseWriter) -> None:
    """Make a response from its beginning to its end, whatever that is."""
    limit = service.config.request_timeout
    try:
        async with (
            asyncio.timeout(limit or None),
            aclosing(run(service, generation)) as parts,
        ):
            async for part in parts:
                begins = writer.status == "queued"
                writer.meter.add(*part)
                writer.push(*part)
                if begins:
                    await writer.store()
            await writer.finish()
    except asyncio.CancelledError:
        writer.cancel()
        raise
    except TimeoutError:
        writer.fail(timed_out(limit))
    except InvalidRequestError as error:
        writer.fail(renamed(error, generation.names))
    except Exception as error:  # the log is the only place for it
        writer.fail(error)
    finally:  # even when it is cancelled once more
        await asyncio.shield(writer.store())


def stored_items(body: ResponseBody) -> list[dict[str, Any]]:
    """`input` as items that say all of themselves, each with an id."""
    return [_stored_item(item) for item in items_of(body)]


def _stored_item(item: AnyItem) -> dict[str, Any]:
    stored: dict[str, Any] = {"id": new_id(_KINDS[item.type]), "status": "completed"}
    stored |= item.model_dump(exclude_none=True)
    if item.type == "message":
        kind = "output_text" if item.role == "assistant" else "input_text"
        if isinstance(item.content, str):
            stored["content"] = [{"type": kind, "text": item.content}]
        if kind == "output_text":
            stored["content"] = [
                {"annotations": [], "logprobs": [], **part} for part in stored["content"]
            ]
    elif item.type == "reasoning":
        stored.setdefault("summary", [])
    return stored


def _listed(items: list[dict[str, Any]], query: ItemsQuery) -> wire.InputItems:
    """One page of a response's input. Raises InvalidRequestError for an unknown `after`."""
    found = items if query.order == "asc" else items[::-1]
    if query.after is not None:
        places = [place for place, item in enumerate(found) if item["id"] == query.after]
        if not places:
            raise InvalidRequestError(
                f"after {query.after!r:.80} is the id of none of these items", param="after"
            )
        found = found[places[0] + 1 :]
    page = found[: query.limit]
    return {
        "object": "list",
        "data": page,
        "first_id": page[0]["id"] if page else None,
        "last_id": page[-1]["id"] if page else None,
        "has_more": len(found) > len(page),
    }


def _as_stored(turn: Turn) -> Response:
    """The JSON that is there: a long answer would be read and written while others wait."""
    return Response(turn.response, media_type="application/json")


async def _stored(request: Request, response_id: str) -> Turn:
    """The client's own response of this id. Raises NotFoundError."""
    turn = await store_of(request).call(TurnStore.get, tenant_of(request), response_id)
    if turn is None:
        raise not_found(response_id, "response_id")
    return turn
