"""/v1/messages: blocks, their events, and what is refused."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Iterator
from typing import Any

import anthropic
import httpx
import pytest
from anthropic.types import Message, MessageTokensCount, RawMessageStreamEvent
from anthropic.types.shared import ErrorResponse
from fastapi.responses import JSONResponse

from radixlm.server.anthropic.writer import BlockWriter
from radixlm.server.event import event as as_bytes
from radixlm.text.answers import TextDelta, ToolArguments, ToolCallBegun, ToolCallEnded
from tests import chat_templates
from tests.published import named_events, strictly
from tests.server_support import (
    CHATML,
    NAME,
    Client,
    fake_engine,
    idle_and_whole,
    live,
    refused,
    until,
)

TOOLS: Any = [
    {
        "name": "get_weather",
        "description": "The weather in a city.",
        "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}},
    }
]
CALL = 'I look.<tool_call>\n{"name": "get_weather", "arguments": {"city": "Bern"}}\n</tool_call>'
USER = {"role": "user", "content": "hello"}


@contextlib.contextmanager
def model(script: str, template: str = chat_templates.HERMES, **flags: Any) -> Iterator[Client]:
    """A model that always answers `script`."""
    engine, _ = fake_engine(template=template, script=script, **flags)
    yield Client(engine)
    assert until(lambda: idle_and_whole(engine))
    asyncio.run(engine.close())


@contextlib.contextmanager
def served(flags: dict[str, Any] | None = None, **engine_flags: Any) -> Iterator[Any]:
    engine, _ = fake_engine(**engine_flags)
    with live(engine, **(flags or {})) as url:
        yield anthropic.Anthropic(base_url=url, api_key="first", max_retries=0)
        assert until(lambda: idle_and_whole(engine))
    asyncio.run(engine.close())


def send(client: Client, messages: Any = None, **fields: Any) -> httpx.Response:
    body = {"messages": messages or [USER], "max_tokens": 4, **fields}
    return client.post("/v1/messages", **body)


def told(response: httpx.Response) -> list[dict[str, Any]]:
    """The events of a stream but the ping, each held to Anthropic's types."""
    found = []
    for name, data in named_events(response):
        if name == "ping":
            assert json.loads(data) == {"type": "ping"}
            continue
        assert strictly(RawMessageStreamEvent, data).type == name
        found.append(json.loads(data))
    return found


def joined(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """A stream's blocks, each put together from its deltas."""
    blocks: list[dict[str, Any]] = []
    held = ""
    for event in events:
        match event["type"]:
            case "content_block_start":
                assert event["index"] == len(blocks)
                blocks.append(event["content_block"])
                held = ""
            case "content_block_delta":
                assert event["index"] == len(blocks) - 1
                delta = dict(event["delta"])
                kind = delta.pop("type")
                [(name, value)] = delta.items()
                if kind == "input_json_delta":
                    held += value
                else:
                    blocks[-1][name] += value
            case "content_block_stop" if held:
                blocks[-1]["input"] = json.loads(held)
    return blocks


def test_an_answer_has_anthropic_s_shape(fake):
    answer = send(fake, system="Be kind.", metadata={"user_id": "me"}, service_tier="auto")
    found = strictly(Message, answer.text)
    assert found.id.startswith("msg_")
    assert (found.model, found.stop_reason) == (NAME, "max_tokens")
    [text] = found.content
    assert len(text.text) == 4
    again = send(fake, system="Be kind.").json()["usage"]
    before = found.usage.input_tokens
    assert (found.usage.cache_read_input_tokens, found.usage.output_tokens) == (0, 4)
    assert (again["input_tokens"], again["cache_read_input_tokens"]) == (1, before - 1)
    assert again["cache_creation_input_tokens"] == 0


def test_a_stream_tells_of_everything_that_changes(fake):
    events = told(send(fake, stream=True))
    names = [event["type"] for event in events]
    assert names[:2] == ["message_start", "content_block_start"]
    assert set(names[2:-3]) == {"content_block_delta"}
    assert names[-3:] == ["content_block_stop", "message_delta", "message_stop"]
    whole = send(fake).json()
    assert joined(events) == whole["content"]
    assert events[0]["message"]["content"] == []
    assert events[0]["message"]["usage"]["output_tokens"] <= 1
    assert events[-2]["delta"] == {
        "stop_reason": "max_tokens",
        "stop_sequence": None,
        "stop_details": None,
    }
    assert events[-2]["usage"]["output_tokens"] == 4


@pytest.mark.parametrize("stream", [False, True])
def test_calls_are_blocks(stream):
    with model(CALL) as client:
        answer = send(client, tools=TOOLS, max_tokens=500, stream=stream)
        if stream:
            events = told(answer)
            blocks, reason = joined(events), events[-2]["delta"]["stop_reason"]
        else:
            strictly(Message, answer.text)
            blocks, reason = answer.json()["content"], answer.json()["stop_reason"]
        text, call = blocks
        assert text["text"] == "I look."
        assert (call["name"], call["input"]) == ("get_weather", {"city": "Bern"})
        assert reason == "tool_use"
        result = {"type": "tool_result", "tool_use_id": call["id"], "content": "12 degrees"}
        messages = [
            USER,
            {"role": "assistant", "content": blocks},
            {"role": "user", "content": [result, {"type": "text", "text": "and?"}]},
        ]
        found = send(client, messages, tools=TOOLS).json()
        arguments = json.dumps(call["input"])
        function = {"name": call["name"], "arguments": arguments}
        chat = client.post(
            "/v1/chat/completions",
            messages=[
                USER,
                {
                    "role": "assistant",
                    "content": "I look.",
                    "tool_calls": [{"id": "c", "type": "function", "function": function}],
                },
                {"role": "tool", "tool_call_id": "c", "content": "12 degrees"},
                {"role": "user", "content": "and?"},
            ],
            tools=[
                {
                    "type": "function",
                    "function": {
                        "name": "get_weather",
                        "description": "The weather in a city.",
                        "parameters": TOOLS[0]["input_schema"],
                    },
                }
            ],
            max_tokens=4,
        ).json()["usage"]
        usage = found["usage"]
        prompt = usage["input_tokens"] + usage["cache_read_input_tokens"]
        assert chat["prompt_tokens"] == prompt
        assert chat["prompt_tokens_details"]["cached_tokens"] == prompt - 1


@pytest.mark.parametrize("stream", [False, True])
def test_a_call_that_is_cut_off_is_no_call(stream):
    with model(CALL) as client:
        answer = send(client, tools=TOOLS, max_tokens=62, stream=stream)
        if stream:
            events = told(answer)
            *_, last = [event for event in events if event["type"] == "content_block_start"]
            assert last["content_block"]["type"] == "text"
            assert events[-2]["delta"]["stop_reason"] == "max_tokens"
        else:
            assert answer.json()["stop_reason"] == "max_tokens"
            texts = [block["text"] for block in answer.json()["content"]]
            assert "".join(texts).startswith("I look.<tool_call>")


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    "city",
    ['"\\ud800"', "1e999", "9" * 4400, "[" * 200_000 + "]" * 200_000],
    ids=["half a pair", "infinite", "many digits", "deep"],
)
def test_arguments_that_no_answer_can_hold_are_no_call(city, stream):
    """They are JSON all the same, so the parser takes them for a call's."""
    call = ToolCallBegun(0, "c", "get_weather"), ToolArguments(0, f'{{"city": {city}}}')
    writer = BlockWriter(shows_thinking=True)
    events = [*writer.push([*call, ToolCallEnded(0), TextDelta(" So.")]), *writer.close()]
    assert not writer.called
    assert writer.blocks == [{"type": "text", "text": f'{{"city": {city}}} So.', "citations": None}]
    sent = [as_bytes(told) for told in events] if stream else [JSONResponse(writer.blocks).body]
    assert all(sent)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("display", ["summarized", "omitted"])
def test_thoughts_are_blocks_that_can_be_sent_back(stream, display):
    script = "<think>\nHm.\n</think>\n\nYes."
    with model(script, chat_templates.THINKING) as client:
        thinking = {"type": "enabled", "budget_tokens": 1024, "display": display}
        answer = send(client, max_tokens=100, stream=stream, thinking=thinking)
        blocks = joined(told(answer)) if stream else answer.json()["content"]
        thoughts, text = blocks
        assert thoughts["type"] == "thinking"
        assert thoughts["thinking"] == ("Hm." if display == "summarized" else "")
        assert text["text"] == "Yes."
        shown = {"type": "thinking", "thinking": "Hm.", "signature": "x"}
        prompts = [
            send(client, [USER, {"role": "assistant", "content": [block, text]}, USER]).json()
            for block in (thoughts, shown)
        ]
        totals = [
            each["usage"]["input_tokens"] + each["usage"]["cache_read_input_tokens"]
            for each in prompts
        ]
        assert totals[0] == totals[1]


def test_a_stop_sequence_is_named():
    with model("hello the world", CHATML) as client:
        body = send(client, max_tokens=50, stop_sequences=["x", " wor"]).json()
        assert (body["stop_reason"], body["stop_sequence"]) == ("stop_sequence", " wor")
        assert body["content"][0]["text"] == "hello the"
        body = send(client, max_tokens=50).json()
        assert (body["stop_reason"], body["stop_sequence"]) == ("end_turn", None)


def test_an_answer_that_is_begun_goes_on():
    with model("hello", CHATML) as client:
        begun = [USER, {"role": "assistant", "content": "I say"}]
        body = send(client, begun).json()
        chat = client.post(
            "/v1/chat/completions", messages=begun, continue_final_message=True, max_tokens=1
        ).json()
        usage = body["usage"]
        assert usage["input_tokens"] == chat["usage"]["prompt_tokens"]


def test_turns_of_one_role_are_one(fake):
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    apart = [{"role": "user", "content": "a"}, {"role": "user", "content": [parts[1]]}]
    counts = [
        fake.post("/v1/messages/count_tokens", messages=messages).json()["input_tokens"]
        for messages in (apart, [{"role": "user", "content": parts}])
    ]
    assert counts[0] == counts[1]


def test_a_failed_tool_says_so():
    with model("Yes.") as client:
        call = {"type": "tool_use", "id": "c", "name": "get_weather", "input": {}}

        def count(**result: Any) -> int:
            block = {"type": "tool_result", "tool_use_id": "c", **result}
            messages = [
                USER,
                {"role": "assistant", "content": [call]},
                {"role": "user", "content": [block]},
            ]
            answer = client.post("/v1/messages/count_tokens", messages=messages, tools=TOOLS)
            assert answer.status_code == 200, answer.text
            return answer.json()["input_tokens"]

        text = [{"type": "text", "text": "no"}]
        assert count(content=text, is_error=True) == count(content="Error: no")
        assert count(content="no", is_error=False) == count(content="no")
        assert count() == count(content="")


def test_tokens_are_counted_as_they_are_computed(fake):
    answer = fake.post("/v1/messages/count_tokens", messages=[USER], system="Be kind.")
    strictly(MessageTokensCount, answer.text)
    usage = send(fake, system="Be kind.").json()["usage"]
    total = usage["input_tokens"] + usage["cache_read_input_tokens"]
    assert answer.json()["input_tokens"] == total
    assert (
        "max_tokens"
        in refused(fake.post("/v1/messages/count_tokens", messages=[USER], max_tokens=1))["message"]
    )


def test_the_prompt_alone_can_be_computed(fake):
    long = [{"role": "user", "content": "warm " * 50}]
    body = send(fake, long, max_tokens=0).json()
    assert (body["content"], body["usage"]["output_tokens"]) == ([], 0)
    again = send(fake, long).json()["usage"]
    assert again["input_tokens"] == 1


def test_the_limit_is_what_fits(fake):
    long = [{"role": "user", "content": "x" * 1900}]
    body = send(fake, long, max_tokens=32_000).json()
    assert body["stop_reason"] == "model_context_window_exceeded"
    usage = body["usage"]
    total = usage["input_tokens"] + usage["cache_read_input_tokens"] + usage["output_tokens"]
    assert total == 2000
    error = refused(send(fake, [{"role": "user", "content": "x" * 2500}]))
    assert error["type"] == "invalid_request_error"
    assert "context" in error["message"]


def marked(text: str, **more: Any) -> dict[str, Any]:
    return {"type": "text", "text": text, "cache_control": {"type": "ephemeral", **more}}


def test_cache_breakpoints_are_taken(fake):
    plain = send(fake, [{"role": "user", "content": "a"}], system="s").json()
    found = send(
        fake,
        [{"role": "user", "content": [marked("a")]}],
        system=[marked("s", ttl="1h")],
        cache_control={"type": "ephemeral"},
    )
    assert found.status_code == 200, found.text
    assert found.json()["content"] == plain["content"]
    many = [{"role": "user", "content": [marked(text) for text in "abcde"]}]
    assert "5 places" in refused(send(fake, many))["message"]


CALLED = {"role": "assistant", "content": [{**marked("x"), "type": "tool_use", "id": "a"}]}


@pytest.mark.parametrize(
    ("fields", "start"),
    [
        ({"max_tokens": None}, "max_tokens"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "robot", "content": "a"}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": []}]}, "messages[0].content is empty"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image"}]}]},
            "messages[0].content[0]",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "tool_result"}]}]},
            "messages[0].content[0].tool_use_id",
        ),
        (
            {
                "messages": [
                    {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "x"}]}
                ]
            },
            "messages[0].content[0].tool_use_id 'x' is of no tool_use block",
        ),
        ({"messages": [CALLED]}, "messages[0].content[0].name"),
        (
            {
                "messages": [
                    {
                        "role": "user",
                        "content": [{"type": "tool_use", "id": "a", "name": "b", "input": {}}],
                    }
                ]
            },
            "messages[0].content[0]: a tool_use block is for messages of role 'assistant'",
        ),
        ({"system": 5}, "system"),
        ({"temperature": -1}, "temperature"),
        ({"stop_sequences": [""]}, "each stop_sequences string"),
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "tools[0]"),
        ({"tools": [{"name": "a b", "input_schema": {}}]}, "tools[0].name"),
        ({"tools": [{"name": "a", "input_schema": {"type": "array"}}]}, "tools[0].input_schema"),
        ({"tool_choice": {"type": "any"}}, "tool_choice"),
        ({"tool_choice": {"type": "tool"}}, "tool_choice.name"),
        ({"tools": TOOLS, "tool_choice": {"type": "tool", "name": "x"}}, "tool_choice"),
        ({"thinking": {"type": "enabled"}}, "thinking.budget_tokens"),
        ({"thinking": {"type": "enabled", "budget_tokens": 5}}, "thinking.budget_tokens"),
        ({"speed": "fast"}, "speed is not supported yet"),
        ({"container": "c"}, "container is not supported yet"),
        ({"mcp_servers": [{}]}, "mcp_servers is not supported yet"),
        ({"nonsense": 1}, "nonsense is not a field"),
    ],
)
def test_what_is_wrong_is_named(fake, fields, start):
    body = {"messages": [USER], "max_tokens": 4, **fields}
    answer = fake.post("/v1/messages", **body)
    error = refused(answer)
    strictly(ErrorResponse, answer.text)
    assert error["type"] == "invalid_request_error"
    assert error["message"].startswith(start)


def test_errors_of_all_kinds_have_anthropic_s_shape():
    engine, runner = fake_engine(max_queued_requests=1)
    client = Client(engine, api_key=("k",))
    key = {"x-api-key": "k"}

    def ask(path: str = "/v1/messages", **more: Any) -> httpx.Response:
        options = {"json": {"messages": [USER], "max_tokens": 1}, "headers": key, **more}
        return client.request("POST", path, **options)

    assert ask().status_code == 200
    assert ask(headers={"Authorization": "Bearer k", "anthropic-version": "1"}).status_code == 200
    assert refused(ask(headers={}), 401)["type"] == "authentication_error"
    assert refused(ask(headers={"x-api-key": "K"}), 401)["type"] == "authentication_error"
    body = {"messages": [USER], "max_tokens": 1, "model": "another"}
    assert refused(ask(json=body), 404)["type"] == "not_found_error"
    assert refused(ask("/v1/messages/batches"), 404)["type"] == "not_found_error"
    assert refused(client.request("GET", "/v1/messages", headers=key), 405)
    assert refused(ask(content=b"{", json=None))["type"] == "invalid_request_error"
    runner.broken = True
    assert refused(ask(), 503)["type"] == "overloaded_error"
    asyncio.run(engine.close())


def test_a_client_that_leaves_holds_nothing():
    with (
        served(seconds=0.01) as client,
        client.messages.stream(model=NAME, max_tokens=1000, messages=[USER]) as stream,
    ):
        next(iter(stream.text_stream))


def test_a_stream_that_breaks_says_so():
    engine, runner = fake_engine(seconds=0.01)
    with live(engine) as url:
        client = anthropic.Anthropic(base_url=url, api_key="-", max_retries=0)
        with client.messages.stream(model=NAME, max_tokens=1000, messages=[USER]) as stream:
            next(iter(stream.text_stream))
            runner.broken = True
            with pytest.raises(anthropic.APIStatusError, match="fuse"):
                stream.until_done()
    asyncio.run(engine.close())


def test_a_request_that_takes_too_long_ends_its_stream():
    engine, _ = fake_engine(seconds=0.02)
    with live(engine, request_timeout=1.5) as url:
        body = {"messages": [USER], "max_tokens": 1000, "stream": True}
        text = httpx.post(f"{url}/v1/messages", json=body).text
    *_, name, data = text.rstrip("\n").split("\n")
    assert name == "event: error"
    error = strictly(ErrorResponse, data.removeprefix("data: ")).error
    assert error.type == "timeout_error"
    asyncio.run(engine.close())


def test_anthropic_s_client_gets_what_it_asks_for():
    with served({"api_key": ("first",)}, template=chat_templates.HERMES, script=CALL) as client:
        made = client.messages.create(
            model=NAME, max_tokens=200, messages=[USER], system="Be kind.", tools=TOOLS
        )
        assert made.stop_reason == "tool_use"
        call = made.content[1]
        assert call.input == {"city": "Bern"}
        result: Any = {"type": "tool_result", "tool_use_id": call.id, "content": "12 degrees"}
        messages: Any = [
            USER,
            {"role": "assistant", "content": made.content},
            {"role": "user", "content": [result]},
        ]
        fields: Any = {"model": NAME, "messages": messages, "system": "Be kind.", "tools": TOOLS}
        with client.messages.stream(max_tokens=200, **fields) as stream:
            final = stream.get_final_message()
        assert final.content[1].input == {"city": "Bern"}
        assert final.usage.cache_read_input_tokens > 300
        count = client.messages.count_tokens(**fields).input_tokens
        assert count == final.usage.input_tokens + final.usage.cache_read_input_tokens
        with pytest.raises(anthropic.NotFoundError):
            client.messages.create(model="another", max_tokens=2, messages=[USER])
        with pytest.raises(anthropic.AuthenticationError):
            client.with_options(api_key="wrong").messages.count_tokens(model=NAME, messages=[USER])
