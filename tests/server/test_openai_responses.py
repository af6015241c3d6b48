"""Answers of chats and completions against the openai package's response types."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any

import pytest
from openai.types import Completion, Model
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from openai.types.shared import ErrorObject

from tests.published import strictly
from tests.server_support import Client, events, fake_engine

TOOLS = [{"type": "function", "function": {"name": "now"}}]
CALL = '{"name": "now", "arguments": {"zone": "UTC"}}'


CHAT_FIELDS: tuple[Mapping[str, Any], ...] = (
    {},
    {"n": 2},
    {"logprobs": True},
    {"logprobs": True, "top_logprobs": 2},
    {"stop": "a"},
)


@pytest.mark.parametrize("fields", CHAT_FIELDS)
def test_a_chat_answer(real, fields):
    strictly(ChatCompletion, real.chat(max_tokens=4, **fields).text)


@pytest.mark.parametrize("fields", CHAT_FIELDS)
@pytest.mark.parametrize("usage", [False, True])
def test_chunks_of_a_chat(real, fields, usage):
    options = {"stream_options": {"include_usage": True}} if usage else {}
    *chunks, last = events(real.chat(max_tokens=4, stream=True, **fields, **options))
    for chunk in (*chunks, last):
        strictly(ChatCompletionChunk, json.dumps(chunk))
        assert ("usage" in chunk) is usage
    assert (last["choices"] == []) is usage
    assert chunks[0]["choices"][0]["delta"].keys() == {"role", "content", "refusal"}


def test_calls_of_tools():
    engine, _ = fake_engine(script=CALL)
    client = Client(engine)
    answer = client.chat(tools=TOOLS, n=2).json()
    strictly(ChatCompletion, json.dumps(answer))
    assert all(choice["message"]["tool_calls"] for choice in answer["choices"])
    chunks = events(client.chat(tools=TOOLS, n=2, stream=True))
    for chunk in chunks:
        strictly(ChatCompletionChunk, json.dumps(chunk))
    assert any(chunk["choices"][0]["delta"].get("tool_calls") for chunk in chunks)
    asyncio.run(engine.close())


@pytest.mark.parametrize("fields", [{}, {"n": 2}, {"logprobs": 0}, {"logprobs": 2}, {"echo": True}])
def test_a_text_answer(real, fields):
    strictly(Completion, real.complete(max_tokens=4, **fields).text)


@pytest.mark.parametrize("fields", [{}, {"n": 2}, {"logprobs": 2}, {"echo": True}])
def test_chunks_of_a_text(real, fields):
    options = {"include_usage": True}
    for chunk in events(real.complete(max_tokens=4, stream=True, stream_options=options, **fields)):
        for choice in chunk["choices"]:
            # The package has one type for both, and its reason may not be null; OpenAI's own is.
            choice["finish_reason"] = choice["finish_reason"] or "stop"
        strictly(Completion, json.dumps(chunk))


def test_models(fake):
    strictly(Model, fake.get("/v1/models/test-model").text)
    answer = fake.get("/v1/models").json()
    assert answer.keys() == {"object", "data"}
    for card in answer["data"]:
        strictly(Model, json.dumps(card))


def test_errors(fake):
    for answer in (fake.chat(temperature=-1), fake.complete(model="another"), fake.get("/v1/none")):
        assert answer.json().keys() == {"error"}
        strictly(ErrorObject, json.dumps(answer.json()["error"]))


def test_the_fingerprint_is_the_same_in_all_answers(fake):
    first = fake.complete(max_tokens=1).json()["system_fingerprint"]
    assert first.startswith("fp_")
    assert fake.chat(max_tokens=1).json()["system_fingerprint"] == first
    for chunk in events(fake.chat(max_tokens=2, stream=True)):
        assert chunk["system_fingerprint"] == first


def test_usage_always_has_its_details(fake):
    for answer in (fake.complete(max_tokens=1), fake.chat(max_tokens=1)):
        usage = answer.json()["usage"]
        details = usage["prompt_tokens_details"]
        assert details.keys() - {"cached_tokens", "cache_write_tokens"} == {
            *("text_tokens", "audio_tokens", "image_tokens"),
        }
        assert details["text_tokens"] == usage["prompt_tokens"]
        assert usage["completion_tokens_details"]["text_tokens"] == usage["completion_tokens"]
        assert usage["completion_tokens_details"]["reasoning_tokens"] == 0
