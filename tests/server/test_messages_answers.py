"""/v1/messages: the blocks of an answer, and the events that tell of them."""

from __future__ import annotations

import json

import pytest
from anthropic.types import Message
from fastapi.responses import JSONResponse

from radixlm.parsers import TextDelta, ToolArguments, ToolCallBegun, ToolCallEnded
from radixlm.server.anthropic.messages_writer import BlockWriter
from radixlm.server.http.sse import event as as_bytes
from tests import chat_templates
from tests.messages_support import BROKEN, CALL, TOOLS, USER, joined, model, send, told
from tests.published import strictly
from tests.server_support import (
    CHATML,
    NAME,
)


def test_an_answer_has_anthropic_s_shape(fake):
    answer = send(fake, system="Be kind.", metadata={"user_id": "me"}, service_tier="auto")
    found = strictly(Message, answer.text)
    assert found.id.startswith("msg_")
    assert (found.model, found.stop_reason) == (NAME, "max_tokens")
    [text] = found.content
    assert len(text.text) == 4
    again = send(fake, system="Be kind.").json()["usage"]
    before = found.usage.input_tokens
    assert (found.usage.cache_read_input_tokens, found.usage.output_tokens) == (0, 4)
    assert (again["input_tokens"], again["cache_read_input_tokens"]) == (1, before - 1)
    assert again["cache_creation_input_tokens"] == 0


def test_a_stream_tells_of_everything_that_changes(fake):
    events = told(send(fake, stream=True))
    names = [event["type"] for event in events]
    assert names[:2] == ["message_start", "content_block_start"]
    assert set(names[2:-3]) == {"content_block_delta"}
    assert names[-3:] == ["content_block_stop", "message_delta", "message_stop"]
    whole = send(fake).json()
    assert joined(events) == whole["content"]
    assert events[0]["message"]["content"] == []
    assert events[0]["message"]["usage"]["output_tokens"] == 0
    assert events[-2]["delta"] == {
        "stop_reason": "max_tokens",
        "stop_sequence": None,
        "stop_details": None,
        "container": None,
    }
    assert events[-2]["usage"]["output_tokens"] == 4


@pytest.mark.parametrize("stream", [False, True])
def test_calls_are_blocks(stream):
    with model(CALL) as client:
        answer = send(client, tools=TOOLS, max_tokens=500, stream=stream)
        if stream:
            events = told(answer)
            blocks, reason = joined(events), events[-2]["delta"]["stop_reason"]
        else:
            strictly(Message, answer.text)
            blocks, reason = answer.json()["content"], answer.json()["stop_reason"]
        text, call = blocks
        assert text["text"] == "I look."
        assert (call["name"], call["input"]) == ("get_weather", {"city": "Bern"})
        assert reason == "tool_use"
        result = {"type": "tool_result", "tool_use_id": call["id"], "content": "12 degrees"}
        messages = [
            USER,
            {"role": "assistant", "content": blocks},
            {"role": "user", "content": [result, {"type": "text", "text": "and?"}]},
        ]
        found = send(client, messages, tools=TOOLS).json()
        arguments = json.dumps(call["input"])
        function = {"name": call["name"], "arguments": arguments}
        chat = client.post(
            "/v1/chat/completions",
            messages=[
                USER,
                {
                    "role": "assistant",
                    "content": "I look.",
                    "tool_calls": [{"id": "c", "type": "function", "function": function}],
                },
                {"role": "tool", "tool_call_id": "c", "content": "12 degrees"},
                {"role": "user", "content": "and?"},
            ],
            tools=[
                {
                    "type": "function",
                    "function": {
                        "name": "get_weather",
                        "description": "The weather in a city.",
                        "parameters": TOOLS[0]["input_schema"],
                    },
                }
            ],
            max_tokens=4,
        ).json()["usage"]
        usage = found["usage"]
        prompt = usage["input_tokens"] + usage["cache_read_input_tokens"]
        assert chat["prompt_tokens"] == prompt
        assert chat["prompt_tokens_details"]["cached_tokens"] == prompt - 1


@pytest.mark.parametrize("stream", [False, True])
def test_a_call_that_is_cut_off_is_given_as_far_as_it_came(stream):
    with model(CALL) as client:
        answer = send(client, tools=TOOLS, max_tokens=62, stream=stream)
        if stream:
            events = told(answer)
            pieces = [
                event["delta"].get("partial_json", "") for event in events[:-2] if "delta" in event
            ]
            assert "".join(pieces).startswith('{"c')
            assert events[-3]["type"] == "content_block_stop"
            reason = events[-2]["delta"]["stop_reason"]
            [call] = [
                event["content_block"] for event in events if event["type"] == "content_block_start"
            ][1:]
        else:
            reason = answer.json()["stop_reason"]
            text, call = answer.json()["content"]
            assert text["text"] == "I look."
            assert call["input"] == {}
        assert (call["type"], call["name"]) == ("tool_use", "get_weather")
        assert reason == "max_tokens"


@pytest.mark.parametrize("stream", [False, True])
def test_what_the_model_breaks_is_told_once(stream):
    with model(BROKEN) as client:
        answer = send(client, tools=TOOLS, max_tokens=500, stream=stream)
        if stream:
            events = told(answer)
            reason = events[-2]["delta"]["stop_reason"]
            pieces = [event["delta"] for event in events if "delta" in event]
            call = "".join(piece.get("partial_json", "") for piece in pieces)
            rest = "".join(piece.get("text", "") for piece in pieces)
            assert (call, rest) == ('{"city": "Bern" ', "I look.or}}\n</tool_call>")
        else:
            reason = answer.json()["stop_reason"]
            before, block, after = answer.json()["content"]
            assert (block["name"], block["input"]) == ("get_weather", {"city": "Bern"})
            assert before["text"] + after["text"] == "I look.or}}\n</tool_call>"
        assert reason == "end_turn"


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    "city",
    ['"\\ud800"', "1e999", "9" * 4400, "[" * 200_000 + "]" * 200_000],
    ids=["half a pair", "infinite", "many digits", "deep"],
)
def test_arguments_that_no_answer_can_hold_are_left_out(city, stream):
    """They are JSON all the same, so the parser takes them for a call's; nobody is to make it."""
    call = ToolCallBegun(0, "c", "get_weather"), ToolArguments(0, f'{{"city": {city}}}')
    sent: list[bytes] = []
    writer = BlockWriter(lambda told: sent.append(as_bytes(told)), shows_thinking=True)
    for event in [*call, ToolCallEnded(0), TextDelta(" So.")]:
        writer.write(event)
    writer.close()
    assert not writer.called
    [block, text] = writer.blocks
    assert (block["type"], block["input"]) == ("tool_use", {})
    assert text == {"type": "text", "text": " So."}
    assert all(sent) if stream else JSONResponse(writer.blocks).body


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("display", ["summarized", "omitted"])
def test_thoughts_are_blocks_that_can_be_sent_back(stream, display):
    script = "<think>\nHm.\n</think>\n\nYes."
    with model(script, chat_templates.THINKING) as client:
        thinking = {"type": "enabled", "budget_tokens": 1024, "display": display}
        answer = send(client, max_tokens=100, stream=stream, thinking=thinking)
        blocks = joined(told(answer)) if stream else answer.json()["content"]
        thoughts, text = blocks
        assert thoughts["type"] == "thinking"
        assert thoughts["thinking"] == ("Hm." if display == "summarized" else "")
        assert text["text"] == "Yes."
        shown = {"type": "thinking", "thinking": "Hm.", "signature": "x"}
        prompts = [
            send(client, [USER, {"role": "assistant", "content": [block, text]}, USER]).json()
            for block in (thoughts, shown)
        ]
        totals = [
            each["usage"]["input_tokens"] + each["usage"]["cache_read_input_tokens"]
            for each in prompts
        ]
        assert totals[0] == totals[1]


def test_a_stop_sequence_is_named():
    with model("hello the world", CHATML) as client:
        body = send(client, max_tokens=50, stop_sequences=["x", " wor"]).json()
        assert (body["stop_reason"], body["stop_sequence"]) == ("stop_sequence", " wor")
        assert body["content"][0]["text"] == "hello the"
        body = send(client, max_tokens=50).json()
        assert (body["stop_reason"], body["stop_sequence"]) == ("end_turn", None)
