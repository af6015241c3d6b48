"""/v1/responses: the items of an answer, and the events that tell of them."""

from __future__ import annotations

from typing import Any

import pytest
from openai.types.responses import Response

from radixlm.parsers import TextDelta, ToolArguments, ToolCallBegun, ToolCallEnded
from radixlm.server.responses.responses_writer import ItemWriter
from tests import chat_templates
from tests.published import strictly
from tests.responses_support import BROKEN, CALL, TOOLS, kinds, model, respond, told


def plain(response: dict[str, Any]) -> dict[str, Any]:
    """What two answers to the same have in common."""
    names = ("id", "created_at", "completed_at", "usage")
    kept = {name: value for name, value in response.items() if name not in names}
    items = [
        {name: value for name, value in item.items() if name not in ("id", "call_id")}
        for item in response["output"]
    ]
    return {**kept, "output": items}


def test_an_answer_has_openai_s_shape(fake):
    body = respond(fake, instructions="Be kind.", metadata={"a": "b"}, user="me")
    found = strictly(Response, body.text)
    assert found.status == "incomplete"
    assert found.incomplete_details.reason == "max_output_tokens"
    assert (found.instructions, found.metadata, found.user) == ("Be kind.", {"a": "b"}, "me")
    [message] = found.output
    assert (message.status, len(message.content[0].text)) == ("incomplete", 4)
    assert found.usage.output_tokens == 4
    assert found.usage.total_tokens == found.usage.input_tokens + 4
    again = respond(fake, instructions="Be kind.").json()["usage"]
    assert again["input_tokens_details"]["cached_tokens"] == found.usage.input_tokens - 1


def test_a_stream_tells_of_everything_that_changes(fake):
    events = told(respond(fake, stream=True))
    assert kinds(events) == [
        *("created", "in_progress", "output_item.added", "content_part.added"),
        *("output_text.delta", "output_text.done", "content_part.done", "output_item.done"),
        "incomplete",
    ]
    whole = respond(fake).json()
    assert plain(events[-1]["response"]) == plain(whole)
    text = "".join(event["delta"] for event in events if event["type"].endswith("text.delta"))
    assert text == whole["output"][0]["content"][0]["text"]
    assert events[0]["response"]["usage"] is None
    assert events[-1]["response"]["usage"]["output_tokens"] == 4


@pytest.mark.parametrize("stream", [False, True])
def test_calls_are_items(stream):
    with model(CALL) as client:
        answer = respond(client, tools=TOOLS, max_output_tokens=None, stream=stream)
        if stream:
            events = told(answer)
            assert kinds(events)[-5:] == [
                *("output_item.added", "function_call_arguments.delta"),
                *("function_call_arguments.done", "output_item.done", "completed"),
            ]
            body = events[-1]["response"]
            deltas = [event["delta"] for event in events if event["type"].endswith("ments.delta")]
            assert "".join(deltas) == '{"city": "Bern"}'
        else:
            body = answer.json()
            strictly(Response, answer.text)
        message, call = body["output"]
        assert message["content"][0]["text"] == "I look."
        assert (call["name"], call["arguments"]) == ("get_weather", '{"city": "Bern"}')
        assert call["status"] == body["status"] == "completed"
        assert body["tools"][0]["name"] == "get_weather"


@pytest.mark.parametrize("stream", [False, True])
def test_a_call_that_is_cut_off_is_given_as_far_as_it_came(stream):
    with model(CALL) as client:
        answer = respond(client, tools=TOOLS, max_output_tokens=62, stream=stream)
        body = told(answer)[-1]["response"] if stream else answer.json()
        assert body["status"] == "incomplete"
        text, call = body["output"]
        assert text["content"][0]["text"] == "I look."
        assert (call["name"], call["status"]) == ("get_weather", "incomplete")
        assert 1 < len(call["arguments"]) < len('{"city": "Bern"}')
        assert '{"city": "Bern"}'.startswith(call["arguments"])
        again = respond(client, "go on", previous_response_id=body["id"])
        assert again.status_code == 200, again.text


@pytest.mark.parametrize("stream", [False, True])
def test_what_the_model_breaks_is_told_once_and_can_be_sent_back(stream):
    with model(BROKEN) as client:
        answer = respond(client, tools=TOOLS, max_output_tokens=500, stream=stream)
        body = told(answer)[-1]["response"] if stream else answer.json()
        before, call, after = body["output"]
        assert (call["status"], call["arguments"]) == ("incomplete", '{"city": "Bern" ')
        texts = [item["content"][0]["text"] for item in (before, after)]
        assert texts == ["I look.", "or}}\n</tool_call>"]
        result = {"type": "function_call_output", "call_id": call["call_id"], "output": "What?"}
        again = respond(client, [{"role": "user", "content": "a"}, *body["output"], result])
        assert again.status_code == 200, again.text


@pytest.mark.parametrize("stream", [False, True])
def test_thoughts_are_items(stream):
    script = "<think>\nHm.\n</think>\n\nYes."
    with model(script, chat_templates.THINKING) as client:
        fields = {"include": ["reasoning.encrypted_content"], "max_output_tokens": None}
        answer = respond(client, stream=stream, **fields)
        if stream:
            events = told(answer)
            assert kinds(events)[2:8] == [
                *("output_item.added", "content_part.added", "reasoning_text.delta"),
                *("reasoning_text.done", "content_part.done", "output_item.done"),
            ]
            body = events[-1]["response"]
        else:
            strictly(Response, answer.text)
            body = answer.json()
        thoughts, message = body["output"]
        assert thoughts["content"] == [{"type": "reasoning_text", "text": "Hm."}]
        assert message["content"][0]["text"] == "Yes."
        usage = body["usage"]
        thought = usage["output_tokens_details"]["reasoning_tokens"]
        assert 0 < thought < usage["output_tokens"]
        sealed = {**thoughts, "content": None}
        question = {"role": "user", "content": "a"}
        prompts = [
            respond(client, [question, item, message, question]).json()["usage"]["input_tokens"]
            for item in (thoughts, sealed)
        ]
        assert prompts[0] == prompts[1]


def test_log_probabilities_are_told_with_the_text(real):
    fields = {"include": ["message.output_text.logprobs"], "top_logprobs": 2, "temperature": 0}
    whole = respond(real, **fields)
    strictly(Response, whole.text)
    entries = whole.json()["output"][0]["content"][0]["logprobs"]
    assert [len(entry["top_logprobs"]) for entry in entries] == [2, 2, 2, 2]
    events = told(respond(real, stream=True, **fields))
    streamed = [
        entry["token"]
        for event in events
        if event["type"] == "response.output_text.delta"
        for entry in event["logprobs"]
    ]
    assert streamed == [entry["token"] for entry in entries]


def test_log_probabilities_wait_for_text_that_is_held_back():
    def of(token: str) -> Any:
        return {"token": token, "logprob": 0.0, "bytes": [], "top_logprobs": []}

    found: list[Any] = []
    writer = ItemWriter(found.append, seals=False, names={})
    pushes: Any = [
        ([], "<tool"),
        ([TextDelta("<tools>")], "s>"),
        ([ToolCallBegun(0, "c", "f")], "<tool_call>"),
        ([ToolArguments(0, "{}"), ToolCallEnded(0)], "{}"),
        ([], "<"),
    ]
    for events, token in pushes:
        writer.push(events, [of(token)])
    writer.push([TextDelta("<")])
    texts = [item["content"][0] for item in writer.items if item["type"] == "message"]
    tokens = [[entry["token"] for entry in text["logprobs"]] for text in texts]
    assert tokens == [["<tool", "s>"], ["<"]]
    deltas = [told for told in found if told["type"] == "response.output_text.delta"]
    assert [len(told["logprobs"]) for told in deltas] == [2, 1]
