"""/v1/messages: the tools that Anthropic defined, and examples of a tool's input."""

from __future__ import annotations

from typing import Any

import pytest

from radixlm.server.anthropic.messages_body import CountBody
from radixlm.server.anthropic.messages_conversation import conversation_of
from radixlm.server.http.body import checked
from tests.messages_support import TOOLS, USER, model, send
from tests.server_support import refused

COMMANDS = ["view", "create", "str_replace", "insert"]
OLD = "str_replace_editor"
NEW = "str_replace_based_edit_tool"


def told(tool: dict[str, Any]) -> dict[str, Any]:
    """What the model's template is given of a tool."""
    [made] = conversation_of(checked(CountBody, {"messages": [USER], "tools": [tool]})).tools
    return made["function"]


@pytest.mark.parametrize("kind", ["bash_20241022", "bash_20250124"])
def test_bash_has_the_schema_that_is_known(kind):
    parameters = told({"type": kind, "name": "bash"})["parameters"]
    assert {name: each["type"] for name, each in parameters["properties"].items()} == {
        "command": "string",
        "restart": "boolean",
    }
    assert "required" not in parameters


@pytest.mark.parametrize(
    ("kind", "name", "commands"),
    [
        ("text_editor_20241022", OLD, [*COMMANDS, "undo_edit"]),
        ("text_editor_20250124", OLD, [*COMMANDS, "undo_edit"]),
        ("text_editor_20250429", NEW, COMMANDS),
        ("text_editor_20250728", NEW, COMMANDS),
    ],
)
def test_editors_have_the_schema_that_is_known(kind, name, commands):
    parameters = told({"type": kind, "name": name})["parameters"]
    properties = parameters["properties"]
    assert properties["command"]["enum"] == commands
    assert properties.keys() == {
        *("command", "path", "file_text", "old_str", "new_str", "insert_line", "view_range"),
    }
    assert parameters["required"] == ["command", "path"]


def test_a_view_s_limit_is_told():
    tool = {"type": "text_editor_20250728", "name": NEW, "max_characters": 500}
    assert "500 characters" in told(tool)["description"]


def test_examples_are_told_with_the_description():
    [tool] = TOOLS
    made = told({**tool, "input_examples": [{"city": "Bern"}, {"city": "Zürich"}]})
    assert made["description"] == (
        'The weather in a city.\nExample input: {"city": "Bern"}\nExample input: {"city": "Zürich"}'
    )
    assert told({**tool, "input_examples": []})["description"] == tool["description"]


def test_a_tool_that_is_known_is_called():
    script = '<tool_call>\n{"name": "bash", "arguments": {"command": "ls"}}\n</tool_call>'
    with model(script) as client:
        tools = [{"type": "bash_20250124", "name": "bash"}]
        choice = {"type": "tool", "name": "bash"}
        body = send(client, tools=tools, tool_choice=choice, max_tokens=200).json()
        [block] = [block for block in body["content"] if block["type"] == "tool_use"]
        assert (block["name"], block["input"]) == ("bash", {"command": "ls"})


@pytest.mark.parametrize(
    ("tool", "path"),
    [
        ({"type": "bash_20250124", "name": "shell"}, "tools[0].name"),
        ({"type": "text_editor_20250728", "name": OLD}, "tools[0].name"),
        ({"type": "text_editor_20250728", "name": NEW, "max_characters": 0}, "tools[0].max_"),
        ({"type": "bash_20990101", "name": "bash"}, "tools[0]: Tools are supported whose type"),
        ({"name": "bash"}, "tools[0].input_schema"),
        ({**TOOLS[0], "input_examples": ["Bern"]}, "tools[0].input_examples[0]"),
    ],
)
def test_what_is_wrong_with_a_tool_is_named(fake, tool, path):
    assert refused(send(fake, tools=[tool]))["message"].startswith(path)
