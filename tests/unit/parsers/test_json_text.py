"""JSON as models write it: what is mended of it, and what is not."""

from __future__ import annotations

import json

import pytest

from radixlm.parsers import Answered
from radixlm.parsers.families import GIGACHAT, HERMES
from radixlm.parsers.one_call import Offered
from radixlm.parsers.reader import AnswerReader
from tests.unit.parsers.readings import parser_of, read


def arguments(written: str, *, cut: bool = False) -> list[str]:
    """Of the calls in an answer that is written as Hermes' models do."""
    text = f'<tool_call>{{"name": "now", "arguments": {written}'
    return [call.arguments for call in read(HERMES, text, cut=cut).calls]


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ('"a\nb\tc\x00"', "a\nb\tc\x00"),
        (r'"\ud83d\ude00"', "😀"),
        (r'"\ud83d"', "\ufffd"),
        (r'"\ude00x"', "\ufffdx"),
        (r'"\ud83d\ud83d\ude00"', "\ufffd😀"),
        (r'"\\ud83d"', r"\ud83d"),
    ],
)
def test_control_characters_and_half_surrogates_are_mended(written, value):
    [made] = arguments('{"a": ' + written + "}}</tool_call>")
    assert json.loads(made.encode()) == {"a": value}


def test_what_was_mended_before_a_call_is_no_part_of_it():
    """The place of the line break in a key stayed, and with it was written into another call."""
    broken = '<tool_call>{"id": "' + "x" * 30 + '", "na\nme": 1}</tool_call>'
    whole = '<tool_call>{"name": "now", "arguments": {"a": "some words"}}</tool_call>'
    assert [call.arguments for call in read(HERMES, broken + whole).calls] == [
        '{"a": "some words"}'
    ]


def test_a_marker_with_a_line_break_may_stand_in_a_text():
    call = GIGACHAT.begin + '{"name": "now", "arguments": {"a": "x' + GIGACHAT.begin + '"}}'
    [made] = read(GIGACHAT, call).calls
    assert json.loads(made.arguments) == {"a": "x" + GIGACHAT.begin}


@pytest.mark.parametrize(
    ("written", "made"),
    [
        ('{"a": 1}</tool_call>', '{"a": 1}'),
        ('{"a": {"b": [1</tool_call>', '{"a": {"b": [1]}}'),
        ('{"a": "x"</tool_call>', '{"a": "x"}'),
        ('{"a": "x"', '{"a": "x"}'),
    ],
)
def test_missing_braces_are_closed_where_the_call_ends(written, made):
    assert arguments(written) == [made]


@pytest.mark.parametrize("written", ['{"a": 1', '{"a": {"b": "x"', '{"a": [true', '{"a": "x'])
def test_where_more_may_have_been_meant_nothing_is_closed(written):
    """Of a number at the answer's end nobody knows the other digits."""
    [made] = arguments(written)
    assert made.rstrip() == written
    if "x" in written or "true" in written:
        assert arguments(written, cut=True) == [written]


def test_an_end_marker_in_a_text_ends_no_call():
    text = '{"a": "not </tool_call> yet"}}</tool_call>'
    assert arguments(text) == ['{"a": "not </tool_call> yet"}']


def test_where_a_grammar_held_the_answer_nothing_is_mended():
    parser = AnswerReader(HERMES, Offered({"now": {}}, mends=False), lambda: "id")
    text = '<tool_call>{"name": "now", "arguments": {"a": "x\n"}}</tool_call>'
    answer = Answered().add([*parser.push(text), *parser.flush()])
    assert [call.arguments for call in answer.calls] == ['{"a": "x']


def test_many_ends_within_a_text_are_looked_for_once():
    """Not up to the text's end again from each."""
    inner = '</tool_call>\\"x' * 60_000
    parser = parser_of(HERMES)
    text = f'<tool_call>{{"name": "now", "arguments": {{"a": "{inner}"}}}}</tool_call>'
    [made] = Answered().add([*parser.push(text), *parser.flush()]).calls
    assert json.loads(made.arguments)["a"].count('"x') == 60_000
