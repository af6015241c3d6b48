"""Answers against the openai package's response types: strictly valid, and nothing missing.

The types are walked, so that a field that a later version of the package brings makes a test fail
until it is given, or written down in LEFT_OUT.
"""

from __future__ import annotations

import asyncio
import typing
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from openai.types import Completion, Model
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from pydantic import BaseModel

from tests.server_support import Client, events, fake_engine

# Never given: what only stored answers, or ones with audio, images or moderation have, and what
# OpenAI's own answers leave out. Calls are there only where there are any.
LEFT_OUT = {
    "ChatCompletion": {"metadata", "moderation", "service_tier"},
    "ChatCompletionChunk": {"moderation", "obfuscation", "service_tier", "usage"},
    "ChatCompletionMessage": {"audio", "function_call", "tool_calls"},
    "ChoiceDelta": {"audio", "content", "function_call", "refusal", "role", "tool_calls"},
    "CompletionTokensDetails": {"text_tokens"},
    "PromptTokensDetails": {"image_tokens", "text_tokens"},
    "Model": {"shutdown_date"},
}
# Given beyond OpenAI's.
EXTRA = {"Model": {"max_model_len"}}
# Of deltas: each has one of these, and a call's name comes with its first one only.
IN_TURN = {"ChoiceDeltaToolCall": {"id", "type"}, "ChoiceDeltaToolCallFunction": {"name"}}
TOOLS = [{"type": "function", "function": {"name": "now"}}]
CALL = '{"name": "now", "arguments": {"zone": "UTC"}}'


def models_in(value: Any) -> Iterator[BaseModel]:
    if isinstance(value, BaseModel):
        yield value
        for name in type(value).model_fields:
            yield from models_in(getattr(value, name))
    elif isinstance(value, list | tuple):
        for item in value:
            yield from models_in(item)


def assert_as_openai(kind: type[BaseModel], data: dict[str, Any]) -> None:
    """Types are checked strictly; every field is there but for those of LEFT_OUT."""
    for model in models_in(kind.model_validate(data, strict=True)):
        name = type(model).__name__
        left_out = LEFT_OUT.get(name, set()) | IN_TURN.get(name, set())
        missing = set(type(model).model_fields) - model.model_fields_set - left_out
        assert not missing, f"{name} lacks {missing}"
        more = set(model.model_extra or {}) - EXTRA.get(name, set())
        assert not more, f"{name} has {more} besides"


CHAT_FIELDS: tuple[Mapping[str, Any], ...] = (
    {},
    {"n": 2},
    {"logprobs": True},
    {"logprobs": True, "top_logprobs": 2},
    {"stop": "a"},
)


@pytest.mark.parametrize("fields", CHAT_FIELDS)
def test_a_chat_answer(real, fields):
    assert_as_openai(ChatCompletion, real.chat(max_tokens=4, **fields).json())


@pytest.mark.parametrize("fields", CHAT_FIELDS)
@pytest.mark.parametrize("usage", [False, True])
def test_chunks_of_a_chat(real, fields, usage):
    options = {"stream_options": {"include_usage": True}} if usage else {}
    *chunks, last = events(real.chat(max_tokens=4, stream=True, **fields, **options))
    for chunk in (*chunks, last):
        assert_as_openai(ChatCompletionChunk, chunk)
        assert ("usage" in chunk) is usage
    assert (last["choices"] == []) is usage
    assert chunks[0]["choices"][0]["delta"].keys() == {"role", "content", "refusal"}


def test_calls_of_tools():
    engine, _ = fake_engine(script=CALL)
    client = Client(engine)
    answer = client.chat(tools=TOOLS, n=2).json()
    assert_as_openai(ChatCompletion, answer)
    assert all(choice["message"]["tool_calls"] for choice in answer["choices"])
    chunks = events(client.chat(tools=TOOLS, n=2, stream=True))
    for chunk in chunks:
        assert_as_openai(ChatCompletionChunk, chunk)
    assert any(chunk["choices"][0]["delta"].get("tool_calls") for chunk in chunks)
    asyncio.run(engine.close())


@pytest.mark.parametrize("fields", [{}, {"n": 2}, {"logprobs": 0}, {"logprobs": 2}, {"echo": True}])
def test_a_text_answer(real, fields):
    assert_as_openai(Completion, real.complete(max_tokens=4, **fields).json())


@pytest.mark.parametrize("fields", [{}, {"n": 2}, {"logprobs": 2}, {"echo": True}])
def test_chunks_of_a_text(real, fields):
    options = {"include_usage": True}
    for chunk in events(real.complete(max_tokens=4, stream=True, stream_options=options, **fields)):
        for choice in chunk["choices"]:
            # The package has one type for both, and its reason may not be null; OpenAI's own is.
            choice["finish_reason"] = choice["finish_reason"] or "stop"
        assert_as_openai(Completion, chunk)


def test_models(fake):
    assert_as_openai(Model, fake.get("/v1/models/test-model").json())
    answer = fake.get("/v1/models").json()
    assert answer.keys() == {"object", "data"}
    for card in answer["data"]:
        assert_as_openai(Model, card)


def test_left_out_fields_exist():
    """A name that the package drops must not stay in the table."""
    kinds: dict[str, set[str]] = {}
    for kind in (ChatCompletion, ChatCompletionChunk, Completion, Model):
        for model in _kinds(kind):
            kinds.setdefault(model.__name__, set()).update(model.model_fields)
    for name, fields in LEFT_OUT.items():
        assert fields <= kinds[name]


def _kinds(hint: Any) -> Iterator[type[BaseModel]]:
    if isinstance(hint, type) and issubclass(hint, BaseModel):
        yield hint
        for field in hint.model_fields.values():
            yield from _kinds(field.annotation)
    for part in typing.get_args(hint):
        yield from _kinds(part)


def test_the_fingerprint_is_the_same_in_all_answers(fake):
    first = fake.complete(max_tokens=1).json()["system_fingerprint"]
    assert first.startswith("fp_")
    assert fake.chat(max_tokens=1).json()["system_fingerprint"] == first
    for chunk in events(fake.chat(max_tokens=2, stream=True)):
        assert chunk["system_fingerprint"] == first


def test_usage_always_has_its_details(fake):
    for answer in (fake.complete(max_tokens=1), fake.chat(max_tokens=1)):
        usage = answer.json()["usage"]
        details = {"cached_tokens", "cache_write_tokens", "audio_tokens"}
        assert usage["prompt_tokens_details"].keys() == details
        assert usage["completion_tokens_details"]["reasoning_tokens"] == 0
