"""The tables of what answers leave out, and every kind of event of both agents' APIs."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from anthropic.types import Message, MessageTokensCount, RawMessageStreamEvent
from openai.types import Completion, Model
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from openai.types.responses import Response, ResponseStreamEvent
from openai.types.responses.response_item_list import ResponseItemList
from openai.types.shared import ErrorObject

from tests import chat_templates
from tests.published import (
    ASKED,
    BESIDES,
    LEFT_OUT,
    TOLD,
    fields_of,
    given_in,
    named_events,
    strictly,
)
from tests.server_support import Client, events, fake_engine

OPENAI: tuple[Any, ...] = (
    *(ChatCompletion, ChatCompletionChunk, Completion, Model),
    *(Response, ResponseStreamEvent, ResponseItemList, ErrorObject),
)
ANTHROPIC: tuple[Any, ...] = (Message, MessageTokensCount, RawMessageStreamEvent)
PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}}}
TOOLS = [{"type": "function", "name": "home__weather", "parameters": PARAMETERS}]
# It thinks, talks, calls, and talks on: every kind of item, block and event.
SCRIPT = (
    "<think>\nHm.\n</think>\n\nI look."
    '<tool_call>\n{"name": "home__weather", "arguments": {"city": "Bern"}}\n</tool_call>Wait.'
)


@pytest.fixture(scope="module")
def talker():
    engine, _ = fake_engine(template=chat_templates.THINKING, script=SCRIPT)
    yield Client(engine)
    asyncio.run(engine.close())


def test_the_tables_name_what_there_is():
    """A name that a package drops must not stay in them, nor one that it brings be called ours."""
    known = fields_of((*OPENAI, *ANTHROPIC))
    for name, fields in LEFT_OUT.items():
        assert fields.keys() <= known[name], name
    for name, fields in BESIDES.items():
        assert not fields & known[name], name


@pytest.mark.parametrize(
    ("data", "word"),
    [
        ({"input_tokens": 1, "more": 2}, "besides"),
        ({"input_tokens": "1"}, "valid integer"),
    ],
)
def test_what_differs_is_found(data, word):
    with pytest.raises((AssertionError, ValueError), match=word):
        strictly(MessageTokensCount, json.dumps(data))


def test_what_is_missing_is_found(fake):
    chunk = fake.chat(max_tokens=1).json()
    del chunk["usage"]["prompt_tokens_details"]
    with pytest.raises(AssertionError, match=r"lacks .*prompt_tokens_details"):
        strictly(ChatCompletion, json.dumps(chunk))


@pytest.mark.slow
@pytest.mark.parametrize(
    "fields",
    [
        {"tools": TOOLS},
        {"max_output_tokens": 3},
        {"include": ["message.output_text.logprobs", "reasoning.encrypted_content"]},
        {
            "text": {"format": {"type": "json_schema", "name": "a", "schema": {"enum": ["a"]}}},
            "store": False,
        },
        {"reasoning": {"effort": "low", "summary": "auto"}, "prompt_cache_retention": "in-memory"},
        {"prompt_cache_options": {"mode": "explicit"}},
        {"instructions": "Be kind.", "metadata": {"a": "b"}, "truncation": "auto", "user": "me"},
    ],
)
def test_every_reply_and_event_of_responses(talker, fake, fields):
    client = fake if "text" in fields else talker  # a script follows no grammar
    fields = {"max_output_tokens": 500, **fields}
    made = client.post("/v1/responses", input="a", **fields)
    assert made.status_code == 200, made.text
    whole = strictly(Response, made.text)
    if fields.get("store", True):
        strictly(Response, client.get(f"/v1/responses/{whole.id}").text)
        strictly(ResponseItemList, client.get(f"/v1/responses/{whole.id}/input_items").text)
    streamed = client.post("/v1/responses", input="a", stream=True, **fields)
    names = [strictly(ResponseStreamEvent, data).type for _, data in named_events(streamed)]
    assert names == [name for name, _ in named_events(streamed)]
    assert names[-1] in ("response.completed", "response.incomplete")


@pytest.mark.parametrize(
    "fields",
    [
        {"tools": [{"name": "home__weather", "input_schema": PARAMETERS}]},
        {"max_tokens": 3},
        {"stop_sequences": ["look"]},
        {"thinking": {"type": "enabled", "budget_tokens": 1024, "display": "omitted"}},
        {"system": [{"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}}]},
    ],
)
def test_every_reply_and_event_of_messages(talker, fields):
    body = {"messages": [{"role": "user", "content": "a"}], "max_tokens": 500, **fields}
    strictly(Message, talker.post("/v1/messages", **body).text)
    streamed = talker.post("/v1/messages", **body, stream=True)
    for name, data in named_events(streamed):
        if name == "ping":  # their package leaves it out of its types, and skips it
            assert json.loads(data) == {"type": "ping"}
        else:
            assert strictly(RawMessageStreamEvent, data).type == name


def test_what_is_left_out_is_given_where_there_is_a_reason(talker, fake):
    wanted = {
        (name, field)
        for name, fields in LEFT_OUT.items()
        for field, reason in fields.items()
        if reason in (ASKED, TOLD)
    }
    assert wanted <= given_by_chat(talker) | given_by_responses(talker, fake)


def given_by_chat(talker: Client) -> set[tuple[str, str]]:
    tools = [{"type": "function", "function": {"name": "home__weather", "parameters": PARAMETERS}}]
    fields: dict[str, Any] = {"tools": tools, "service_tier": "default"}
    found = given_in(strictly(ChatCompletion, talker.chat(**fields).text))
    streamed = talker.chat(**fields, stream=True, stream_options={"include_usage": True})
    for chunk in events(streamed):
        found |= given_in(strictly(ChatCompletionChunk, json.dumps(chunk)))
    return found


def given_by_responses(talker: Client, fake: Client) -> set[tuple[str, str]]:
    mark = {"mode": "explicit", "ttl": "12h"}
    call = {"type": "function_call", "call_id": "a", "name": "f", "arguments": "{}"}
    call["namespace"] = "home"
    said = [
        {
            "role": "user",
            "content": [{"type": "input_text", "text": "a", "prompt_cache_breakpoint": mark}],
        },
        call,
        {"type": "function_call_output", "call_id": "a", "name": "f", "output": "b"},
    ]
    weather = {"type": "function", "name": "weather", "parameters": PARAMETERS}
    home = {"type": "namespace", "name": "home", "description": "c", "tools": [weather]}
    fields = {"include": ["reasoning.encrypted_content"], "max_output_tokens": 500}
    thought = talker.post("/v1/responses", input=said, tools=[home], **fields)
    found = given_in(whole := strictly(Response, thought.text))
    items = talker.get(f"/v1/responses/{whole.id}/input_items")
    found |= given_in(strictly(ResponseItemList, items.text))
    form = {
        "type": "json_schema",
        "name": "a",
        "schema": {"enum": ["a"]},
        "description": "b",
        "strict": True,
    }
    held = fake.post("/v1/responses", input="a", text={"format": form})
    return found | given_in(strictly(Response, held.text))
