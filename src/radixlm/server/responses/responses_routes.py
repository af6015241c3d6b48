"""A response's input, as it is stored and listed."""

from __future__ import annotations

import asyncio
import json
from contextlib import aclosing
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Request
from fastapi.responses import JSONResponse, Response

from radixlm.core.errors import InvalidRequestError
from radixlm.server.http.http_errors import NotFoundError, timed_out
from radixlm.server.http.routes import GENERATING, Route, noted
from radixlm.server.pipeline.answer import respond
from radixlm.server.pipeline.generation import run as run_generation
from radixlm.server.pipeline.names import new_id
from radixlm.server.pipeline.service import Service, check_room, service_of, tenant_of
from radixlm.server.responses.response_store import Turn
from radixlm.server.responses.responses_as_chat import in_own_words, items_of
from radixlm.server.responses.responses_body import AnyItem, ItemsQuery, ResponseBody, RetrieveQuery
from radixlm.server.responses.responses_prompt import ResponseTask, not_found, response_task
from radixlm.server.responses.responses_run import ResponseWriter
from radixlm.server.responses.responses_wire import (
    AnyEvent,
    Deleted,
    InputItems,
    InputTokens,
    ResponseObject,
)

_KINDS = {
    "message": "msg",
    "function_call": "fc",
    "function_call_output": "fco",
    "reasoning": "rs",
}


def stored_items(body: ResponseBody) -> list[dict[str, Any]]:
    """`input` as items that say all of themselves, each with an id."""
    return [_whole(item) for item in items_of(body)]


def listed(items: list[dict[str, Any]], query: ItemsQuery) -> InputItems:
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


def _whole(item: AnyItem) -> dict[str, Any]:
    told: dict[str, Any] = {"id": new_id(_KINDS[item.type]), "status": "completed"}
    told |= item.model_dump(exclude_none=True)
    if item.type == "message":
        kind = "output_text" if item.role == "assistant" else "input_text"
        if isinstance(item.content, str):
            told["content"] = [{"type": kind, "text": item.content}]
        if kind == "output_text":
            told["content"] = [
                {"annotations": [], "logprobs": [], **part} for part in told["content"]
            ]
    elif item.type == "reasoning":
        told.setdefault("summary", [])
    return told


router = APIRouter(route_class=Route)


@router.post(
    "/v1/responses",
    response_model=ResponseObject,
    dependencies=[Depends(check_room)],
    responses=noted(
        *GENERATING,
        NotFoundError,
        events=AnyEvent,
        example={"input": "What is the capital of France?", "max_output_tokens": 16},
    ),
)
async def create_response(request: Request, body: ResponseBody) -> Response:
    """OpenAI's responses: made, and stored unless store is false."""
    service = service_of(request)
    tenant = tenant_of(request)
    body.check()
    made = await response_task(service, body, tenant)
    run = ResponseWriter(service, made, stored_items(made.body))
    try:
        if body.background:
            return JSONResponse(await _begin_in_background(service, made, run))
        return await respond(request, made.chat.generation, run, stream=bool(body.stream))
    except InvalidRequestError as error:
        raise in_own_words(error, body) from None


@router.post(
    "/v1/responses/input_tokens",
    response_model=InputTokens,
    responses=noted(NotFoundError, example={"input": "What is the capital of France?"}),
)
async def count_input_tokens(request: Request, body: ResponseBody) -> Response:
    """How many tokens a response's prompt has."""
    service, tenant = service_of(request), tenant_of(request)
    body.check()
    made = await response_task(service, body, tenant)
    count: InputTokens = {
        "object": "response.input_tokens",
        "input_tokens": made.chat.prompt.key.size,
    }
    return JSONResponse(count)


@router.get(
    "/v1/responses/{response_id}",
    response_model=ResponseObject,
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
    "/v1/responses/{response_id}", response_model=Deleted, responses=noted(NotFoundError)
)
async def delete_response(request: Request, response_id: str) -> Response:
    """Forget a stored response. Those that continue it can still be continued."""
    service = service_of(request)
    turn = await _stored(request, response_id)
    await service.responses.stop(turn.id)
    await service.responses.delete(turn.owner, turn.id)
    return JSONResponse({"id": turn.id, "object": "response", "deleted": True})


@router.post(
    "/v1/responses/{response_id}/cancel",
    response_model=ResponseObject,
    responses=noted(InvalidRequestError, NotFoundError),
)
async def cancel_response(request: Request, response_id: str) -> Response:
    """End a response that is made in the background; one that has ended stays as it is."""
    service = service_of(request)
    turn = await _stored(request, response_id)
    if not (await asyncio.to_thread(json.loads, turn.response))["background"]:
        raise InvalidRequestError(
            f"the response {turn.id} is not made in the background: close its connection instead",
            param="response_id",
        )
    await service.responses.stop(turn.id)
    return _as_stored(await _stored(request, response_id))


@router.get(
    "/v1/responses/{response_id}/input_items",
    response_model=InputItems,
    responses=noted(NotFoundError),
)
async def list_input_items(
    request: Request, response_id: str, query: Annotated[ItemsQuery, Query()]
) -> Response:
    """The items that a stored response was given; of those before it there is its own list."""
    turn = await _stored(request, response_id)
    return JSONResponse(listed(await asyncio.to_thread(json.loads, turn.input), query))


async def _begin_in_background(service: Service, made: ResponseTask, run: ResponseWriter) -> Any:
    """Store a response and begin to make it. Gives it as it is now.

    Raises InvalidRequestError when it is not stored: nobody could ever fetch it.
    """
    if not await run.store():
        raise InvalidRequestError(
            "the response is not made in the background, since it can not be stored: it is larger "
            "than --max-stored-bytes, or what it continues is gone",
            param="background",
        )
    begun = run.response()
    service.responses.start(made.id, _make(service, made, run))
    return begun


async def _make(service: Service, made: ResponseTask, run: ResponseWriter) -> None:
    """Make a response from its beginning to its end, whatever that is."""
    limit = service.config.request_timeout
    try:
        async with asyncio.timeout(limit or None):
            async with aclosing(run_generation(service, made.chat.generation)) as parts:
                async for part in parts:
                    run.meter.add(*part)
                    begins = run.status == "queued"
                    run.push(*part)
                    if begins:  # it is stored as one in progress
                        await run.store()
            await run.finish()
    except asyncio.CancelledError:
        run.cancel()
        raise
    except TimeoutError:
        run.fail(timed_out(limit))
    except InvalidRequestError as error:
        run.fail(in_own_words(error, made.body))
    except Exception as error:  # there is nobody else who could be told
        run.fail(error)
    finally:  # even when it is cancelled once more
        await asyncio.shield(run.store())


def _as_stored(turn: Turn) -> Response:
    """The JSON that is there: a long answer would be read and written while others wait."""
    return Response(turn.response, media_type="application/json")


async def _stored(request: Request, response_id: str) -> Turn:
    """The client's own response of this id. Raises NotFoundError."""
    turn = await service_of(request).responses.get(tenant_of(request), response_id)
    if turn is None:
        raise not_found(response_id, "response_id")
    return turn
