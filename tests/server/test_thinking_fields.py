"""Whether a model is to think, as each API says it, in a template that calls it otherwise."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from tests.server_support import Client, fake_engine

USER = {"role": "user", "content": "hi"}
# How long the prompt is tells what the template was given.
TEMPLATE = (
    "{% if thinking is defined %}{{ 'o' * (40 if thinking else 20) }}{% endif %}"
    "{% if thinking_budget is defined %}{{ 'b' * thinking_budget }}{% endif %}hi"
)


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    engine, _ = fake_engine(template=TEMPLATE)
    yield Client(engine)
    asyncio.run(engine.close())


def size(client: Client, path: str, **fields: Any) -> int:
    body: dict[str, Any] = {"max_tokens": 1, "messages": [USER]}
    if path == "/v1/responses":
        body = {"input": "hi", "max_output_tokens": 1, "store": False}
    answer = client.post(path, **body, **fields, cache_report=True)
    assert answer.status_code == 200, answer.text
    tokens: int = answer.json()["cache_report"]["prompt_tokens"]
    return tokens


CHAT, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/responses", "/v1/messages"


@pytest.mark.parametrize(
    ("path", "fields", "more"),
    [
        (CHAT, {}, 0),
        (CHAT, {"reasoning_effort": "none"}, 20),
        (CHAT, {"reasoning_effort": "low"}, 40),
        (CHAT, {"enable_thinking": False}, 20),
        (CHAT, {"thinking": {"type": "disabled"}}, 20),
        (CHAT, {"thinking": {"type": "enabled", "budget_tokens": 5}}, 45),
        (CHAT, {"thinking": {"type": "auto"}}, 0),
        (CHAT, {"thinking_budget": 7}, 47),
        (CHAT, {"reasoning": {"enabled": True}}, 40),
        (CHAT, {"reasoning": {"effort": "none"}}, 20),
        (CHAT, {"reasoning": {"max_tokens": 3}}, 43),
        (CHAT, {"chat_template_kwargs": {"enable_thinking": False}}, 20),
        (CHAT, {"reasoning_effort": "high", "chat_template_kwargs": {"thinking": False}}, 20),
        (RESPONSES, {}, 0),
        (RESPONSES, {"reasoning": {"effort": "none"}}, 20),
        (RESPONSES, {"reasoning": {"effort": "xhigh"}}, 40),
        (MESSAGES, {"thinking": {"type": "adaptive"}}, 0),
        (MESSAGES, {"thinking": {"type": "disabled"}}, 20),
        (MESSAGES, {"thinking": {"type": "enabled", "budget_tokens": 1024}}, 1064),
        (MESSAGES, {"output_config": {"effort": "max"}}, 40),
        (MESSAGES, {"output_config": {"effort": "max"}, "thinking": {"type": "disabled"}}, 20),
    ],
)
def test_the_template_is_told_by_its_own_name(client, path, fields, more):
    # A budget of 0 is written where thinking is off.
    assert size(client, path, **fields) - size(client, path) == more


def test_the_count_agrees(client):
    fields = {"messages": [USER], "thinking": {"type": "disabled"}}
    counted = client.post(f"{MESSAGES}/count_tokens", **fields).json()["input_tokens"]
    assert counted == size(client, MESSAGES, thinking=fields["thinking"])
    told = client.post("/tokenize", messages=[USER], reasoning_effort="none").json()
    assert told["count"] == counted


def test_an_answer_that_is_held_may_think_unless_the_request_says_no():
    engine, _ = fake_engine(template=TEMPLATE, script="<think>\nHm.\n</think>", goes_on=True)
    client = Client(engine, reasoning_parser="qwen3")
    held: dict[str, Any] = {"messages": [USER], "response_format": {"type": "json_object"}}
    [choice] = client.post(CHAT, **held, max_tokens=40).json()["choices"]
    assert choice["message"]["reasoning_content"] == "Hm."
    # The script does not ask what its grammar allows.
    answer = client.post(CHAT, **held, max_tokens=40, reasoning_effort="none").json()
    assert "can not be followed" in answer["error"]["message"]
    asyncio.run(engine.close())
