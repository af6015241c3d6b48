"""Hundreds of tools, as clients of MCP servers have them, and schemas that can not be followed."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from radixlm.cache import RadixCache
from tests import chat_templates
from tests.server_support import Client, fake_engine, refused

CHAT, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/responses", "/v1/messages"
USER = {"role": "user", "content": "hi"}
LOOK_AHEAD = {"type": "string", "pattern": r"^(?!\.)[a-z]+$"}


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    cache = RadixCache(100_000, 1)
    engine, _ = fake_engine(template=chat_templates.HERMES, context_length=60_000, cache=cache)
    yield Client(engine)
    asyncio.run(engine.close())


def request(path: str, tools: list[dict[str, Any]], **fields: Any) -> dict[str, Any]:
    """One that must call a tool, in the words of a route. tools: as functions of OpenAI's."""
    match path:
        case "/v1/chat/completions":
            kinds = [{"type": "function", "function": tool} for tool in tools]
            body = {"messages": [USER], "max_tokens": 1, "tool_choice": "required"}
        case "/v1/responses":
            kinds = [{"type": "function", **tool} for tool in tools]
            body = {"input": "hi", "max_output_tokens": 1, "tool_choice": "required"}
        case _:
            kinds = [{"name": tool["name"], "input_schema": tool["parameters"]} for tool in tools]
            body = {"messages": [USER], "max_tokens": 1, "tool_choice": {"type": "any"}}
    return {**body, "tools": kinds, **fields}


def tools(count: int, schema: Any = None) -> list[dict[str, Any]]:
    parameters = {"type": "object", "properties": {} if schema is None else {"x": schema}}
    return [{"name": f"f{place}", "parameters": parameters} for place in range(count)]


@pytest.mark.parametrize("path", [CHAT, RESPONSES, MESSAGES])
def test_hundreds_may_be_there(client, path):
    answer = client.post(path, **request(path, tools(300)))
    assert answer.status_code == 200, answer.text[:300]
    error = refused(client.post(path, **request(path, tools(1025))))
    assert "tools" in error["message"]


@pytest.mark.parametrize("path", [CHAT, RESPONSES, MESSAGES])
@pytest.mark.parametrize(
    "schema", [LOOK_AHEAD, {"oneOf": [{}, {"type": "object"}]}, {"$ref": "#/$defs/none"}]
)
def test_what_can_not_be_followed_of_one_refuses_none(client, path, schema):
    some = [*tools(3), {**tools(1, schema)[0], "name": "mail"}]
    for fields in ({}, {"tool_choice": {"type": "function", "function": {"name": "mail"}}}):
        if fields and path != CHAT:
            continue
        answer = client.post(path, **request(path, some, **fields))
        assert answer.status_code == 200, answer.text[:300]


@pytest.mark.parametrize("path", [CHAT, RESPONSES])
def test_a_strict_one_is_refused(client, path):
    strict = [{**tools(1, LOOK_AHEAD)[0], "strict": True}]
    error = refused(client.post(path, **request(path, strict)))
    assert error["param"] == "tools"
    assert "look-around" in error["message"]
