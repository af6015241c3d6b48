"""From a response's body and the turns before it to a task."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from functools import partial

from pydantic import TypeAdapter

from radixlm.core.errors import InvalidRequestError, RequestTooLargeError
from radixlm.server.http.body import MAX_OBJECTS, in_callers_words, not_too_deep
from radixlm.server.http.http_errors import NotFoundError
from radixlm.server.pipeline.chat import ChatPrompt, ChatTask, chat_prompt, task_of
from radixlm.server.pipeline.conversation import Conversation, new_id
from radixlm.server.pipeline.service import Service
from radixlm.server.responses.response_store import ResponseStore, Turn, TurnStore
from radixlm.server.responses.responses_body import AnyItem, ReferenceItem, ResponseBody
from radixlm.server.responses.responses_conversation import (
    NAMES,
    conversation_of,
    items_of,
    params_of,
    use_of,
)

_ITEMS: TypeAdapter[list[AnyItem]] = TypeAdapter(list[AnyItem])


async def response_task(
    service: Service, store: ResponseStore, body: ResponseBody, tenant: str
) -> tuple[ChatTask, ResponseBody]:
    """The task of a body, with the items that it refers to and the turns that it continues; and the
    body with these items in it.

    Raises InvalidRequestError that names the field.
    """
    body = await _resolved(store, body, tenant)
    turns = await _turns_before(store, body, tenant)
    return await asyncio.to_thread(_task, service, body, turns, tenant), body


async def _turns_before(store: ResponseStore, body: ResponseBody, tenant: str) -> list[Turn]:
    """What a response continues. Raises InvalidRequestError for what can not be continued."""
    previous = body.previous_response_id
    if previous is None:
        return []
    turns = await store.call(TurnStore.conversation, tenant, previous)
    if not turns:
        raise not_found(previous, "previous_response_id")
    status = (await asyncio.to_thread(json.loads, turns[-1].response))["status"]
    if status not in ("completed", "incomplete"):
        raise InvalidRequestError(
            f"the response {previous} is {status}, so it can not be continued",
            param="previous_response_id",
        )
    return turns


async def _resolved(store: ResponseStore, body: ResponseBody, tenant: str) -> ResponseBody:
    """The body with the items that it refers to. Raises NotFoundError."""
    items = items_of(body)
    wanted = {item.id for item in items if isinstance(item, ReferenceItem)}
    if not wanted:
        return body
    stored = await store.call(TurnStore.items, tenant, wanted)
    # However often it is referred to, an item is there once: a few bytes name a megabyte.
    parsed = await asyncio.to_thread(_ITEMS.validate_python, [*stored.values()])
    known = dict(zip(stored, parsed, strict=True))
    for place, item in enumerate(items):
        if isinstance(item, ReferenceItem):
            if item.id not in known:
                raise NotFoundError(
                    f"Item with id {item.id!r:.80} not found. Items are not persisted when `store` "
                    "is set to false, or were too old or too many to be kept; send the item itself",
                    param=f"input[{place}].id",
                )
            items[place] = known[item.id]
    return body.model_copy(update={"input": items})


def not_found(response_id: str, param: str) -> NotFoundError:
    """What is said where no such response is stored. param: the field that names it."""
    return NotFoundError(
        f"there is no stored response {response_id!r:.80}: it never was, was deleted, or was too "
        "old or one too many to be kept",
        param=param,
    )


@not_too_deep()
def _task(service: Service, body: ResponseBody, turns: Sequence[Turn], tenant: str) -> ChatTask:
    """Render and tokenize. Takes time in proportion to the conversation: call it off the event
    loop. turns: those before. Raises InvalidRequestError that names the field.
    """
    service.check_model(body.model)
    with in_callers_words(NAMES):
        params, use = params_of(body, service.sampling_defaults), use_of(body)
        chat = conversation_of(body, _items_of(turns))
        prompt_of = partial(chat_prompt, service, whose=(tenant, *body.namespace))
        if body.truncation == "auto":
            reserved = min(body.max_output_tokens or 1, service.longest // 2)
            prompt = _cut_to_fit(prompt_of, chat, service.longest - reserved)
        else:
            prompt = prompt_of(chat)
        return task_of(
            *(service, prompt, use, params, body, tenant),
            request_id=new_id("resp"),
            names=NAMES,
            max_tokens=body.max_output_tokens,
        )


def _items_of(turns: Sequence[Turn]) -> list[AnyItem]:
    """What was said in the turns, at most as many items as a body may hold."""
    items: list[AnyItem] = []
    for turn in turns:
        output = json.loads(turn.response)["output"]
        items += _ITEMS.validate_json(turn.input) + _ITEMS.validate_python(output)
        if len(items) > MAX_OBJECTS:
            raise InvalidRequestError(
                f"the conversation before has more than {MAX_OBJECTS} items; begin a new one with "
                "what is still needed of it",
                param="previous_response_id",
            )
    return items


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

    whole = without(0)
    if whole is not None:
        return whole
    low, high = 1, len(starts) - 1
    while low < high:  # the fewest turns that must go are among these
        middle = (low + high) // 2
        if without(middle) is None:
            low = middle + 1
        else:
            high = middle
    return prompt_of(kept(high))
