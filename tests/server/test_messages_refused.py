"""/v1/messages: what is refused, and how."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import httpx
import pytest
from anthropic.types.shared import ErrorResponse

from tests.messages_support import TOOLS, USER, send
from tests.published import strictly
from tests.server_support import (
    Client,
    fake_engine,
    refused,
)

USED = {"type": "tool_use", "id": "a", "name": "b", "input": {}}
CALLED = {"role": "assistant", "content": [{"type": "tool_use", "id": "a"}]}


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
            {"messages": [USER, {"role": "assistant", "content": [USED, USED]}]},
            "messages[1].content[1].id 'a' stands twice",
        ),
        ({"tools": [{"name": f"f{n}", "input_schema": {}} for n in range(1025)]}, "tools"),
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
        ({"container": "c"}, "container is not supported yet"),
        ({"mcp_servers": [{}]}, "mcp_servers is not supported yet"),
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


def test_a_server_without_threads_says_so_as_the_package_reads_it(fake):
    """Its tool runner asks for one first, and does without when it is told this."""
    answer = send(fake, thread={"type": "create"})
    details = {"error_code": "thread_unsupported_request", "unsupported": ["thread"]}
    assert refused(answer)["details"] == details
    assert "details" not in refused(send(fake, inference_geo="us"))
    assert send(fake, thread=None).status_code == 200


@pytest.mark.parametrize("text", ["x" * 2500, "x" * 100_000])
def test_a_prompt_that_is_too_long_is_told_in_words_that_clients_look_for(fake, text):
    """Agents make room when they read them."""
    message = refused(send(fake, messages=[{"role": "user", "content": text}]))["message"]
    told = re.fullmatch(r"prompt is too long: (\d+) tokens > (\d+) maximum", message)
    assert told is not None, message
    assert int(told[1]) > int(told[2]) == 1999


def test_request_ids_come_as_the_package_reads_them(fake):
    answer = fake.request("POST", "/v1/messages", json={}, headers={"x-request-id": "mine"})
    assert answer.headers["request-id"] == answer.json()["request_id"] == "mine"
    assert send(fake).headers["request-id"]
    assert "request-id" not in fake.get("/v1/models").headers
