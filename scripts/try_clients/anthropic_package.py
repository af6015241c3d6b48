"""The `anthropic` package: messages, streams, tools, its own tool loop, counting, errors."""

from __future__ import annotations

from typing import Any, Literal

import anthropic

from scripts.try_clients.outcome import Outcome, raised
from scripts.try_clients.questions import ANSWER, ASKED, CITY_SCHEMA, WEATHER, City
from scripts.try_clients.server import KEY, MODEL, Served

_TOOL: Any = {"name": "get_weather", "strict": True, "input_schema": CITY_SCHEMA}
# The package has no temperature any more; the API has.
_COLD: Any = {"model": MODEL, "max_tokens": 100, "extra_body": {"temperature": 0}}
_FORCED: Any = {**_COLD, "tools": [_TOOL], "tool_choice": {"type": "any"}}


def use_anthropic(server: Served) -> Outcome:
    """Every way to call; raises AssertionError where one is not as it should be."""
    client = anthropic.Anthropic(base_url=server.url, api_key=KEY, max_retries=0)
    _messages(client)
    cached = _call_and_result(client)
    turns = _tool_loop(client)
    parsed = client.messages.parse(messages=ASKED, output_format=City, **_COLD)
    assert isinstance(parsed.parsed_output, City), parsed
    errors = _errors(client)
    return Outcome(
        client="anthropic",
        version=anthropic.__version__,
        did="messages: create, stream, parse, count_tokens; tools whole and streamed, results "
        "sent back; beta tool_runner; errors by their types",
        numbers={
            "error_types": errors,
            "cached_with_the_result": cached,
            "turns_of_the_tool_runner": turns,
        },
    )


def _messages(client: anthropic.Anthropic) -> None:
    answer = client.messages.create(messages=ASKED, **_COLD)
    assert _text(answer) == ANSWER, answer
    assert answer.stop_reason == "end_turn"
    assert answer._request_id, "no request-id"
    count = client.messages.count_tokens(model=MODEL, messages=ASKED).input_tokens
    usage = answer.usage
    assert count == usage.input_tokens + (usage.cache_read_input_tokens or 0), usage
    with client.messages.stream(messages=ASKED, **_COLD) as stream:
        pieces = list(stream.text_stream)
        assert _text(stream.get_final_message()) == ANSWER
    assert len(pieces) > 4, "the stream came in one piece"


def _call_and_result(client: anthropic.Anthropic) -> int:
    """How many tokens of the second turn were cached."""
    made = client.messages.create(messages=ASKED, **_FORCED)
    assert made.stop_reason == "tool_use", made
    (call,) = made.content
    assert call.type == "tool_use"
    assert call.input in ({"city": "Paris"}, {"city": "Oslo"}), call
    with client.messages.stream(messages=ASKED, **_FORCED) as stream:
        kinds = {event.type for event in stream}
        (streamed,) = stream.get_final_message().content
    assert "input_json" in kinds, kinds
    assert streamed.type == "tool_use"
    assert streamed.input == call.input
    result: Any = {"type": "tool_result", "tool_use_id": call.id, "content": WEATHER}
    messages: Any = [
        *ASKED,
        {"role": "assistant", "content": made.content},
        {"role": "user", "content": [result]},
    ]
    answer = client.messages.create(
        messages=messages, tools=[_TOOL], tool_choice={"type": "none"}, **_COLD
    )
    cached = answer.usage.cache_read_input_tokens or 0
    assert cached > 200, answer.usage
    return cached


def _tool_loop(client: anthropic.Anthropic) -> int:
    """The package calls the tool and sends the result; says how many answers there were."""
    seen = []

    @anthropic.beta_tool
    def get_weather(city: Literal["Paris", "Oslo"]) -> str:
        """The weather in a city."""
        seen.append(city)
        return WEATHER

    runner = client.beta.messages.tool_runner(
        messages=ASKED,
        tools=[get_weather],
        tool_choice={"type": "any"},
        max_iterations=3,
        **_COLD,
    )
    turns = len(list(runner))
    assert len(seen) >= 2, seen
    return turns


def _errors(client: anthropic.Anthropic) -> int:
    """Each wrong request raises the exception that the package has for it; says how many."""
    stranger = client.with_options(api_key="wrong")
    cases: list[tuple[type[anthropic.APIStatusError], Any]] = [
        (
            anthropic.AuthenticationError,
            lambda: stranger.messages.create(messages=ASKED, **_COLD),
        ),
        (
            anthropic.NotFoundError,
            lambda: client.messages.create(messages=ASKED, **{**_COLD, "model": "claude-99"}),
        ),
        (anthropic.BadRequestError, lambda: client.messages.create(messages=[], **_COLD)),
    ]
    for kind, call in cases:
        assert raised(kind, call).request_id, kind
    return len(cases)


def _text(message: anthropic.types.Message) -> str:
    return "".join(block.text for block in message.content if block.type == "text")
