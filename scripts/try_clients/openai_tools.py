"""The `openai` package: calls of tools and structured output, whole and as streams."""

from __future__ import annotations

from typing import Any

import openai

from scripts.try_clients.outcome import Outcome
from scripts.try_clients.questions import ASKED, CITY_SCHEMA, WEATHER, City
from scripts.try_clients.server import KEY, MODEL, Served

_TOOL: Any = {
    "type": "function",
    "function": {"name": "get_weather", "strict": True, "parameters": CITY_SCHEMA},
}
_REQUIRED: Any = {"model": MODEL, "tools": [_TOOL], "tool_choice": "required", "temperature": 0}


def use_openai_tools(server: Served) -> Outcome:
    """A call and its result, then answers as pydantic models. Raises AssertionError."""
    client = openai.OpenAI(base_url=server.v1, api_key=KEY, max_retries=0)
    cached = _call_and_result(client)
    pieces = _streamed_call(client)
    _parsed(client)
    return Outcome(
        client="openai: tools",
        version=openai.__version__,
        did="tool_choice required and strict, results sent back, streamed calls; "
        "response_format and tools from pydantic by parse and stream",
        numbers={"pieces_of_arguments": pieces, "cached_with_the_result": cached},
    )


def _call_and_result(client: openai.OpenAI) -> int:
    """How many tokens of the second turn were cached."""
    made = client.chat.completions.create(messages=ASKED, **_REQUIRED)
    choice = made.choices[0]
    assert choice.finish_reason == "tool_calls", choice
    (call,) = choice.message.tool_calls or []
    assert call.type == "function"
    assert call.function.arguments in ('{"city": "Paris"}', '{"city": "Oslo"}'), call
    result = {"role": "tool", "tool_call_id": call.id, "content": WEATHER}
    messages: Any = [*ASKED, choice.message, result]
    answer = client.chat.completions.create(
        model=MODEL, messages=messages, tools=[_TOOL], tool_choice="none", max_tokens=8
    )
    assert answer.choices[0].message.tool_calls is None
    assert answer.usage is not None
    assert answer.usage.prompt_tokens_details is not None
    cached = answer.usage.prompt_tokens_details.cached_tokens or 0
    assert cached > 200, answer.usage
    return cached


def _streamed_call(client: openai.OpenAI) -> int:
    with client.chat.completions.stream(messages=ASKED, **_REQUIRED) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_completion().choices[0]
    assert kinds[-1] == "tool_calls.function.arguments.done", kinds
    assert final.finish_reason == "tool_calls"
    (call,) = final.message.tool_calls or []
    assert isinstance(call.function.parsed_arguments, dict), call
    return kinds.count("tool_calls.function.arguments.delta")


def _parsed(client: openai.OpenAI) -> None:
    fields: Any = {"model": MODEL, "messages": ASKED, "temperature": 0}
    made = client.chat.completions.parse(response_format=City, **fields)
    assert isinstance(made.choices[0].message.parsed, City), made
    with client.chat.completions.stream(response_format=City, **fields) as stream:
        stream.until_done()
        assert stream.get_final_completion().choices[0].message.parsed is not None
    tool = openai.pydantic_function_tool(City)
    called = client.chat.completions.parse(tools=[tool], tool_choice="required", **fields)
    (call,) = called.choices[0].message.tool_calls or []
    assert isinstance(call.function.parsed_arguments, City), call
