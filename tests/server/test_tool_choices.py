"""Choices of tools that hold the answer: a model that answers by chance calls what it must."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Iterator
from typing import Any

import pytest

from radixlm.structured_output import compiler
from radixlm.structured_output.matcher import Table
from radixlm.structured_output.trial import Trial
from tests import chat_templates
from tests.chat_templates import MARKERS
from tests.server_support import CHATML, Client, events, fake_engine, idle_and_whole, refused, until

TEMPLATES = {
    "hermes": chat_templates.HERMES,
    "llama": chat_templates.LLAMA,
    "mistral": chat_templates.MISTRAL,
    "mistral_named": chat_templates.MISTRAL_NAMED,
    "pythonic": chat_templates.PYTHONIC,
    "qwen3_coder": chat_templates.QWEN_CODER,
    "json": CHATML,
}
# What begins a call, and can be nothing else then.
BEGINS = {
    "hermes": "<tool_call>",
    "llama": "{",
    "mistral": "[TOOL_CALLS]",
    "mistral_named": "[TOOL_CALLS]",
    "pythonic": "[door(",
    "qwen3_coder": "<tool_call>",
    "json": "{",
}
# A call, and as much of the next one as shows that there is one.
SECOND_BEGUN = {
    "hermes": '<tool_call>\n{"name": "door", "arguments": {"open": true}}\n</tool_call>\n<',
    "llama": '{"name": "door", "parameters": {"open": true}};',
    "mistral": '[TOOL_CALLS] [{"name": "door", "arguments": {"open": true}},',
    "mistral_named": '[TOOL_CALLS]door[ARGS]{"open": true}[',
    "pythonic": "[door(open=true),",
    "qwen3_coder": (
        "<tool_call>\n<function=door>\n<parameter=open>\ntrue\n</parameter>\n</function>\n"
        "</tool_call>\n<"
    ),
    "json": '{"name": "door", "arguments": {"open": true}}\n',
}


def tool(name: str, **properties: Any) -> dict[str, Any]:
    schema = {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }
    return {"type": "function", "function": {"name": name, "parameters": schema}}


LAMP = tool("lamp", on={"type": "boolean"}, room={"enum": ["hall", "attic"]})
DOOR = tool("door", open={"type": "boolean"})
TOOLS = [LAMP, DOOR]
HELLO = [{"role": "user", "content": "hello"}]


def strict(tool: dict[str, Any]) -> dict[str, Any]:
    return {**tool, "function": {**tool["function"], "strict": True}}


SPECIAL = pytest.mark.parametrize(
    "special",
    [pytest.param((), id="text"), pytest.param(MARKERS, id="special", marks=pytest.mark.slow)],
)


class Lent:
    """A trial that goes on when an engine that uses it ends."""

    def __init__(self, trial: Trial) -> None:
        self.trial = trial
        self.check = trial.check

    def close(self) -> None:
        pass


@pytest.fixture(scope="module", autouse=True)
def few_processes() -> Iterator[None]:
    """Models of one vocabulary try their grammars in one process, since it is slow to start."""
    made: dict[Table, Lent] = {}

    def lend(table: Table) -> Lent:
        return made.setdefault(table, Lent(Trial(table)))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compiler, "Trial", lend)
        yield
    for lent in made.values():
        lent.trial.close()


@contextlib.contextmanager
def model(template: str, script: str = "", special: Any = (), **flags: Any) -> Iterator[Client]:
    """A model that answers `script` and goes on by chance."""
    engine, _ = fake_engine(template=template, script=script, goes_on=True, special=special)
    yield Client(engine, **flags)
    assert until(lambda: idle_and_whole(engine))
    asyncio.run(engine.close())


def calls_of(choice: dict[str, Any], *, followed: bool = True) -> list[tuple[str, dict[str, Any]]]:
    """Names and arguments, which must be as the schemas have them where these are followed."""
    made = []
    for call in choice["message"]["tool_calls"]:
        name, arguments = call["function"]["name"], json.loads(call["function"]["arguments"])
        if not followed:
            pass
        elif name == "lamp":
            assert arguments.keys() == {"on", "room"}
            assert isinstance(arguments["on"], bool)
            assert arguments["room"] in ("hall", "attic")
        else:
            assert name == "door"
            assert arguments.keys() == {"open"}
        made.append((name, arguments))
    return made


def streamed_calls(chunks: list[dict[str, Any]]) -> list[tuple[str, str]]:
    made: list[list[str]] = []
    for chunk in chunks:
        for call in chunk["choices"][0]["delta"].get("tool_calls", ()):
            if "id" in call:
                made.append([call["function"]["name"], ""])
            made[call["index"]][1] += call["function"]["arguments"]
    return [(name, arguments) for name, arguments in made]


@SPECIAL
@pytest.mark.parametrize("form", TEMPLATES)
def test_required_and_named_calls(form, special):
    with model(TEMPLATES[form], special=special) as client:
        fields = {"tools": TOOLS, "tool_choice": "required", "temperature": 0}
        answer = client.chat(**fields, parallel_tool_calls=False, n=3).json()
        for choice in answer["choices"]:
            assert choice["finish_reason"] == "tool_calls"
            assert choice["message"]["content"] is None
            assert len(calls_of(choice)) == 1
        chunks = events(client.chat(**fields, parallel_tool_calls=False, stream=True))
        [(name, arguments)] = calls_of(answer["choices"][0])
        [(same, text)] = streamed_calls(chunks)
        assert (same, json.loads(text)) == (name, arguments)
        for name in ("lamp", "door"):
            named = {"type": "function", "function": {"name": name}}
            [choice] = client.chat(tools=TOOLS, tool_choice=named).json()["choices"]
            assert [called for called, _ in calls_of(choice)] == [name]


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["auto", "required"])
@pytest.mark.parametrize("form", TEMPLATES)
def test_only_allowed_tools_are_called(form, mode):
    door = {"type": "function", "function": {"name": "door"}}
    choice = {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": [door]}}
    with model(TEMPLATES[form], BEGINS[form] if mode == "auto" else "") as client:
        answer = client.chat(
            "which door", tools=TOOLS, tool_choice=choice, parallel_tool_calls=False, n=3
        )
        whole = client.chat("which door", tools=TOOLS, tool_choice="auto", max_tokens=1).json()
    for made in answer.json()["choices"]:
        assert [name for name, _ in calls_of(made, followed=mode == "required")] == ["door"]
    # All tools are told of, so that the prompt is the same one.
    assert answer.json()["usage"]["prompt_tokens"] == whole["usage"]["prompt_tokens"]


@pytest.mark.parametrize(("form", "script"), SECOND_BEGUN.items())
def test_required_calls_may_be_several(form, script):
    with model(TEMPLATES[form], script) as client:
        [choice] = client.chat(tools=TOOLS, tool_choice="required").json()["choices"]
        assert len(calls_of(choice)) > 1
        assert choice["finish_reason"] == "tool_calls"


@SPECIAL
@pytest.mark.parametrize(
    ("form", "script"),
    [
        *BEGINS.items(),
        ("hermes", "I look.\n<tool_call>"),
        ("qwen3_coder", "I look.\n<tool_call>"),
    ],
)
def test_strict_calls_follow_their_schemas_once_they_begin(form, script, special):
    with model(TEMPLATES[form], script, special) as client:
        fields = {"tools": [strict(LAMP), strict(DOOR)], "parallel_tool_calls": False}
        [choice] = client.chat(**fields).json()["choices"]
        assert len(calls_of(choice)) == 1
        assert choice["finish_reason"] == "tool_calls"
        assert (choice["message"]["content"] or "") == ("I look." if "look" in script else "")


@pytest.mark.parametrize("form", TEMPLATES)
def test_with_none_there_is_text_only(form):
    with model(TEMPLATES[form]) as client:
        [choice] = client.chat(tools=TOOLS, tool_choice="none", max_tokens=40).json()["choices"]
        assert "tool_calls" not in choice["message"]
        assert choice["message"]["content"]
        assert choice["finish_reason"] in ("stop", "length")


def test_thoughts_come_before_required_calls():
    script = "<think>\nI look.\n</think>"
    with model(chat_templates.THINKING, script) as client:
        fields = {"tools": TOOLS, "tool_choice": "required", "parallel_tool_calls": False}
        [choice] = client.chat(**fields).json()["choices"]
    assert choice["message"]["reasoning_content"] == "I look."
    assert len(calls_of(choice)) == 1


def test_a_response_format_is_for_answers_without_calls():
    schema = {
        "type": "object",
        "properties": {"ok": {"type": "boolean"}},
        "required": ["ok"],
        "additionalProperties": False,
    }
    wanted = {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}
    with model(chat_templates.THINKING, "<think>Hm.</think>{") as client:
        [choice] = client.chat(tools=TOOLS, response_format=wanted).json()["choices"]
        assert isinstance(json.loads(choice["message"]["content"])["ok"], bool)
        assert choice["message"]["reasoning_content"] == "Hm."
        [choice] = client.chat(response_format=wanted).json()["choices"]
        assert json.loads(choice["message"]["content"]).keys() == {"ok"}
    with model(chat_templates.HERMES, "<tool_call>") as client:
        fields = {"tools": [strict(LAMP)], "parallel_tool_calls": False}
        [choice] = client.chat(**fields, response_format=wanted).json()["choices"]
        assert len(calls_of(choice)) == 1


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("parameters", "why"),
    [
        ({"properties": {"a": {"type": "array", "uniqueItems": True}}}, "uniqueItems"),
        ({"properties": {"a": {"$ref": "#/$defs/gone"}}}, "gone"),
        ({"properties": {"a": {"type": "nothing"}}}, "nothing"),
        ({"properties": {"a": {"type": "string", "pattern": "("}}}, ""),
        ({"properties": {"a": 7}}, ""),
        ({"required": [7]}, ""),
    ],
)
def test_schemas_that_can_not_be_followed_are_refused(fake, parameters, why, stream):
    function = {"name": "f", "strict": True, "parameters": {"type": "object", **parameters}}
    bad = {"type": "function", "function": function}
    error = refused(fake.chat(tools=[bad], stream=stream))
    assert error["param"] == "tools"
    assert why in error["message"]
