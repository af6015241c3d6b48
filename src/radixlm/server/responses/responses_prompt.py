"""From a response's body and the turns before it to a task."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pydantic import TypeAdapter

from radixlm.core.errors import InvalidRequestError, RequestTooLargeError
from radixlm.server.http.body import MAX_OBJECTS
from radixlm.server.http.http_errors import NotFoundError
from radixlm.server.pipeline.cache_control import wishes_in
from radixlm.server.pipeline.chat import ChatPrompt, ChatTask, chat_prompt, task_of
from radixlm.server.pipeline.names import new_id
from radixlm.server.pipeline.protocol import ChatMessage
from radixlm.server.pipeline.service import Service
from radixlm.server.responses.response_store import Turn
from radixlm.server.responses.responses_as_chat import chat_of, in_own_words, items_of
from radixlm.server.responses.responses_body import AnyItem, ReferenceItem, ResponseBody

_ITEMS: TypeAdapter[list[AnyItem]] = TypeAdapter(list[AnyItem])


@dataclass(frozen=True, slots=True, eq=False)
class ResponseTask:
    """A chat's task, and what its response needs to know. created: in seconds since 1970."""

    chat: ChatTask
    body: ResponseBody
    created: int

    @property
    def id(self) -> str:
        return self.chat.generation.request_id


async def response_task(service: Service, body: ResponseBody, tenant: str) -> ResponseTask:
    """The task of a body, with the items that it refers to and the turns that it continues.

    Raises InvalidRequestError that names the field.
    """
    body = await _resolved(service, body, tenant)
    turns = await _turns_before(service, body, tenant)
    return await asyncio.to_thread(_task, service, body, turns, tenant)


async def _turns_before(service: Service, body: ResponseBody, tenant: str) -> list[Turn]:
    """What a response continues. Raises InvalidRequestError for what can not be continued."""
    previous = body.previous_response_id
    if previous is None:
        return []
    turns = await service.responses.conversation(tenant, previous)
    if not turns:
        raise not_found(previous, "previous_response_id")
    status = (await asyncio.to_thread(json.loads, turns[-1].response))["status"]
    if status not in ("completed", "incomplete"):
        raise InvalidRequestError(
            f"the response {previous} is {status}, so it can not be continued",
            param="previous_response_id",
        )
    return turns


async def _resolved(service: Service, body: ResponseBody, tenant: str) -> ResponseBody:
    """The body with the items that it refers to. Raises NotFoundError."""
    items = items_of(body)
    wanted = {item.id for item in items if isinstance(item, ReferenceItem)}
    if not wanted:
        return body
    stored = await service.responses.items(tenant, wanted)
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


def _task(service: Service, body: ResponseBody, turns: Sequence[Turn], tenant: str) -> ResponseTask:
    """Render and tokenize. Takes time in proportion to the conversation: call it off the event
    loop. turns: those before. Raises InvalidRequestError that names the field.
    """
    service.check_model(body.model)
    chat = chat_of(body, _items_of(turns))

    def render(messages: Sequence[ChatMessage]) -> ChatPrompt:
        return chat_prompt(
            service,
            messages,
            chat,
            whose=(tenant, *chat.namespace),
            wishes=wishes_in(messages, body.prompt_cache_options),
        )

    def make_prompt() -> ChatPrompt:
        if body.truncation != "auto":
            return render(chat.messages)
        reserved = min(body.max_output_tokens or 1, service.longest // 2)
        return _cut_to_fit(render, chat.messages, service.longest - reserved)

    try:
        task = task_of(
            service,
            chat,
            make_prompt,
            tenant,
            request_id=new_id("resp"),
            max_tokens=body.max_output_tokens,
        )
    except InvalidRequestError as error:
        raise in_own_words(error, body) from None
    return ResponseTask(task, body, int(time.time()))


def _items_of(turns: Sequence[Turn]) -> list[AnyItem]:
    """As many as a body may hold, and so as many turns: there is none without an item."""
    items: list[AnyItem] = []
    for turn in turns:
        items += items_of_turn(turn)
        if len(items) > MAX_OBJECTS:
            raise InvalidRequestError(
                f"the conversation before has more than {MAX_OBJECTS} items; begin a new one with "
                "what is still needed of it",
                param="previous_response_id",
            )
    return items


def items_of_turn(turn: Turn) -> list[AnyItem]:
    """What was said in a turn, first the input and then the answer."""
    output = json.loads(turn.response)["output"]
    return _ITEMS.validate_json(turn.input) + _ITEMS.validate_python(output)


def _cut_to_fit(
    render: Callable[[Sequence[ChatMessage]], ChatPrompt],
    messages: Sequence[ChatMessage],
    room: int,
) -> ChatPrompt:
    """The prompt without as many of the oldest turns as it takes to have at most `room` tokens.

    What stands before the first user's message stays, and so do the system's and developer's
    messages, and the last user's; when that does not fit, it is given as it is. Renders
    O(log(turns)) times.
    """
    starts = [place for place, message in enumerate(messages) if message.role == "user"]
    if not starts:
        return render(messages)

    def kept(turns: int) -> list[ChatMessage]:
        left_out = messages[starts[0] : starts[turns]]
        orders = [message for message in left_out if message.role in ("system", "developer")]
        return [*messages[: starts[0]], *orders, *messages[starts[turns] :]]

    def without(turns: int) -> ChatPrompt | None:
        try:
            prompt = render(kept(turns))
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
    return render(kept(high))
