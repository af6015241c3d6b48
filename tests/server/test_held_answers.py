"""Answers made by chance that /v1/responses and /v1/messages hold to a schema or a tool."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests import chat_templates
from tests.server_support import Client, fake_engine, idle_and_whole, refused, until

SCHEMA = {
    "type": "object",
    "properties": {"city": {"enum": ["Bern", "Basel"]}},
    "required": ["city"],
    "additionalProperties": False,
}
USER = [{"role": "user", "content": "hello"}]


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    """Of a model that writes what comes to it, as far as it is let."""
    engine, _ = fake_engine(template=chat_templates.HERMES, script="", goes_on=True)
    yield Client(engine)
    assert until(lambda: idle_and_whole(engine))
    asyncio.run(engine.close())


def test_a_response_follows_its_schema(client):
    form = {"type": "json_schema", "name": "place", "schema": SCHEMA, "strict": True}
    body = client.post("/v1/responses", input="hello", text={"format": form}).json()
    assert body["status"] == "completed", body
    [message] = body["output"]
    assert json.loads(message["content"][0]["text"])["city"] in ("Bern", "Basel")
    assert body["text"]["format"] == form
    wrong = {**form, "schema": {"type": "nothing"}}
    error = refused(client.post("/v1/responses", input="hello", text={"format": wrong}))
    assert error["param"] == "text.format"
    assert error["message"].startswith("text.format")


@pytest.mark.parametrize("choice", ["required", {"type": "function", "name": "go"}])
def test_a_response_calls_the_tool_it_must(client, choice):
    tools = [{"type": "function", "name": "go", "parameters": SCHEMA, "strict": True}]
    fields: dict[str, Any] = {"tool_choice": choice, "parallel_tool_calls": False}
    body = client.post("/v1/responses", input="hello", tools=tools, **fields).json()
    assert body["status"] == "completed", body
    [call] = body["output"]
    assert (call["type"], call["name"]) == ("function_call", "go")
    assert json.loads(call["arguments"])["city"] in ("Bern", "Basel")
    assert body["tool_choice"] == choice


def test_a_message_follows_its_schema(client):
    form = {"type": "json_schema", "schema": SCHEMA}
    fields: dict[str, Any] = {"messages": USER, "max_tokens": 200}
    body = client.post("/v1/messages", output_config={"format": form}, **fields).json()
    assert body["stop_reason"] == "end_turn", body
    [text] = body["content"]
    assert json.loads(text["text"])["city"] in ("Bern", "Basel")
    wrong = {**form, "schema": {"type": "nothing"}}
    error = refused(client.post("/v1/messages", output_config={"format": wrong}, **fields))
    assert error["message"].startswith("output_config.format")


@pytest.mark.parametrize("choice", [{"type": "any"}, {"type": "tool", "name": "go"}])
def test_a_message_calls_the_tool_it_must(client, choice):
    tools = [{"name": "go", "input_schema": SCHEMA, "strict": True}]
    body = client.post(
        "/v1/messages",
        messages=USER,
        max_tokens=200,
        tools=tools,
        tool_choice={**choice, "disable_parallel_tool_use": True},
    ).json()
    assert body["stop_reason"] == "tool_use", body
    [call] = body["content"]
    assert call["name"] == "go"
    assert call["input"]["city"] in ("Bern", "Basel")
