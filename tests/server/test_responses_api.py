"""/v1/responses: items, their events, and what is refused."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from openai.types.responses import Response, ResponseStreamEvent
from openai.types.responses.response_item_list import ResponseItemList

from radixlm.server.responses import prompt
from radixlm.server.responses.writer import ItemWriter
from radixlm.text.answers import TextDelta, ToolArguments, ToolCallBegun, ToolCallEnded
from tests import chat_templates
from tests.published import named_events, strictly
from tests.server_support import Client, fake_engine, idle_and_whole, live, refused, until

TOOLS = [
    {
        "type": "function",
        "name": "get_weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    }
]
CALL = 'I look.<tool_call>\n{"name": "get_weather", "arguments": {"city": "Bern"}}\n</tool_call>'


@contextlib.contextmanager
def model(script: str, template: str = chat_templates.HERMES, **flags: Any) -> Iterator[Client]:
    """A model that always answers `script`."""
    engine, _ = fake_engine(template=template, script=script, **flags)
    yield Client(engine)
    assert until(lambda: idle_and_whole(engine))
    asyncio.run(engine.close())


def respond(client: Client, given: Any = "hello", **fields: Any) -> httpx.Response:
    return client.post("/v1/responses", **{"input": given, "max_output_tokens": 4, **fields})


def told(response: httpx.Response) -> list[dict[str, Any]]:
    """The events of a stream, each held to OpenAI's types and to the one before."""
    found = []
    for place, (name, data) in enumerate(named_events(response)):
        event = strictly(ResponseStreamEvent, data)
        assert event.type == name
        assert event.sequence_number == place
        found.append(json.loads(data))
    return found


def kinds(events: list[dict[str, Any]]) -> list[str]:
    """Without repetitions."""
    names = [event["type"].removeprefix("response.") for event in events]
    return [name for place, name in enumerate(names) if names[place - 1 : place] != [name]]


def plain(response: dict[str, Any]) -> dict[str, Any]:
    """What two answers to the same have in common."""
    names = ("id", "created_at", "completed_at", "usage")
    kept = {name: value for name, value in response.items() if name not in names}
    items = [
        {name: value for name, value in item.items() if name not in ("id", "call_id")}
        for item in response["output"]
    ]
    return {**kept, "output": items}


def test_an_answer_has_openai_s_shape(fake):
    body = respond(fake, instructions="Be kind.", metadata={"a": "b"}, user="me")
    found = strictly(Response, body.text)
    assert found.status == "incomplete"
    assert found.incomplete_details.reason == "max_output_tokens"
    assert (found.instructions, found.metadata, found.user) == ("Be kind.", {"a": "b"}, "me")
    [message] = found.output
    assert (message.status, len(message.content[0].text)) == ("incomplete", 4)
    assert found.usage.output_tokens == 4
    assert found.usage.total_tokens == found.usage.input_tokens + 4
    again = respond(fake, instructions="Be kind.").json()["usage"]
    assert again["input_tokens_details"]["cached_tokens"] == found.usage.input_tokens - 1


def test_a_stream_tells_of_everything_that_changes(fake):
    events = told(respond(fake, stream=True))
    assert kinds(events) == [
        *("created", "in_progress", "output_item.added", "content_part.added"),
        *("output_text.delta", "output_text.done", "content_part.done", "output_item.done"),
        "incomplete",
    ]
    whole = respond(fake).json()
    assert plain(events[-1]["response"]) == plain(whole)
    text = "".join(event["delta"] for event in events if event["type"].endswith("text.delta"))
    assert text == whole["output"][0]["content"][0]["text"]
    assert events[0]["response"]["usage"] is None
    assert events[-1]["response"]["usage"]["output_tokens"] == 4


@pytest.mark.parametrize("stream", [False, True])
def test_calls_are_items(stream):
    with model(CALL) as client:
        answer = respond(client, tools=TOOLS, max_output_tokens=None, stream=stream)
        if stream:
            events = told(answer)
            assert kinds(events)[-5:] == [
                *("output_item.added", "function_call_arguments.delta"),
                *("function_call_arguments.done", "output_item.done", "completed"),
            ]
            body = events[-1]["response"]
            deltas = [event["delta"] for event in events if event["type"].endswith("ments.delta")]
            assert "".join(deltas) == '{"city": "Bern"}'
        else:
            body = answer.json()
            strictly(Response, answer.text)
        message, call = body["output"]
        assert message["content"][0]["text"] == "I look."
        assert (call["name"], call["arguments"]) == ("get_weather", '{"city": "Bern"}')
        assert call["status"] == body["status"] == "completed"
        assert body["tools"][0]["name"] == "get_weather"


@pytest.mark.parametrize("stream", [False, True])
def test_a_call_that_is_cut_off_is_no_call(stream):
    with model(CALL) as client:
        answer = respond(client, tools=TOOLS, max_output_tokens=62, stream=stream)
        body = told(answer)[-1]["response"] if stream else answer.json()
        assert body["status"] == "incomplete"
        calls = [item for item in body["output"] if item["type"] == "function_call"]
        assert all(call["status"] == "incomplete" for call in calls)
        texts = [item["content"][0]["text"] for item in body["output"] if "content" in item]
        assert "".join(texts).startswith("I look.<tool_call>")
        again = respond(client, "go on", previous_response_id=body["id"])
        assert again.status_code == 200, again.text


@pytest.mark.parametrize("stream", [False, True])
def test_thoughts_are_items(stream):
    script = "<think>\nHm.\n</think>\n\nYes."
    with model(script, chat_templates.THINKING) as client:
        fields = {"include": ["reasoning.encrypted_content"], "max_output_tokens": None}
        answer = respond(client, stream=stream, **fields)
        if stream:
            events = told(answer)
            assert kinds(events)[2:8] == [
                *("output_item.added", "content_part.added", "reasoning_text.delta"),
                *("reasoning_text.done", "content_part.done", "output_item.done"),
            ]
            body = events[-1]["response"]
        else:
            strictly(Response, answer.text)
            body = answer.json()
        thoughts, message = body["output"]
        assert thoughts["content"] == [{"type": "reasoning_text", "text": "Hm."}]
        assert message["content"][0]["text"] == "Yes."
        assert 0 < body["usage"]["output_tokens_details"]["reasoning_tokens"] <= 14
        sealed = {**thoughts, "content": None}
        question = {"role": "user", "content": "a"}
        prompts = [
            respond(client, [question, item, message, question]).json()["usage"]["input_tokens"]
            for item in (thoughts, sealed)
        ]
        assert prompts[0] == prompts[1]


def test_log_probabilities_are_told_with_the_text(real):
    fields = {"include": ["message.output_text.logprobs"], "top_logprobs": 2, "temperature": 0}
    whole = respond(real, **fields)
    strictly(Response, whole.text)
    entries = whole.json()["output"][0]["content"][0]["logprobs"]
    assert [len(entry["top_logprobs"]) for entry in entries] == [2, 2, 2, 2]
    events = told(respond(real, stream=True, **fields))
    streamed = [
        entry["token"]
        for event in events
        if event["type"] == "response.output_text.delta"
        for entry in event["logprobs"]
    ]
    assert streamed == [entry["token"] for entry in entries]


def test_log_probabilities_wait_for_text_that_is_held_back():
    def of(token: str) -> Any:
        return {"token": token, "logprob": 0.0, "bytes": [], "top_logprobs": []}

    writer = ItemWriter(itertools.count().__next__, seals=False)
    pushes: Any = [
        ([], "<tool"),
        ([TextDelta("<tools>")], "s>"),
        ([ToolCallBegun(0, "c", "f")], "<tool_call>"),
        ([ToolArguments(0, "{}"), ToolCallEnded(0)], "{}"),
        ([], "<"),
    ]
    found = [told for events, token in pushes for told in writer.push(events, [of(token)])] + list(
        writer.push([TextDelta("<")])
    )
    texts = [item["content"][0] for item in writer.items if item["type"] == "message"]
    tokens = [[entry["token"] for entry in text["logprobs"]] for text in texts]
    assert tokens == [["<tool", "s>"], ["<"]]
    deltas = [told for told in found if told["type"] == "response.output_text.delta"]
    assert [len(told["logprobs"]) for told in deltas] == [2, 1]


def test_items_of_all_kinds_make_the_prompt_of_the_same_chat():
    call = {"name": "get_weather", "arguments": '{"city": "Bern"}'}
    with model("Yes.") as client:
        items = [
            {"role": "developer", "content": [{"type": "input_text", "text": "Be brief."}]},
            {"type": "message", "role": "user", "content": "Well?"},
            {"type": "reasoning", "id": "rs_1", "summary": []},
            {"role": "assistant", "content": [{"type": "output_text", "text": "I look."}]},
            {"type": "function_call", "call_id": "c1", **call},
            {"type": "function_call_output", "call_id": "c1", "output": "12 degrees"},
        ]
        found = respond(client, items, tools=TOOLS)
        assert found.status_code == 200, found.text
        function = {name: TOOLS[0][name] for name in ("name", "parameters")}
        chat = client.post(
            "/v1/chat/completions",
            messages=[
                {"role": "system", "content": "Be brief."},
                {"role": "user", "content": "Well?"},
                {
                    "role": "assistant",
                    "content": "I look.",
                    "tool_calls": [{"id": "c1", "type": "function", "function": call}],
                },
                {"role": "tool", "tool_call_id": "c1", "content": "12 degrees"},
            ],
            tools=[{"type": "function", "function": function}],
            max_tokens=4,
        ).json()
        details = found.json()["usage"]
        assert details["input_tokens"] == chat["usage"]["prompt_tokens"]
        cached = chat["usage"]["prompt_tokens_details"]["cached_tokens"]
        assert cached == details["input_tokens"] - 1


@pytest.mark.parametrize("before", [None, "I look. "])
@pytest.mark.parametrize("parts", [False, True])
def test_text_behind_a_call_is_of_the_same_message(before, parts):
    """As a response's own items are that says something behind its call."""
    call = {"name": "get_weather", "arguments": '{"city": "Bern"}'}
    user = {"role": "user", "content": "Well?"}

    texts = [f"{before}.", "Wait."] if before else ["Wait."]

    def said(text: str) -> dict[str, Any]:
        several = [{"type": "output_text", "text": each} for each in (text, "")]
        return {"role": "assistant", "content": several if parts else text}

    with model("Yes.") as client:
        found = respond(
            client,
            [
                user,
                *map(said, texts[:-1]),
                {"type": "function_call", "call_id": "c1", **call},
                said(texts[-1]),
                {"type": "function_call_output", "call_id": "c1", "output": "12 degrees"},
            ],
        )
        assert found.status_code == 200, found.text
        chat = client.post(
            "/v1/chat/completions",
            messages=[
                user,
                {
                    "role": "assistant",
                    "content": (
                        [{"type": "text", "text": each} for text in texts for each in (text, "")]
                        if parts
                        else "".join(texts)
                    ),
                    "tool_calls": [{"id": "c1", "type": "function", "function": call}],
                },
                {"role": "tool", "tool_call_id": "c1", "content": "12 degrees"},
            ],
            max_tokens=4,
        ).json()
        details = chat["usage"]["prompt_tokens_details"]
        assert details["cached_tokens"] == found.json()["usage"]["input_tokens"] - 1


def test_the_limit_is_what_fits(fake):
    body = respond(fake, "x" * 1900, max_output_tokens=10**6).json()
    assert body["usage"]["total_tokens"] == 2000
    error = refused(respond(fake, "x" * 2500))
    assert (error["param"], error["code"]) == ("input", "context_length_exceeded")


def test_truncation_leaves_out_the_oldest_turns(fake):
    turns = [{"role": "user", "content": str(place) * 300} for place in range(9)]
    items = [{"role": "system", "content": "Be kind."}, *turns]
    assert refused(respond(fake, items))["param"] == "input"
    body = respond(fake, items, truncation="auto").json()
    assert body["truncation"] == "auto"
    assert 2000 - 340 < body["usage"]["input_tokens"] <= 2000 - 4
    alone = [items[0], *turns[-6:]]
    kept = respond(fake, alone).json()["usage"]
    assert kept["input_tokens"] == body["usage"]["input_tokens"]
    assert refused(respond(fake, "x" * 2500, truncation="auto"))["param"] == "input"
    order = {"role": "developer", "content": "Be brief."}
    ordered = respond(fake, [*items[:3], order, *items[3:]], truncation="auto").json()
    alone = [items[0], order, *turns[-6:]]
    assert ordered["usage"]["input_tokens"] == respond(fake, alone).json()["usage"]["input_tokens"]


def test_a_conversation_holds_no_more_items_than_a_body_may(fake, monkeypatch):
    monkeypatch.setattr(prompt, "MAX_OBJECTS", 2)
    first = respond(fake).json()["id"]
    second = respond(fake, previous_response_id=first).json()["id"]
    for more in ({}, {"truncation": "auto"}):
        error = refused(respond(fake, previous_response_id=second, **more))
        assert error["param"] == "previous_response_id"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"input": None}, "input"),
        ({"input": []}, "input"),
        ({"input": [{"type": "computer_call"}]}, "input[0]"),
        ({"input": [{"role": "user"}]}, "input[0].content"),
        ({"input": [{"role": "robot", "content": "a"}]}, "input[0].role"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_image"}]}]},
            "input[0].content[0].type",
        ),
        (
            {"input": [{"role": "user", "content": [{"type": "input_text"}]}]},
            "input[0].content[0].text",
        ),
        (
            {"input": [{"type": "function_call_output", "call_id": "c", "output": "a"}]},
            "input[0].call_id",
        ),
        (
            {"input": [{"type": "reasoning", "encrypted_content": "gAAAA"}]},
            "input[0].encrypted_content",
        ),
        ({"input": [{"role": "user", "content": "a", "nonsense": 1}]}, "input[0].nonsense"),
        ({"previous_response_id": 5}, "previous_response_id"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"temperature": -1}, "temperature"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"include": ["everything"]}, "include[0]"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"tools": [{"type": "function", "name": "not a name"}]}, "tools[0].name"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": TOOLS, "tool_choice": {"type": "function", "name": "x"}}, "tool_choice.name"),
        (
            {
                "tools": TOOLS,
                "tool_choice": {
                    "type": "allowed_tools",
                    "mode": "auto",
                    "tools": [{"type": "function", "name": "x"}],
                },
            },
            "tool_choice.tools[0].name",
        ),
        ({"text": {"format": {"type": "json_schema"}}}, "text.format"),
        ({"text": {"format": {"type": "text", "name": "a"}}}, "text.format"),
        ({"text": {"verbosity": "low"}}, "text.verbosity"),
        ({"reasoning": {"summary": "detailed"}}, "reasoning.summary"),
        ({"metadata": {"a": "b" * 513}}, "metadata.a"),
        ({"background": True, "store": False}, "background"),
        ({"background": True, "stream": True}, "stream"),
        ({"stream_options": {}}, "stream_options"),
        ({"conversation": "conv_1"}, "conversation"),
        ({"prompt": {"id": "p"}}, "prompt"),
        ({"model": "another"}, "model"),
        ({"nonsense": 1}, "nonsense"),
    ],
)
def test_what_is_wrong_is_named(fake, fields, param):
    status = 404 if param == "model" else 400
    assert refused(respond(fake, **fields), status)["param"] == param


def test_a_client_that_leaves_holds_nothing():
    engine, _ = fake_engine(seconds=0.01)
    with live(engine) as url:
        body = {"input": "hi", "max_output_tokens": 1000, "stream": True}
        with httpx.stream("POST", f"{url}/v1/responses", json=body) as answer:
            lines = answer.iter_lines()
            while "output_text.delta" not in next(lines):
                pass
        assert until(lambda: idle_and_whole(engine))
    asyncio.run(engine.close())


def test_a_stream_that_breaks_says_so():
    engine, runner = fake_engine(seconds=0.01)
    with live(engine) as url:
        body = {"input": "hi", "max_output_tokens": 1000, "stream": True}
        with httpx.stream("POST", f"{url}/v1/responses", json=body) as answer:
            lines = answer.iter_lines()
            while "output_text.delta" not in next(lines):
                pass
            runner.broken = True
            *_, last = [line for line in lines if line]
    event = strictly(ResponseStreamEvent, last.removeprefix("data: "))
    assert event.type == "response.failed"
    assert event.response.status == "failed"
    assert event.response.output[0].status == "incomplete"
    assert json.loads(last.removeprefix("data: "))["response"]["store"] is False
    asyncio.run(engine.close())


def test_a_request_that_takes_too_long_ends_its_stream():
    engine, _ = fake_engine(seconds=0.02)
    with live(engine, request_timeout=1.5) as url:
        body = {"input": "hi", "max_output_tokens": 1000, "stream": True}
        text = httpx.post(f"{url}/v1/responses", json=body).text
    last = text.rstrip("\n").rpartition("\n")[2]
    event = strictly(ResponseStreamEvent, last.removeprefix("data: "))
    assert "--request-timeout" in event.response.error.message
    asyncio.run(engine.close())


def test_input_items_are_listed_in_pages(fake):
    items = [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "b"},
        {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c", "output": "d"},
    ]
    path = f"/v1/responses/{respond(fake, items).json()['id']}/input_items"
    whole = fake.get(path)
    strictly(ResponseItemList, whole.text)
    found = whole.json()["data"]
    assert [item["type"] for item in found] == [
        *("function_call_output", "function_call", "message", "message"),
    ]
    assert found[-1]["content"] == [{"type": "input_text", "text": "a"}]
    first = fake.get(f"{path}?limit=3&order=asc").json()
    assert first["has_more"]
    rest = fake.get(f"{path}?order=asc&after={first['last_id']}&include[]=").status_code
    assert rest == 400  # of nothing there is nothing to include
    rest = fake.get(f"{path}?order=asc&after={first['last_id']}").json()
    assert [*first["data"], *rest["data"]] == found[::-1]
    assert not rest["has_more"]
    for query, param in (("limit=0", "limit"), ("limit=x", "limit"), ("after=x", "after")):
        assert refused(fake.get(f"{path}?{query}"))["param"] == param
    assert refused(fake.get(f"{path}?nonsense=1"))["param"] == "nonsense"
