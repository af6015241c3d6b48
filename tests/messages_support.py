"""Asking /v1/messages, and reading its streams."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Iterator
from typing import Any

import anthropic
import httpx
from anthropic.types import RawMessageStreamEvent

from tests import chat_templates
from tests.published import named_events, strictly
from tests.server_support import (
    Client,
    fake_engine,
    idle_and_whole,
    live,
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


# The model breaks its JSON.
BROKEN = CALL.replace('"Bern"', '"Bern" or')


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
    with (
        live(engine, **(flags or {})) as url,
        anthropic.Anthropic(base_url=url, api_key="first", max_retries=0) as client,
    ):
        yield client
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
