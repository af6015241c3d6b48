"""The `openai` package: `client.responses`, made, streamed, parsed, kept and taken back."""

from __future__ import annotations

from typing import Any

import openai
from openai.types.responses import ResponseFunctionToolCall

from scripts.try_clients.outcome import Outcome, raised
from scripts.try_clients.questions import ANSWER, CITY_SCHEMA, QUESTION, WEATHER, City
from scripts.try_clients.server import KEY, MODEL, Served

_TOOL: Any = {
    "type": "function",
    "name": "get_weather",
    "strict": True,
    "parameters": CITY_SCHEMA,
}
_ASKING: Any = {"model": MODEL, "input": QUESTION, "temperature": 0}


def use_openai_responses(server: Served) -> Outcome:
    """A response's whole life. Raises AssertionError."""
    client = openai.OpenAI(base_url=server.v1, api_key=KEY, max_retries=0)
    events = _streams(client)
    cached = _continues(client)
    _calls(client)
    parsed = client.responses.parse(text_format=City, **_ASKING)
    assert isinstance(parsed.output_parsed, City), parsed
    _is_kept_and_deleted(client)
    _is_cancelled(client)
    return Outcome(
        client="openai: responses",
        version=openai.__version__,
        did="create, stream, parse, previous_response_id, a call and its result, retrieve, "
        "input_items, delete, background and cancel",
        numbers={"kinds_of_events": events, "cached_when_continued": cached},
    )


def _streams(client: openai.OpenAI) -> int:
    """How many kinds of events came."""
    with client.responses.stream(**_ASKING) as stream:
        kinds = [event.type for event in stream]
        assert stream.get_final_response().output_text == ANSWER
    assert kinds.count("response.output_text.delta") > 4, "the stream came in one piece"
    assert kinds[-1] == "response.completed"
    with client.responses.stream(text_format=City, **_ASKING) as stream:
        stream.until_done()
        assert isinstance(stream.get_final_response().output_parsed, City)
    return len(set(kinds))


def _continues(client: openai.OpenAI) -> int:
    """How many tokens were cached of the turn that follows."""
    first = client.responses.create(**_ASKING)
    assert first.output_text == ANSWER, first
    second = client.responses.create(
        model=MODEL, input="And of Spain?", previous_response_id=first.id, temperature=0
    )
    assert first.usage is not None
    assert second.usage is not None
    cached = second.usage.input_tokens_details.cached_tokens
    assert cached >= first.usage.total_tokens - 1, (first.usage, second.usage)
    return cached


def _calls(client: openai.OpenAI) -> None:
    made = client.responses.create(tools=[_TOOL], tool_choice="required", **_ASKING)
    (call,) = made.output
    assert isinstance(call, ResponseFunctionToolCall), made
    result: Any = {"type": "function_call_output", "call_id": call.call_id, "output": WEATHER}
    answer = client.responses.create(
        model=MODEL,
        input=[result],
        previous_response_id=made.id,
        tools=[_TOOL],
        tool_choice="none",
        max_output_tokens=8,
    )
    assert answer.status in ("completed", "incomplete"), answer


def _is_kept_and_deleted(client: openai.OpenAI) -> None:
    made = client.responses.create(**_ASKING)
    assert client.responses.retrieve(made.id) == made
    (item,) = client.responses.input_items.list(made.id)
    assert item.type == "message"
    client.responses.delete(made.id)
    raised(openai.NotFoundError, lambda: client.responses.retrieve(made.id))
    unkept = client.responses.create(store=False, **_ASKING)
    raised(openai.NotFoundError, lambda: client.responses.retrieve(unkept.id))


def _is_cancelled(client: openai.OpenAI) -> None:
    made = client.responses.create(
        model=MODEL, input="Tell me a story.", background=True, extra_body={"priority": 0}
    )
    assert made.status == "queued", made
    assert client.responses.cancel(made.id).status in ("cancelled", "completed")
    assert client.responses.retrieve(made.id).status in ("cancelled", "completed")
