"""What a proxy changes so that agents' turns have calls in them."""

from __future__ import annotations

from typing import Any

import pytest

from scripts.try_clients.forced_calls import ForcedCalls, calls_and_results, unforced

SCHEMA = {"type": "object", "properties": {"path": {"type": "string"}}}
NARROW = {
    "type": "object",
    "properties": {"path": {"type": "string", "enum": ["a.py"]}},
    "required": ["path"],
    "additionalProperties": False,
}
QUESTION = {"role": "user", "content": "What is in it?"}
# By route: a body whose last turn is the user's, and a call and its result that may follow.
CHAT: dict[str, Any] = {
    "messages": [QUESTION],
    "tools": [{"type": "function", "function": {"name": "read", "parameters": SCHEMA}}],
}
CHAT_CALL = [
    {"role": "assistant", "tool_calls": [{"id": "a", "function": {"name": "read"}}]},
    {"role": "tool", "tool_call_id": "a", "content": "x"},
]
RESPONSES: dict[str, Any] = {
    "input": [{"type": "message", **QUESTION}],
    "tools": [{"type": "function", "name": "read", "parameters": SCHEMA}],
    "reasoning": {"summary": "auto"},
}
RESPONSES_CALL = [
    {"type": "function_call", "call_id": "a", "name": "read", "arguments": "{}"},
    {"type": "function_call_output", "call_id": "a", "output": "x"},
]
MESSAGES: dict[str, Any] = {
    "messages": [QUESTION],
    "tools": [{"name": "read", "input_schema": SCHEMA}, {"name": "write", "input_schema": SCHEMA}],
}
MESSAGES_CALL = [
    {"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "read"}]},
    {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a", "content": "x"}]},
]
ROUTES = pytest.mark.parametrize(
    ("path", "body", "call", "choice", "none"),
    [
        (
            "/v1/chat/completions",
            CHAT,
            CHAT_CALL,
            {"type": "function", "function": {"name": "read"}},
            "none",
        ),
        ("/v1/responses", RESPONSES, RESPONSES_CALL, {"type": "function", "name": "read"}, "none"),
        (
            "/v1/messages?beta=true",
            MESSAGES,
            MESSAGES_CALL,
            {"type": "tool", "name": "read"},
            {"type": "none"},
        ),
    ],
)


@ROUTES
def test_a_turn_of_the_user_s_is_answered_by_a_call(path, body, call, choice, none):
    forced = ForcedCalls("read", "path", "a.py")
    changed = forced(path, body)
    assert changed["tool_choice"] == choice
    tool = changed["tools"][0]
    tool = tool.get("function", tool)
    assert NARROW in (tool.get("parameters"), tool.get("input_schema"))
    assert changed["tools"][1:] == body["tools"][1:], "other tools stay"
    assert forced.sent == [(path, body)], "as it was"


def test_what_else_is_asked_for_stays():
    forced = ForcedCalls("read", "path", "a.py")
    assert forced("/v1/responses", RESPONSES)["reasoning"] == {"summary": "auto", "effort": "none"}
    body = {**MESSAGES, "output_config": {"effort": "high"}}
    assert forced("/v1/messages", body)["output_config"] == {"effort": "high"}
    answered = {**body, "messages": [QUESTION, *MESSAGES_CALL]}
    assert forced("/v1/messages", answered)["output_config"].keys() == {"effort", "format"}


@ROUTES
def test_a_result_is_answered_by_a_text(path, body, call, choice, none):
    name = "input" if "input" in body else "messages"
    answered = {**body, name: [*body[name], *call]}
    assert calls_and_results(body) == (0, 0)
    assert calls_and_results(answered) == (1, 1)
    forced = ForcedCalls("read", "path", "a.py")
    assert forced(path, answered)["tool_choice"] == none
    again = {**answered, name: [*answered[name], *body[name]]}
    assert forced(path, again)["tool_choice"] == choice
    assert calls_and_results(again) == (1, 1)


@ROUTES
def test_a_request_as_sent_asks_for_one_token(path, body, call, choice, none):
    bounds = {"max_tokens": 1} if "messages" in body else {"max_output_tokens": 1}
    assert unforced(path, body) == {**body, **bounds}


def test_what_has_no_tools_stays():
    forced = ForcedCalls("read", "path", "a.py")
    assert forced("/v1/messages", {"messages": [QUESTION]}) == {"messages": [QUESTION]}
    assert forced("/v1/models", None) is None
    assert not forced.sent
