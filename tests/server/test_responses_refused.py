"""/v1/responses: what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from tests.responses_support import TOOLS, respond
from tests.server_support import refused

CALL = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
RESULT = {"type": "function_call_output", "call_id": "c", "output": "a"}


def namespace(name: str, *names: str) -> dict[str, Any]:
    tools = [{"type": "function", "name": each} for each in names]
    return {"type": "namespace", "name": name, "tools": tools}


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"input": None}, "input"),
        ({"input": [{**CALL, "arguments": "[1]"}]}, "input[0].arguments"),
        ({"input": [CALL, CALL]}, "input[1].call_id"),
        ({"input": [CALL, RESULT, RESULT]}, "input[2].call_id"),
        ({"tools": [namespace("a" * 100, "b", "c" * 100)]}, "tools[0].tools[1].name"),
        ({"tools": [namespace("a", *(f"f{n}" for n in range(1025)))]}, "tools"),
        (
            {"text": {"format": {"type": "json_schema", "name": "a b", "schema": {}}}},
            "text.format.name",
        ),
        (
            {"tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": []}, "tools": TOOLS},
            "tool_choice",
        ),
        ({"input": []}, "input"),
        ({"input": [{"type": "computer_call"}]}, "input[0]"),
        ({"input": [{"role": "user"}]}, "input[0].content"),
        ({"input": [{"role": "robot", "content": "a"}]}, "input[0].role"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_image"}]}]},
            "input[0].content[0].type",
        ),
        (
            {"input": [{"role": "user", "content": [{"type": "input_text"}]}]},
            "input[0].content[0].text",
        ),
        (
            {"input": [{"type": "function_call_output", "call_id": "c", "output": "a"}]},
            "input[0].call_id",
        ),
        (
            {"input": [{"type": "reasoning", "encrypted_content": "gAAAA"}]},
            "input[0].encrypted_content",
        ),
        ({"previous_response_id": 5}, "previous_response_id"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"temperature": -1}, "temperature"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"include": ["everything"]}, "include[0]"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"tools": [{"type": "function", "name": "not a name"}]}, "tools[0].name"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": TOOLS, "tool_choice": {"type": "function", "name": "x"}}, "tool_choice.name"),
        (
            {
                "tools": TOOLS,
                "tool_choice": {
                    "type": "allowed_tools",
                    "mode": "auto",
                    "tools": [{"type": "function", "name": "x"}],
                },
            },
            "tool_choice.tools[0].name",
        ),
        ({"text": {"format": {"type": "json_schema"}}}, "text.format"),
        ({"text": {"format": {"type": "text", "name": "a"}}}, "text.format"),
        ({"text": {"verbosity": "loud"}}, "text.verbosity"),
        ({"reasoning": {"summary": "long"}}, "reasoning.summary"),
        ({"metadata": {"a": "b" * 513}}, "metadata.a"),
        ({"background": True, "store": False}, "background"),
        ({"background": True, "stream": True}, "stream"),
        ({"stream_options": {}}, "stream_options"),
        ({"conversation": {}}, "conversation"),
        ({"conversation": "conv_1", "previous_response_id": "resp_1"}, "conversation"),
        ({"prompt": {"id": "p"}}, "prompt"),
        ({"model": "another"}, "model"),
    ],
)
def test_what_is_wrong_is_named(fake, fields, param):
    status = 404 if param == "model" else 400
    assert refused(respond(fake, **fields), status)["param"] == param
