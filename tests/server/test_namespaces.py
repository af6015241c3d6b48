"""/v1/responses: tools in namespaces, as Codex sends them."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from tests.responses_support import model, respond, told
from tests.server_support import refused

CITY = {"type": "object", "properties": {"city": {"type": "string"}}}
TOOLS: list[dict[str, Any]] = [
    {"type": "function", "name": "now", "description": "The time."},
    {
        "type": "namespace",
        "name": "weather",
        "description": "All about weather.",
        "tools": [
            {"type": "function", "name": "look", "description": "Look.", "parameters": CITY},
            {"type": "function", "name": "now", "strict": False},
        ],
    },
]
CALL = '<tool_call>\n{"name": "weather__look", "arguments": {"city": "Bern"}}\n</tool_call>'
ARGUMENTS = '{"city": "Bern"}'


@pytest.mark.parametrize("stream", [False, True])
def test_a_call_comes_back_with_its_namespace(stream):
    with model(CALL) as client:
        answer = respond(client, tools=TOOLS, stream=stream, max_output_tokens=200)
        made = told(answer)[-1]["response"] if stream else answer.json()
        [call] = made["output"]
        if stream:
            items = [event["item"] for event in told(answer) if "item" in event]
            assert [(item["name"], item["namespace"]) for item in items] == [
                ("look", "weather")
            ] * 2
    assert (call["name"], call["namespace"], call["arguments"]) == ("look", "weather", ARGUMENTS)
    assert made["tools"][1]["name"] == "weather"
    assert [tool["strict"] for tool in made["tools"][1]["tools"]] == [False, False]


def test_the_model_sees_functions_and_its_own_call_again():
    with model(CALL) as client:
        first = respond(client, "Well?", tools=TOOLS, max_output_tokens=200).json()
        functions = [
            {"name": "now", "description": "The time."},
            {
                "name": "weather__look",
                "description": "All about weather.\n\nLook.",
                "parameters": CITY,
            },
            {"name": "weather__now"},
        ]
        chat = client.post(
            "/v1/chat/completions",
            messages=[{"role": "user", "content": "Well?"}],
            tools=[{"type": "function", "function": function} for function in functions],
            max_tokens=1,
        ).json()
        assert chat["usage"]["prompt_tokens"] == first["usage"]["input_tokens"]
        [call] = first["output"]
        result = {"type": "function_call_output", "call_id": call["call_id"], "output": "12"}
        user = {"role": "user", "content": "Well?"}
        flat = {**call, "name": "weather__look"}
        del flat["namespace"]
        respond(client, [user, flat, result], tools=TOOLS)
        second = respond(client, [user, call, result], tools=TOOLS).json()
        stored = respond(client, [result], tools=TOOLS, previous_response_id=first["id"]).json()
    for answer in (second, stored):
        usage = answer["usage"]
        assert usage["input_tokens_details"]["cached_tokens"] == usage["input_tokens"] - 1


@pytest.mark.parametrize("choice", [{}, {"namespace": "weather"}])
def test_one_of_them_can_be_chosen(choice):
    name = "__".join([*choice.values(), "now"])
    with model(f'<tool_call>\n{{"name": "{name}", "arguments": {{}}}}\n</tool_call>') as client:
        named = {"type": "function", "name": "now", **choice}
        answer = respond(client, tools=TOOLS, tool_choice=named, max_output_tokens=200).json()
        [call] = answer["output"]
    assert (call["name"], call.get("namespace")) == ("now", choice.get("namespace"))
    assert answer["tool_choice"] == named


def test_what_is_wrong_in_one_is_told_by_its_place():
    with model("a") as client:
        for change, param in (
            ({"type": "custom"}, "tools[1].tools[0].type"),
            ({"name": "not a name"}, "tools[1].tools[0].name"),
            ({"parameters": {"type": "string"}}, "tools[1].tools[0].parameters.type"),
            ({"name": "now"}, "tools[1].tools[1].name"),
        ):
            tools = copy.deepcopy(TOOLS)
            tools[1]["tools"][0].update(change)
            assert refused(respond(client, tools=tools))["param"] == param
        error = refused(respond(client, tools=[{"type": "web_search"}]))
        assert error["param"] == "tools[0].type"
