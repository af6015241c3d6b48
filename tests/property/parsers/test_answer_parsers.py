"""Parsers of answers: the pieces make no difference, and no text is lost."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import count

from hypothesis import given
from hypothesis import strategies as st

from radixlm.parsers import (
    Answered,
    AnswerEvent,
    AnswerParser,
    ReasoningDelta,
    TextDelta,
    ToolArguments,
    ToolCallEnded,
)
from radixlm.parsers.formats import PythonicParser, QwenCoderParser
from radixlm.parsers.json_formats import (
    HermesParser,
    JsonParser,
    LlamaParser,
    MistralParser,
    is_object,
)
from radixlm.parsers.steps import ReasoningParser
from radixlm.parsers.tool_calls import CallParser

TOOLS = {"f": {"properties": {"a": {"type": "string"}}}, "get.it": {}}
FORMATS = (HermesParser, LlamaParser, MistralParser, PythonicParser, QwenCoderParser, JsonParser)
# What answers are put together from: calls and what is almost one, markers and parts of them.
OBJECTS = (
    '{"name": "f", "arguments": {"a": [1, "}"]}}',
    '{"arguments": {"é": -1.5e3}, "name": "f"}',
    '{"name": "get.it", "type": "function", "parameters": {"b": null}}',
    '{"name": "f", "arguments": "{\\"a\\": 1}"}',
    '{"name": "f", "arguments": {"a": 1}',
    '{"name": "f", "arguments": {"a": x}}',
    '{"name": "f", "arguments": {"a',
    '{"name": "f", "name": "f"}',
    '{"name": "f", "arguments": "\\ud800"}',
    '{"name": "g"}',
    '{"name": "f"}',
)
MARKERS = (
    *("<tool_call>", "</tool_call>", "[TOOL_CALLS]", "[ARGS]", "<|python_tag|>", "f[ARGS]{}"),
    *("```json", "```", "<think>", "</think>", "[TOOL_CALLS]get.it[CALL_ID]7[ARGS]", "[", "]"),
)
FIELDS = (
    *(
        "[f(a='x', b=[1, None]), get.it()]",
        '[f(a="\\u00e9\'", a=1)]',
        "[f(",
        "get.it(b={'c': ')'})",
    ),
    *("<tool_call>\n<function=f>\n", "<function=get.it>", "</function>\n</tool_call>"),
    *("<parameter=a>\n", "<parameter=b>", "\n</parameter>\n", "</par", "<|python_start|>["),
)
PARTS = (" ", "\n", "\n\n", ",", ";", "{", "}", "<", "<tool", "f{}", '"', "\\", "\u2003", "🙂")
fragments = (
    st.sampled_from(OBJECTS)
    | st.sampled_from(MARKERS)
    | st.sampled_from(FIELDS)
    | st.sampled_from(PARTS)
    | st.text(max_size=3)
)
answers = st.lists(fragments, max_size=12).map("".join)


def makers() -> st.SearchStrategy[Callable[[], AnswerParser]]:
    """Parsers of every format, with and without thoughts before."""

    def maker(
        kind: type[CallParser], most: int | None, opened: bool | None
    ) -> Callable[[], AnswerParser]:
        def make() -> AnswerParser:
            numbers = count()
            calls = kind(TOOLS, lambda: f"id{next(numbers)}", most=most)
            return calls if opened is None else ReasoningParser(calls, opened=opened)

        return make

    return st.builds(
        maker, st.sampled_from(FORMATS), st.sampled_from([None, 1]), st.sampled_from([None, 0, 1])
    )


def joined(events: list[AnswerEvent]) -> list[AnswerEvent]:
    """Neighbours of one kind made one."""
    made: list[AnswerEvent] = []
    for event in events:
        match made[-1:], event:
            case [TextDelta(before)], TextDelta(text):
                made[-1] = TextDelta(before + text)
            case [ReasoningDelta(before)], ReasoningDelta(text):
                made[-1] = ReasoningDelta(before + text)
            case [ToolArguments(call, before)], ToolArguments(same, text) if call == same:
                made[-1] = ToolArguments(call, before + text)
            case _:
                made.append(event)
    return made


def events_of(parser: AnswerParser, pieces: list[str], *, cut: bool = False) -> list[AnswerEvent]:
    return [event for piece in pieces for event in parser.push(piece)] + parser.flush(cut=cut)


@given(make=makers(), text=answers, cut=st.booleans(), data=st.data())
def test_pieces_make_no_difference(
    make: Callable[[], AnswerParser], text: str, cut: bool, data: st.DataObject
) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=8)))
    pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    whole = events_of(make(), [text], cut=cut)
    assert joined(events_of(make(), pieces, cut=cut)) == joined(whole)
    assert joined(events_of(make(), list(text), cut=cut)) == joined(whole)


@given(make=makers(), text=answers)
def test_nothing_is_lost_and_calls_are_calls(make: Callable[[], AnswerParser], text: str) -> None:
    events = events_of(make(), [text])
    answer = Answered().add(events)
    given = "".join(text.split())
    ends = [event for event in events if isinstance(event, ToolCallEnded)]
    for call, end in zip(answer.calls, ends, strict=True):
        assert call.name in TOOLS
        assert is_object(call.arguments) is end.whole
        if end.whole:
            assert isinstance(json.loads(call.arguments), dict)
    if not answer.calls and not answer.reasoning and "<think>" not in text:
        assert "".join(answer.text.split()) in (given, given.replace("</think>", "", 1))


@given(
    before=st.text(alphabet="ab {[\n<", max_size=9),
    between=st.text(alphabet="ab }]\n<;,", max_size=9),
    arguments=st.dictionaries(
        st.text(max_size=4), st.text(max_size=4) | st.lists(st.integers()), max_size=3
    ),
)
def test_text_around_calls_survives(
    before: str, between: str, arguments: dict[str, object]
) -> None:
    call = f"<tool_call>{json.dumps({'name': 'f', 'arguments': arguments})}</tool_call>"
    parser = HermesParser(TOOLS, lambda: "id")
    answer = Answered().add(events_of(parser, [f"{before}{call}{between}{call}x"]))
    assert answer.text == before.rstrip() + between.strip() + "x"
    assert [json.loads(made.arguments) for made in answer.calls] == [arguments, arguments]
