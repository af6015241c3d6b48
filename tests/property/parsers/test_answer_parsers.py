"""Parsers of answers: the pieces make no difference, and no text is lost."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from itertools import count

from hypothesis import example, given, settings
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
from radixlm.parsers.call_format import CallFormat, Written
from radixlm.parsers.families import HERMES
from radixlm.parsers.formats import FORMATS
from radixlm.parsers.harmony import MARKERS as HARMONY_MARKERS
from radixlm.parsers.harmony import HarmonyReader
from radixlm.parsers.one_call import Offered
from radixlm.parsers.reader import AnswerReader
from radixlm.parsers.thoughts import HUNYUAN, THINK, Thoughts
from radixlm.parsers.values import is_object

TOOLS = {"f": {"properties": {"a": {"type": "string"}}}, "get.it": {}}
DISTINCT = tuple(dict.fromkeys(FORMATS.values()))
# Calls and what is almost one, markers and parts of them.
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
    *(
        "```json",
        "```",
        "<think>",
        "</think>",
        "<answer>",
        "</answer>",
        "[TOOL_CALLS]get.it[CALL_ID]7[ARGS]",
        "[",
        "]",
    ),
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
VALUES = ({}, {"a": "x y"}, {"a": "</parameter> and\n"}, {"b": [1, {"c": None}], "a": "é"})


def fragments_of(form: CallFormat) -> st.SearchStrategy[str]:
    """What answers are put together from: the format's own calls and markers, and others'."""
    calls = [form.write([Written("f", values), Written("get.it", {})]) for values in VALUES]
    markers = [*filter(None, form.literals()), *(HARMONY_MARKERS if form.channels else ())]
    return (
        st.sampled_from(calls)
        | st.sampled_from(markers or ["{"])
        | st.sampled_from(OBJECTS)
        | st.sampled_from(MARKERS)
        | st.sampled_from(FIELDS)
        | st.sampled_from(PARTS)
        | st.text(max_size=3)
    )


def answers_in(form: CallFormat) -> st.SearchStrategy[str]:
    return st.lists(fragments_of(form), max_size=12).map("".join)


forms = st.sampled_from(DISTINCT)
thinking = st.sampled_from([None, THINK, HUNYUAN])


def maker_of(
    form: CallFormat, most: int | None, thoughts: Thoughts | None, opened: bool, mends: bool
) -> Callable[[], AnswerParser]:
    def make() -> AnswerParser:
        numbers = count()
        offered = Offered(TOOLS, mends=mends)

        def new_id() -> str:
            return f"id{next(numbers)}"

        if form.channels:
            return HarmonyReader(offered, new_id, most=most)
        return AnswerReader(form, offered, new_id, thoughts=thoughts, opened=opened, most=most)

    return make


def with_each_once_less(text: str, tags: Iterable[str]) -> set[str]:
    """The text, and what is left without one of some tags, or of each."""
    made = {text}
    for tag in filter(None, tags):
        places = [
            (each, at) for each in made for at in range(len(each)) if each[at:].startswith(tag)
        ]
        made |= {each[:at] + each[at + len(tag) :] for each, at in places}
    return made


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


@given(
    form=forms,
    most=st.sampled_from([None, 1]),
    thoughts=thinking,
    opened=st.booleans(),
    mends=st.booleans(),
    cut=st.booleans(),
    data=st.data(),
)
@settings(max_examples=300)
def test_pieces_make_no_difference(
    form: CallFormat,
    most: int | None,
    thoughts: Thoughts | None,
    opened: bool,
    mends: bool,
    cut: bool,
    data: st.DataObject,
) -> None:
    make = maker_of(form, most, thoughts, opened, mends)
    text = data.draw(answers_in(form))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=8)))
    pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    whole = events_of(make(), [text], cut=cut)
    assert joined(events_of(make(), pieces, cut=cut)) == joined(whole)
    assert joined(events_of(make(), list(text), cut=cut)) == joined(whole)


@given(
    written=forms.flatmap(lambda form: st.tuples(st.just(form), answers_in(form))),
    thoughts=thinking,
    opened=st.booleans(),
    mends=st.booleans(),
)
@example(written=(HERMES, "</think></think>"), thoughts=THINK, opened=True, mends=True)
@example(written=(HERMES, "A</answer></answer>"), thoughts=HUNYUAN, opened=False, mends=True)
@settings(max_examples=300)
def test_nothing_is_lost_and_calls_are_calls(
    written: tuple[CallFormat, str], thoughts: Thoughts | None, opened: bool, mends: bool
) -> None:
    form, text = written
    events = events_of(maker_of(form, None, thoughts, opened, mends)(), [text])
    answer = Answered().add(events)
    given = "".join(text.split())
    ends = [event for event in events if isinstance(event, ToolCallEnded)]
    for call, end in zip(answer.calls, ends, strict=True):
        assert mends or call.name in TOOLS
        assert is_object(call.arguments) is end.whole
        if end.whole:
            assert isinstance(json.loads(call.arguments), dict)
    markers = (form.plain.strip() or "\0", *(HARMONY_MARKERS if form.channels else ()))
    if not answer.calls and not any(word in text for word in markers):
        tags = [] if thoughts is None or form.channels else map(str.strip, thoughts.literals)
        said = "".join((answer.reasoning + answer.text).split())
        assert said in with_each_once_less(given, tags)


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
    parser = AnswerReader(HERMES, Offered(TOOLS), lambda: "id")
    answer = Answered().add(events_of(parser, [f"{before}{call}{between}{call}x"]))
    assert answer.text == before.rstrip() + between.strip() + "x"
    assert [json.loads(made.arguments) for made in answer.calls] == [arguments, arguments]
