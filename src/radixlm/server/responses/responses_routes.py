"""The routes of /v1/responses, and the way from a body and the turns before it to a task."""

from __future__ import annotations

import asyncio
import json
from bisect import bisect_left
from collections.abc import Callable, Sequence
from contextlib import aclosing
from functools import partial
from typing import Annotated

from fastapi import APIRouter, Depends, Query, Request
from fastapi.responses import JSONResponse, Response
from pydantic import TypeAdapter

from radixlm.core.errors import InvalidRequestError, RequestTooLargeError
from radixlm.server.bodies.conversation import Conversation, Json, new_id
from radixlm.server.http.body import MAX_OBJECTS, in_callers_words, not_too_deep
from radixlm.server.http.envelope import exchange_of
from radixlm.server.http.http_errors import NotFoundError, timed_out
from radixlm.server.http.lists import page_of
from radixlm.server.http.routes import GENERATING, Route, noted
from radixlm.server.pipeline.answer import respond
from radixlm.server.pipeline.chat import ChatPrompt, ChatTask, chat_prompt, task_of
from radixlm.server.pipeline.generation import Generation, run
from radixlm.server.pipeline.service import Service, check_room, service_of, tenant_of
from radixlm.server.responses import conversation_store as conversations
from radixlm.server.responses import responses_body as bodies
from radixlm.server.responses import responses_conversation as chats
from radixlm.server.responses import responses_wire as wire
from radixlm.server.responses.response_store import ResponseStore, Turn, TurnStore
from radixlm.server.responses.responses_writer import ResponseWriter

_ITEMS: TypeAdapter[list[bodies.AnyItem]] = TypeAdapter(list[bodies.AnyItem])


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
async def create_response(request: Request, body: bodies.ResponseBody) -> Response:
    """OpenAI's responses: made, and stored unless store is false."""
    service, store = service_of(request), store_of(request)
    tenant, ending = tenant_of(request), exchange_of(request).ending
    held = ending.enter_context(store.hold(tenant, body.in_conversation))
    chat, body = await response_task(service, store, body, tenant)
    writer = ResponseWriter(service, store, chat, body, stored_items(body), held)
    if not body.background:
        streams = bool(body.stream)
        return await respond(
            request, chat.generation, writer, stream=streams, end_with=writer.failed
        )
    if not await writer.store():
        raise InvalidRequestError(  # nobody could ever fetch it
            "the response is not made in the background, since it can not be stored: it is larger "
            "than --max-stored-bytes, or what it continues is gone",
            param="background",
        )
    begun = JSONResponse(writer.response())
    work = _make(service, chat.generation, writer)
    store.start(chat.generation.request_id, work, ending.pop_all())
    return begun


@router.post(
    "/v1/responses/input_tokens",
    response_model=wire.InputTokens,
    responses=noted(NotFoundError, example={"input": "What is the capital of France?"}),
)
async def count_input_tokens(request: Request, body: bodies.ResponseBody) -> Response:
    """How many tokens a response's prompt has."""
    service, tenant = service_of(request), tenant_of(request)
    chat, _ = await response_task(service, store_of(request), body, tenant)
    # Nothing is submitted, which would check them.
    service.engine.limits.check_ids(chat.generation.requests[0].params)
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
    query: Annotated[bodies.RetrieveQuery, Query()],  # noqa: ARG001 (that it can be read is all)
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
    request: Request, response_id: str, query: Annotated[bodies.ItemsQuery, Query()]
) -> Response:
    """The items that a stored response was given; of those before it there is its own list."""
    turn = await _stored(request, response_id)
    items = await asyncio.to_thread(json.loads, turn.input)
    found = items if query.order == "asc" else items[::-1]
    if query.after is not None:
        places = [place for place, item in enumerate(found) if item["id"] == query.after]
        found = found[places[0] + 1 :] if places else None
    return JSONResponse(page_of(found, query.limit, query.after))


async def _make(service: Service, generation: Generation, writer: ResponseWriter) -> None:
    """Make a response from its beginning to its end, whatever that is."""
    limit = service.config.request_timeout
    try:
        async with asyncio.timeout(limit or None), aclosing(run(service, generation)) as parts:
            async for part in parts:
                begins = writer.status == "queued"
                writer.meter.add(*part)
                writer.push(*part)
                if begins:
                    await writer.store()
            await writer.finish()
    except asyncio.CancelledError:
        writer.stop("cancelled")
        raise
    except TimeoutError:
        writer.stop("failed", timed_out(limit))
    except Exception as error:  # the log is the only place for it
        writer.stop("failed", error)
    finally:  # even when it is cancelled once more
        await asyncio.shield(writer.store())


def stored_items(body: bodies.ResponseBody) -> list[Json]:
    """`input` as items that say all of themselves, each with an id."""
    return [stored_item(item) for item in chats.items_of(body)]


def stored_item(item: bodies.AnyItem) -> Json:
    """An item that says all of itself, with an id."""
    stored: Json = {"id": chats.new_item_id(item.type), "status": "completed"}
    stored |= item.model_dump(exclude_none=True)
    if item.type == "message":
        kind = "output_text" if item.role == "assistant" else "input_text"
        if isinstance(item.content, str):
            stored["content"] = [{"type": kind, "text": item.content}]
        if kind == "output_text":
            more: Json = {"annotations": [], "logprobs": []}
            stored["content"] = [{**more, **part} for part in stored["content"]]
    elif item.type == "reasoning":
        stored.setdefault("summary", [])
    return stored


def _as_stored(turn: Turn) -> Response:
    """The JSON that is there: a long answer would be read and written while others wait."""
    return Response(turn.response, media_type="application/json")


async def _stored(request: Request, response_id: str) -> Turn:
    """The client's own response of this id. Raises NotFoundError."""
    turn = await store_of(request).call(TurnStore.get, tenant_of(request), response_id)
    if turn is None:
        raise not_found(response_id, "response_id")
    return turn


async def response_task(
    service: Service, store: ResponseStore, body: bodies.ResponseBody, tenant: str
) -> tuple[ChatTask, bodies.ResponseBody]:
    """The task of a body, with the items that it refers to and what it continues; and the body with
    these items in it.

    Raises InvalidRequestError that names the field.
    """
    items = await resolved(store, chats.items_of(body), tenant, "input")
    body = body if items is None else body.model_copy(update={"input": items})
    before: Callable[[], list[bodies.AnyItem]]
    if (named := body.in_conversation) is None:
        before = partial(_items_of, await _turns_before(store, body, tenant))
    else:
        if await store.call(conversations.get, tenant, named) is None:
            raise no_conversation(named, "conversation")
        before = partial(_items_said, await store.call(conversations.said, named))
    return await asyncio.to_thread(_task, service, body, before, tenant), body


async def _turns_before(store: ResponseStore, body: bodies.ResponseBody, tenant: str) -> list[Turn]:
    """The turns that a response continues. Raises InvalidRequestError for what can not be
    continued.
    """
    previous = body.previous_response_id
    if previous is None:
        return []
    turns = await store.call(TurnStore.conversation, tenant, previous)
    if not turns:
        raise not_found(previous, "previous_response_id")
    last = await asyncio.to_thread(json.loads, turns[-1].response)
    if conversation := last.get("conversation"):
        reason = f"the response {previous} is of a conversation: name that, {conversation['id']}"
        raise InvalidRequestError(reason, param="previous_response_id")
    status = last["status"]
    if status not in ("completed", "incomplete"):
        reason = f"the response {previous} is {status}, so it can not be continued"
        raise InvalidRequestError(reason, param="previous_response_id")
    return turns


async def resolved(
    store: ResponseStore, items: list[bodies.AnyItem], tenant: str, field: str
) -> list[bodies.AnyItem] | None:
    """The items of a field with those that they refer to, where they do. Raises NotFoundError."""
    wanted = {item.id for item in items if isinstance(item, bodies.ReferenceItem)}
    if not wanted:
        return None
    stored = await store.call(TurnStore.items, tenant, wanted)
    # However often it is referred to, an item is there once: a few bytes name a megabyte.
    parsed = await asyncio.to_thread(_ITEMS.validate_python, [*stored.values()])
    known = dict(zip(stored, parsed, strict=True))
    for place, item in enumerate(items):
        if isinstance(item, bodies.ReferenceItem):
            if item.id not in known:
                raise NotFoundError(
                    f"Item with id {item.id!r:.80} not found. Items are not persisted when `store` "
                    "is set to false, or were too old or too many to be kept; send the item itself",
                    param=f"{field}[{place}].id",
                )
            items[place] = known[item.id]
    return items


def not_found(response_id: str, param: str) -> NotFoundError:
    """The error where no such response is stored. param: the field that names it."""
    return NotFoundError(
        f"there is no stored response {response_id!r:.80}: it never was, was deleted, or was too "
        "old or one too many to be kept",
        param=param,
    )


def no_conversation(conversation: str, param: str) -> NotFoundError:
    """The error where no such conversation is kept. param: the field that names it."""
    return NotFoundError(
        f"Conversation with id {conversation!r:.80} not found: it never was, was deleted, or was "
        "too old or one too many to be kept",
        param=param,
    )


@not_too_deep()
def _task(
    service: Service,
    body: bodies.ResponseBody,
    before: Callable[[], list[bodies.AnyItem]],
    tenant: str,
) -> ChatTask:
    """Render and tokenize. Takes time in proportion to the conversation: call it off the event
    loop. before: makes the items of what it continues.

    Raises InvalidRequestError that names the field.
    """
    service.check_model(body.model)
    with in_callers_words(chats.NAMES):
        params, use = chats.params_of(body, service.sampling_defaults), chats.use_of(body)
        chat = chats.conversation_of(body, before())
        whose = (tenant, *service.namespace_of(body))
        prompt_of = partial(chat_prompt, service, whose=whose)
        if body.truncation == "auto":
            longest = service.engine.limits.longest
            reserved = min(body.max_output_tokens or 1, longest // 2)
            prompt = _cut_to_fit(prompt_of, chat, longest - reserved)
        else:
            prompt = prompt_of(chat)
        return task_of(
            *(service, prompt, use, params, body, tenant),
            request_id=new_id("resp"),
            names=chats.NAMES,
        )


def _items_of(turns: Sequence[Turn]) -> list[bodies.AnyItem]:
    """The items that were said in the turns, at most as many items as a body may hold."""
    items: list[bodies.AnyItem] = []
    for turn in turns:
        output = json.loads(turn.response)["output"]
        items += _ITEMS.validate_json(turn.input) + _ITEMS.validate_python(output)
        _check_count(len(items), "previous_response_id")
    return items


def _items_said(said: Sequence[str]) -> list[bodies.AnyItem]:
    """The items of a conversation, at most as many as a body may hold."""
    _check_count(len(said), "conversation")
    return _ITEMS.validate_json(f"[{','.join(said)}]")


def _check_count(items: int, param: str) -> None:
    if items > MAX_OBJECTS:
        raise InvalidRequestError(
            f"the conversation before has more than {MAX_OBJECTS} items; begin a new one with what "
            "is still needed of it",
            param=param,
        )


def _cut_to_fit(
    prompt_of: Callable[[Conversation], ChatPrompt], chat: Conversation, room: int
) -> ChatPrompt:
    """The prompt without as many of the oldest turns as it takes to have at most `room` tokens.

    What stands before the first user's message stays, and so do the system's messages, and the last
    user's; when that does not fit, it is given as it is. Renders O(log(turns)) times.
    """
    roles = [message["role"] for message in chat.messages]
    starts = [place for place, role in enumerate(roles) if role == "user"]
    if not starts:
        return prompt_of(chat)

    def kept(turns: int) -> Conversation:
        left_out = range(starts[0], starts[turns])
        orders = [place for place in left_out if roles[place] == "system"]
        return chat.only([*range(starts[0]), *orders, *range(starts[turns], len(roles))])

    def without(turns: int) -> ChatPrompt | None:
        try:
            prompt = prompt_of(kept(turns))
        except RequestTooLargeError:
            return None
        return prompt if prompt.key.size <= room else None

    whole, most = without(0), len(starts) - 1
    if whole is not None or not most:
        return whole or prompt_of(chat)
    fits = bisect_left(range(most), True, lo=1, key=lambda turns: without(turns) is not None)
    return prompt_of(kept(fits))
