"""Dialogues as agents send them, to templates that would refuse or leave out part of them."""

from __future__ import annotations

from typing import Any

import pytest

from tests import chat_templates
from tests.picky_templates import STYLES
from tests.server_support import Client, fake_engine

Json = dict[str, Any]
NOW: Json = {"type": "function", "function": {"name": "now", "description": "tells lemon"}}
DAY: Json = {"type": "function", "function": {"name": "day", "description": "tells mango"}}
MODELS = {**STYLES, "thinking, opened": chat_templates.THINKING}


def client_of(style: str, script: str = "so-fig") -> Client:
    engine, _ = fake_engine(template=MODELS[style], script=script)
    return Client(engine)


def call(call_id: str, name: str, arguments: str = '{"zone": "birch"}') -> Json:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def words_in_order(client: Client, ids: list[int], *words: str) -> None:
    text = client.engine.tokenizer.decode(ids, skip_special_tokens=False)
    place = 0
    for word in words:
        place = text.find(word, place)
        assert place >= 0, (word, text)


@pytest.mark.parametrize("style", MODELS)
def test_a_chat(style: str) -> None:
    """Two system messages, two calls at once, results with a text behind them."""
    client = client_of(style)
    messages: list[Json] = [
        {"role": "system", "content": "rule-one"},
        {"role": "developer", "content": "rule-two"},
        {"role": "user", "content": [{"type": "text", "text": "ask-ash"}]},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [call("toolu_01A09q90qw90lq917835", "now"), call("call_2", "day", "{}")],
        },
        {"role": "tool", "tool_call_id": "call_2", "content": "result-fir"},
        {"role": "tool", "tool_call_id": "toolu_01A09q90qw90lq917835", "content": "result-elm"},
        {"role": "user", "content": "more-ivy"},
    ]
    told = client.post(
        "/v1/chat/completions",
        messages=messages,
        tools=[NOW, DAY],
        max_tokens=4,
        return_token_ids=True,
    )
    assert told.status_code == 200, told.text
    ids = told.json()["prompt_token_ids"]
    words_in_order(client, ids, "rule-one", "rule-two", "ask-ash", "now", "birch", "result-elm")
    words_in_order(client, ids, "day", "result-fir", "more-ivy")
    words_in_order(client, ids, "tells lemon", "tells mango")
    said = told.json()["choices"][0]["message"]
    again = client.chat(messages=[*messages, said, messages[-1]], tools=[NOW, DAY], max_tokens=4)
    assert again.status_code == 200, again.text


@pytest.mark.parametrize("style", MODELS)
def test_messages_with_a_late_system_one(style: str) -> None:
    client = client_of(style)
    body: Json = {
        "system": "rule-one",
        "max_tokens": 4,
        "messages": [
            {"role": "user", "content": "ask-ash"},
            {"role": "assistant", "content": "yes-oak"},
            {"role": "system", "content": "rule-two"},
            {"role": "user", "content": "go-yew"},
        ],
    }
    assert client.post("/v1/messages", **body).status_code == 200
    asked = [{"role": "system", "content": "rule-one"}, *body["messages"]]
    ids = client.post("/tokenize", messages=asked).json()["tokens"]
    words_in_order(client, ids, "rule-one", "ask-ash", "yes-oak", "rule-two", "go-yew")


@pytest.mark.parametrize("style", MODELS)
def test_instructions_and_a_developer_item(style: str) -> None:
    def item(role: str, text: str) -> Json:
        return {"type": "message", "role": role, "content": [{"type": "input_text", "text": text}]}

    answer = client_of(style).post(
        "/v1/responses",
        instructions="rule-one",
        input=[item("developer", "rule-two"), item("user", "ask-ash")],
        max_output_tokens=16,
    )
    assert answer.status_code == 200, answer.text


@pytest.mark.parametrize("style", ["nine", "channels", "folded", "first"])
def test_what_is_marked_is_kept(style: str) -> None:
    """cache_control finds its place in a message that was folded, split or renamed."""
    client = client_of(style)
    marked = {"type": "ephemeral"}
    messages: list[Json] = [
        {"role": "user", "content": "ask-ash"},
        {
            "role": "assistant",
            "content": [
                {"type": "text", "text": "wait-gum"},
                {"type": "tool_use", "id": "a", "name": "now", "input": {"zone": "birch"}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "a", "content": "result-elm"},
                {"type": "text", "text": "go-yew", "cache_control": marked},
            ],
        },
    ]
    answer = client.post(
        "/v1/messages",
        system=[{"type": "text", "text": "rule-one", "cache_control": marked}],
        messages=messages,
        max_tokens=4,
        tools=[{"name": "now", "input_schema": {"type": "object"}, "cache_control": marked}],
    )
    assert answer.status_code == 200, answer.text
    assert answer.json()["usage"]["cache_creation_input_tokens"] > 0


def test_a_call_with_half_of_a_surrogate_pair() -> None:
    """Another server's model wrote it; no prompt can hold it."""
    client = client_of("hermes")
    calls = [call("a", "now", '{"zone": "oak\\ud83d", "\\ude00": "\\ud83d\\ude00"}')]
    called = {"role": "assistant", "content": "", "tool_calls": calls}
    messages = [{"role": "user", "content": "ask"}, called]
    told = client.post(
        "/v1/chat/completions", messages=messages, tools=[NOW], return_token_ids=True
    )
    assert told.status_code == 200, told.text
    ids = told.json()["prompt_token_ids"]
    words_in_order(client, ids, "oak\ufffd", "\ufffd", "\U0001f600")
