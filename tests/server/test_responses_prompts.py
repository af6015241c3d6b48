"""/v1/responses: what its items are to the model, and how much of them fits."""

from __future__ import annotations

from typing import Any

import pytest

from radixlm.server.responses import responses_routes as task
from tests.responses_support import TOOLS, model, respond
from tests.server_support import refused


def test_items_of_all_kinds_make_the_prompt_of_the_same_chat():
    call = {"name": "get_weather", "arguments": '{"city": "Bern"}'}
    with model("Yes.") as client:
        items = [
            {"role": "developer", "content": [{"type": "input_text", "text": "Be brief."}]},
            {"type": "message", "role": "user", "content": "Well?"},
            {"type": "reasoning", "id": "rs_1", "summary": []},
            {"role": "assistant", "content": [{"type": "output_text", "text": "I look."}]},
            {"type": "function_call", "call_id": "c1", **call},
            {"type": "function_call_output", "call_id": "c1", "output": "12 degrees"},
        ]
        found = respond(client, items, tools=TOOLS)
        assert found.status_code == 200, found.text
        function = {name: TOOLS[0][name] for name in ("name", "parameters")}
        chat = client.post(
            "/v1/chat/completions",
            messages=[
                {"role": "system", "content": "Be brief."},
                {"role": "user", "content": "Well?"},
                {
                    "role": "assistant",
                    "content": "I look.",
                    "tool_calls": [{"id": "c1", "type": "function", "function": call}],
                },
                {"role": "tool", "tool_call_id": "c1", "content": "12 degrees"},
            ],
            tools=[{"type": "function", "function": function}],
            max_tokens=4,
        ).json()
        details = found.json()["usage"]
        assert details["input_tokens"] == chat["usage"]["prompt_tokens"]
        cached = chat["usage"]["prompt_tokens_details"]["cached_tokens"]
        assert cached == details["input_tokens"] - 1


@pytest.mark.parametrize("before", [None, "I look. "])
@pytest.mark.parametrize("parts", [False, True])
def test_text_behind_a_call_is_of_the_same_message(before, parts):
    """As a response's own items are that says something behind its call."""
    call = {"name": "get_weather", "arguments": '{"city": "Bern"}'}
    user = {"role": "user", "content": "Well?"}

    texts = [f"{before}.", "Wait."] if before else ["Wait."]

    def said(text: str) -> dict[str, Any]:
        several = [{"type": "output_text", "text": each} for each in (text, "")]
        return {"role": "assistant", "content": several if parts else text}

    with model("Yes.") as client:
        found = respond(
            client,
            [
                user,
                *map(said, texts[:-1]),
                {"type": "function_call", "call_id": "c1", **call},
                said(texts[-1]),
                {"type": "function_call_output", "call_id": "c1", "output": "12 degrees"},
            ],
        )
        assert found.status_code == 200, found.text
        chat = client.post(
            "/v1/chat/completions",
            messages=[
                user,
                {
                    "role": "assistant",
                    "content": (
                        [{"type": "text", "text": each} for text in texts for each in (text, "")]
                        if parts
                        else "".join(texts)
                    ),
                    "tool_calls": [{"id": "c1", "type": "function", "function": call}],
                },
                {"role": "tool", "tool_call_id": "c1", "content": "12 degrees"},
            ],
            max_tokens=4,
        ).json()
        details = chat["usage"]["prompt_tokens_details"]
        assert details["cached_tokens"] == found.json()["usage"]["input_tokens"] - 1


def test_the_limit_is_what_fits(fake):
    body = respond(fake, "x" * 1900, max_output_tokens=10**6).json()
    assert body["usage"]["total_tokens"] == 2000
    error = refused(respond(fake, "x" * 2500))
    assert (error["param"], error["code"]) == ("input", "context_length_exceeded")


def test_a_count_refuses_the_ids_that_an_answer_refuses(fake):
    for path in ("/v1/responses", "/v1/responses/input_tokens"):
        answer = fake.post(path, input="Hello", stop_token_ids=[10**6])
        assert refused(answer)["param"] == "stop_token_ids"


def test_truncation_leaves_out_the_oldest_turns(fake):
    turns = [{"role": "user", "content": str(place) * 300} for place in range(9)]
    items = [{"role": "system", "content": "Be kind."}, *turns]
    assert refused(respond(fake, items))["param"] == "input"
    body = respond(fake, items, truncation="auto").json()
    assert body["truncation"] == "auto"
    assert 2000 - 340 < body["usage"]["input_tokens"] <= 2000 - 4
    alone = [items[0], *turns[-6:]]
    kept = respond(fake, alone).json()["usage"]
    assert kept["input_tokens"] == body["usage"]["input_tokens"]
    assert refused(respond(fake, "x" * 2500, truncation="auto"))["param"] == "input"
    order = {"role": "developer", "content": "Be brief."}
    ordered = respond(fake, [*items[:3], order, *items[3:]], truncation="auto").json()
    alone = [items[0], order, *turns[-6:]]
    assert ordered["usage"]["input_tokens"] == respond(fake, alone).json()["usage"]["input_tokens"]


def test_a_conversation_holds_no_more_items_than_a_body_may(fake, monkeypatch):
    monkeypatch.setattr(task, "MAX_OBJECTS", 2)
    first = respond(fake).json()["id"]
    second = respond(fake, previous_response_id=first).json()["id"]
    for more in ({}, {"truncation": "auto"}):
        error = refused(respond(fake, previous_response_id=second, **more))
        assert error["param"] == "previous_response_id"
