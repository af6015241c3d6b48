"""Events of an answer, and the whole that they join to."""

from __future__ import annotations

from radixlm.parsers import (
    Answered,
    PlainParser,
    ReasoningDelta,
    TextDelta,
    ToolArguments,
    ToolCall,
    ToolCallBegun,
    ToolCallEnded,
)


def test_events_join_to_a_whole_answer():
    answer = Answered().add([ReasoningDelta("hm"), ReasoningDelta("m"), TextDelta("I look.")])
    answer.add([ToolCallBegun(0, "a", "f"), ToolArguments(0, '{"x"'), ToolArguments(0, ":1}")])
    assert answer.calls == []
    answer.add([ToolCallEnded(0)])
    assert (answer.text, answer.reasoning) == ("I look.", "hmm")
    assert answer.calls == [ToolCall("a", "f", '{"x":1}')]


def test_a_call_that_is_cut_stays_one():
    begun = [ToolCallBegun(0, "a", "f"), ToolArguments(0, "{")]
    answer = Answered().add([*begun, ToolCallEnded(0, whole=False), TextDelta("?")])
    assert answer.calls == [ToolCall("a", "f", "{")]
    assert answer.text == "?"


def test_plain_text_is_all_text():
    parser = PlainParser()
    assert [*parser.push("a"), *parser.push(""), *parser.flush()] == [TextDelta("a")]
