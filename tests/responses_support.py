"""Asking /v1/responses, and reading its streams."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Iterator
from typing import Any

import httpx
from openai.types.responses import ResponseStreamEvent

from tests import chat_templates
from tests.published import named_events, strictly
from tests.server_support import Client, fake_engine, idle_and_whole, until

TOOLS = [
    {
        "type": "function",
        "name": "get_weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    }
]


CALL = 'I look.<tool_call>\n{"name": "get_weather", "arguments": {"city": "Bern"}}\n</tool_call>'


# The model breaks its JSON.
BROKEN = CALL.replace('"Bern"', '"Bern" or')


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
