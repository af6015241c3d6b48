"""Tools, choices and messages of tools that are wrong: the field is named, nothing is run."""

from __future__ import annotations

from typing import Any

import pytest

from tests.server_support import refused

CHAT = "/v1/chat/completions"
HELLO = [{"role": "user", "content": "hello"}]
TOOL = {"type": "function", "function": {"name": "f"}}
CALL = {"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}
CALLED = {"role": "assistant", "content": None, "tool_calls": [CALL]}
RESULT = {"role": "tool", "tool_call_id": "a", "content": "x"}


def allowed(mode: str, *names: str) -> dict[str, Any]:
    tools = [{"type": "function", "function": {"name": name}} for name in names]
    return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": tools}}


def function(**fields: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": "g", **fields}}


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": "f"}, "tools"),
        ({"tools": {}}, "tools"),
        ({"tools": [{}]}, "tools[0].type"),
        ({"tools": [{"type": "function"}]}, "tools[0].function"),
        ({"tools": [{"type": "function", "function": {}}]}, "tools[0].function.name"),
        ({"tools": [function(name="")]}, "tools[0].function.name"),
        ({"tools": [function(name='a"b')]}, "tools[0].function.name"),
        ({"tools": [function(name="x" * 129)]}, "tools[0].function.name"),
        ({"tools": [function(description=7)]}, "tools[0].function.description"),
        ({"tools": [function(strict="yes")]}, "tools[0].function.strict"),
        ({"tools": [TOOL, function(), TOOL]}, "tools[2].function.name"),
        ({"tools": [TOOL] * 1025}, "tools"),
        ({"tools": [function(parameters=[])]}, "tools[0].function.parameters"),
        ({"tools": [function(parameters="{}")]}, "tools[0].function.parameters"),
        (
            {"tools": [TOOL, function(parameters={"type": "string"})]},
            "tools[1].function.parameters.type",
        ),
        (
            {"tools": [function(parameters={"properties": []})]},
            "tools[0].function.parameters.properties",
        ),
        (
            {"tools": [function(parameters={"required": "x"})]},
            "tools[0].function.parameters.required",
        ),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": "required", "tools": []}, "tool_choice"),
        ({"tool_choice": {"type": "function", "function": {"name": "f"}}}, "tool_choice"),
        ({"tool_choice": "any", "tools": [TOOL]}, "tool_choice"),
        (
            {"tool_choice": {"type": "function", "function": {"name": "g"}}, "tools": [TOOL]},
            "tool_choice.function.name",
        ),
        ({"tool_choice": {"type": "function"}, "tools": [TOOL]}, "tool_choice"),
        ({"tool_choice": allowed("auto"), "tools": [TOOL]}, "tool_choice"),
        ({"tool_choice": allowed("none", "f"), "tools": [TOOL]}, "tool_choice"),
        (
            {"tool_choice": allowed("auto", "f", "g"), "tools": [TOOL]},
            "tool_choice.allowed_tools.tools[1].function.name",
        ),
        ({"parallel_tool_calls": 1, "tools": [TOOL]}, "parallel_tool_calls"),
        ({"chat_template_kwargs": {"tools": [TOOL]}}, "chat_template_kwargs"),
        ({"functions": [{"name": "f"}]}, "functions"),
        ({"function_call": {"name": "f"}}, "function_call"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_wrong_tools_are_named(fake, fields, param, stream):
    body = {"messages": HELLO, "stream": stream, **fields}
    error = refused(fake.request("POST", CHAT, json=body))
    assert error["param"] == param
    assert error["type"] == "invalid_request_error"


def test_names_that_clash_are_both_named(fake):
    error = refused(fake.chat(tools=[TOOL, function(), TOOL]))
    assert "tools[0] and tools[2] have the same name 'f'" in error["message"]


def test_what_was_before_tools_says_what_to_use(fake):
    assert "use tools instead" in refused(fake.chat(functions=[{"name": "f"}]))["message"]
    error = refused(fake.chat(tools=[TOOL], function_call={"name": "f"}))
    assert "use tool_choice" in error["message"]


def call(**fields: Any) -> dict[str, Any]:
    return {**CALLED, "tool_calls": [{**CALL, **fields}]}


@pytest.mark.parametrize(
    ("messages", "param"),
    [
        ([RESULT], "messages[0].tool_call_id"),
        ([{**RESULT, "tool_call_id": None}], "messages[0].tool_call_id"),
        ([CALLED, {**RESULT, "tool_call_id": "b"}], "messages[1].tool_call_id"),
        ([CALLED, RESULT, RESULT], "messages[2].tool_call_id"),
        ([CALLED, *HELLO, RESULT], "messages[2].tool_call_id"),
        ([CALLED, {"role": "tool", "tool_call_id": "a"}], "messages[1].content"),
        ([CALLED, {**RESULT, "tool_calls": [CALL]}], "messages[1].tool_calls"),
        ([{**CALLED, "role": "user"}], "messages[0].tool_calls"),
        ([{**HELLO[0], "tool_call_id": "a"}], "messages[0].tool_call_id"),
        ([{**HELLO[0], "reasoning_content": "hm"}], "messages[0].reasoning_content"),
        ([{**CALLED, "tool_calls": [CALL, CALL]}], "messages[0].tool_calls[1].id"),
        ([call(id=None)], "messages[0].tool_calls[0].id"),
        ([call(type="custom")], "messages[0].tool_calls[0].type"),
        ([call(function={"name": "f"})], "messages[0].tool_calls[0].function.arguments"),
        (
            [call(function={"name": "f", "arguments": "{a}"})],
            "messages[0].tool_calls[0].function.arguments",
        ),
        (
            [call(function={"name": "f", "arguments": "[1]"})],
            "messages[0].tool_calls[0].function.arguments",
        ),
        (
            [call(function={"name": "f", "arguments": "[" * 100_000})],
            "messages[0].tool_calls[0].function.arguments",
        ),
        ([{"role": "function", "name": "f", "content": "x"}], "messages[0].role"),
    ],
)
def test_wrong_messages_of_tools_are_named(fake, messages, param):
    error = refused(fake.post(CHAT, messages=messages))
    assert error["param"] == param
    assert refused(fake.post("/tokenize", messages=messages))["param"] == param


def test_right_ones_are_taken(fake):
    messages = [
        *HELLO,
        call(index=0, function={"name": "f", "arguments": ""}),
        RESULT,
        {**CALLED, "content": "Again.", "reasoning_content": "hm"},
        {**RESULT, "name": "f"},
    ]
    answer = fake.post(CHAT, messages=messages, tools=[TOOL], max_tokens=1)
    assert answer.status_code == 200, answer.text
    for fields in (
        {"tools": []},
        {"tools": None},
        {"tool_choice": "auto"},
        {"tool_choice": "none"},
    ):
        assert fake.chat(max_tokens=1, **fields).status_code == 200
