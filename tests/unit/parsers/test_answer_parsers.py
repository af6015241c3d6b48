"""Each format's parser, on answers as models write them, whole and character by character."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from itertools import count
from typing import Any

import pytest

from radixlm.parsers import Answered, AnswerParser, ToolCallEnded
from radixlm.parsers.call_format import CallFormat
from radixlm.parsers.families import HERMES, JSON, LLAMA, MISTRAL, PYTHONIC, QWEN_CODER
from radixlm.parsers.one_call import Offered
from radixlm.parsers.reader import AnswerReader
from radixlm.parsers.thoughts import THINK
from radixlm.parsers.values import as_json, is_object

TOOLS = {
    "get_weather": {"properties": {"city": {"type": "string"}, "days": {"type": "integer"}}},
    "now": {},
    "get.it": {},
}
WEATHER = '{"city": "Bern", "days": 2}'
Read = Callable[[str], Answered]


def new_ids() -> Callable[[], str]:
    numbers = count()
    return lambda: f"id{next(numbers)}"


def read(make: Callable[[], AnswerParser], text: str) -> Answered:
    """The answer, which must be the same however it comes."""
    whole, pieces = make(), make()
    answer = Answered().add([*whole.push(text), *whole.flush()])
    by_character = Answered()
    for character in text:
        by_character.add(pieces.push(character))
    assert by_character.add(pieces.flush()) == answer
    return answer


def parser_of(
    form: CallFormat | None, tools: Mapping[str, Any] = TOOLS, **more: Any
) -> AnswerReader:
    return AnswerReader(form, Offered(tools), new_ids(), **more)


def calls(form: CallFormat, text: str, most: int | None = None) -> Answered:
    return read(lambda: parser_of(form, most=most), text)


def call(name: str = "get_weather", key: str = "arguments", arguments: str = WEATHER) -> str:
    return f'{{"name": "{name}", "{key}": {arguments}}}'


def in_tags(name: str = "get_weather", **values: str) -> str:
    """As Qwen3-Coder writes it."""
    fields = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in values.items())
    return f"<tool_call>\n<function={name}>\n{fields}</function>\n</tool_call>"


FRAMES = [
    (HERMES, "<tool_call>", "</tool_call>"),
    (LLAMA, "<|python_tag|>", ""),
    (MISTRAL, "[TOOL_CALLS] [", "]"),
    (JSON, "[", "]"),
    (JSON, "", ""),
]
XML = in_tags(city="Bern", days="2")
PYTHON = "get_weather(city='Bern', days=2)"


@pytest.mark.parametrize(
    ("kind", "text", "said"),
    [
        (PYTHONIC, f"[{PYTHON}]", ""),
        (PYTHONIC, f"\n[ {PYTHON} ]\nDone.", "Done."),
        (PYTHONIC, f"<|python_start|>[{PYTHON}]<|python_end|>", ""),
        (PYTHONIC, '[get_weather( city = "Bern" , days=2,)', ""),
        (QWEN_CODER, XML, ""),
        (QWEN_CODER, f"I look.\n\n{XML}\n", "I look."),
        (QWEN_CODER, XML.replace("\n", ""), ""),
        (QWEN_CODER, XML.removesuffix("\n</tool_call>"), ""),
        (HERMES, f"<tool_call>\n{call()}\n</tool_call>", ""),
        (HERMES, f"I look.\n\n<tool_call>{call()}</tool_call>\n", "I look."),
        (HERMES, f"<tool_call>\n{call()}", ""),
        (HERMES, f"<tool_call>\n{call()[:-1]}\n</tool_call>", ""),
        (LLAMA, call(key="parameters"), ""),
        (LLAMA, f"\n\n{call(key='parameters')}", ""),
        (LLAMA, f"<|python_tag|>{call(key='parameters')}", ""),
        (LLAMA, f"I look. <|python_tag|>{call(key='parameters')}", "I look."),
        (LLAMA, '{"type": "function", ' + call(key="parameters")[1:], ""),
        (MISTRAL, f"[TOOL_CALLS] [{call()}]", ""),
        (MISTRAL, f"I look.[TOOL_CALLS][{call()}]", "I look."),
        (MISTRAL, f"[TOOL_CALLS]get_weather[ARGS]{WEATHER}", ""),
        (MISTRAL, f"[TOOL_CALLS]get_weather[CALL_ID]a1b2c3d4e[ARGS]{WEATHER}", ""),
        (MISTRAL, f"[TOOL_CALLS]get_weather{WEATHER}", ""),
        (JSON, call(), ""),
        (JSON, f" [{call()}]\n", ""),
        (JSON, f"```json\n{call()}\n```", ""),
        (JSON, f"```\n[{call()}]\n```\nDone.", "Done."),
    ],
)
def test_one_call(kind, text, said):
    answer = calls(kind, text)
    assert answer.text == said
    assert [tuple(made) for made in answer.calls] == [("id0", "get_weather", WEATHER)]


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (HERMES, f"<tool_call>{call()}</tool_call>\n<tool_call>{call('now')}</tool_call>"),
        (LLAMA, f"{call(key='parameters')}; {call('now', 'parameters')}"),
        (MISTRAL, f"[TOOL_CALLS] [{call()}, {call('now')}]"),
        (
            MISTRAL,
            f"[TOOL_CALLS]get_weather[ARGS]{WEATHER}[TOOL_CALLS]now[ARGS]{WEATHER}",
        ),
        (PYTHONIC, f"[{PYTHON}, now()]"),
        (QWEN_CODER, f"{XML}\n{in_tags('now')}"),
        (JSON, f"[{call()},\n {call('now')}]"),
        (JSON, f"{call()}\n{call('now')}\n"),
    ],
)
def test_several_calls(kind, text):
    answer = calls(kind, text)
    assert answer.text == ""
    assert [(made.id, made.name) for made in answer.calls] == [
        ("id0", "get_weather"),
        ("id1", "now"),
    ]
    [only] = calls(kind, text, most=1).calls
    assert only.name == "get_weather"


@pytest.mark.parametrize(
    ("written", "arguments"),
    [
        ('{"name": "now"}', "{}"),
        ('{"name": "now", "arguments": null}', "{}"),
        ('{"name": "now", "arguments": ""}', "{}"),
        ('{"name": "now", "arguments": "{\\"a\\": 1}"}', '{"a": 1}'),
        ('{"arguments": {"a": [{}, "\\"}"]}, "id": 7.5, "name": "now"}', '{"a": [{}, "\\"}"]}'),
        ('{ "name" : "now" , "arguments" : { } }', "{ }"),
    ],
)
def test_ways_to_write_one(written, arguments):
    [made] = calls(HERMES, f"<tool_call>{written}</tool_call>").calls
    assert (made.name, made.arguments) == ("now", arguments)


@pytest.mark.parametrize(
    "written",
    [
        "",
        "{",
        "[]",
        '{"name": "now", "arguments": [1]}',
        '{"name": "now", "arguments": "[1]"}',
        '{"name": "now", "arguments": "\\ud800"}',
        '{"name": "now", "name": "now"}',
        '{"name": 7}',
        '{"arguments": {}}',
        "{'name': 'now'}",
        '"now"',
    ],
)
@pytest.mark.parametrize(("kind", "begin", "end"), FRAMES)
def test_what_is_no_call_is_text(kind, begin, end, written):
    text = f"{begin}{written}{end} more"
    answer = calls(kind, text)
    assert answer.calls == []
    assert answer.text == text


@pytest.mark.parametrize(
    ("written", "rest"),
    [
        ('{"a": ', "x}}"),
        ('{"a": -0', "1}}"),
        ('{"a": 1.', ".5}}"),
        ('{"a": 1e+', "}}"),
        ('{"a": [{}', "}}"),
        ("{", "a: 1}}"),
    ],
)
@pytest.mark.parametrize(("kind", "begin", "end"), FRAMES)
def test_what_was_told_of_a_call_stays_one_and_what_breaks_it_is_text(
    kind, begin, end, written, rest
):
    """Nothing is told twice, whoever puts a stream's pieces together."""
    text = f'{begin}{{"name": "now", "arguments": {written}{rest}{end} more'
    answer = calls(kind, text)
    assert [made.arguments for made in answer.calls] == [written]
    assert answer.text == f"{rest}{end} more"


def test_after_a_last_brace_that_is_missing_goes_on_text():
    answer = calls(HERMES, '<tool_call>{"name": "now", "arguments": {}, x')
    assert [made.arguments for made in answer.calls] == ["{}"]
    assert answer.text == ", x"
    answer = calls(HERMES, '<tool_call>{"arguments": {}, "name": "now"</tool_call>')
    assert [made.name for made in answer.calls] == ["now"]
    assert answer.text == ""


@pytest.mark.parametrize("most", [1, None])
def test_after_one_that_is_broken_comes_another(most):
    parser = parser_of(HERMES, most=most)
    events = parser.push('a<tool_call>{"name": "now", "arguments": {"a": x}}')
    assert events[-2] == ToolCallEnded(0, whole=False)
    second = f"<tool_call>{call()}</tool_call>"
    answer = Answered().add([*events, *parser.push(second), *parser.flush()])
    made = [(made.id, made.name, made.arguments) for made in answer.calls]
    assert made[0] == ("id0", "now", '{"a": ')
    assert made[1:] == ([] if most else [("id1", "get_weather", WEATHER)])
    assert answer.text == "ax}}" + (second if most else "")


def test_arguments_come_as_they_are_written():
    parser = parser_of(HERMES)
    assert len(parser.push('<tool_call>{"name": "now", "arguments": {"a"')) == 2
    assert [event.delta for event in parser.push(': "b')] == [': "b']


def test_values_in_python():
    text = (
        """[now(a='it\\'s "so"', b=[True, None, {'c': -1.5}], d="(,)]", e='\\\\d\\x41\\n', f='')]"""
    )
    [made] = calls(PYTHONIC, text).calls
    assert json.loads(made.arguments) == {
        "a": 'it\'s "so"',
        "b": [True, None, {"c": -1.5}],
        "d": "(,)]",
        "e": "\\dA\n",
        "f": "",
    }


@pytest.mark.parametrize("text", ["'" + "\\'" * 100_000, '"\'"' * 50_000 + "'\\", "\"\\''"])
def test_a_quote_that_is_not_closed_is_looked_for_once(text):
    """Not from each quote after it again, for minutes."""
    assert as_json(text) is None


@pytest.mark.parametrize(
    "written",
    [
        *("[1] is", "[now]", "[other()]", "[now(1)]", "[now(a=)]", "[now(a=b)]", "[now(a=1 b=2)]"),
        *("[now(a=(1, 2))]", "[now(a=1e999)]", "[now(a='x)]", "now()", "[now(,)]", "[now("),
        '[now(a="\\ud800")]',
    ],
)
def test_python_that_is_no_call_is_text(written):
    answer = calls(PYTHONIC, written)
    assert (answer.calls, answer.text) == ([], written)


@pytest.mark.parametrize(
    ("written", "rest"),
    [("[now(a=1", "]"), ('[now(a=1, b="c"', ", x) it is]")],
)
def test_python_that_breaks_off_a_call(written, rest):
    answer = calls(PYTHONIC, written + rest)
    [made] = answer.calls
    assert json.loads(made.arguments + "}")["a"] == 1
    assert answer.text == rest


def test_values_in_tags_are_what_the_schema_says():
    types = {
        **{name: {"type": name} for name in ("string", "integer", "number", "boolean", "object")},
        "either": {"anyOf": [{"type": "string"}, {"$ref": "#/$defs/none"}]},
        "code": {"$ref": "#/$defs/code"},
    }
    schema = {
        "properties": types,
        "$defs": {"none": {"type": "null"}, "code": {"enum": ["7", "8"]}},
    }
    said = {
        "string": ("5\n\n", "5\n\n"),
        "integer": ("5", 5),
        "number": ("-5", -5),
        "boolean": ("True", True),
        "object": ("{'a': [1, \"b\"]}", {"a": [1, "b"]}),
        "either": ("null", None),
        "code": ("7", "7"),
        "unknown": ("[1]", [1]),
        "other": ("<b>\n</b>", "<b>\n</b>"),
    }
    text = in_tags("now", **{key: written for key, (written, _) in said.items()})
    [made] = read(lambda: parser_of(QWEN_CODER, {"now": schema}), text).calls
    assert json.loads(made.arguments) == {key: value for key, (_, value) in said.items()}


@pytest.mark.parametrize(
    "written",
    [
        "<tool_call><function=now",
        "<tool_call><function=now><parameter=>1</parameter>",
        "<tool_call><function=now><parameter=a>1</para",
    ],
)
def test_tags_that_are_no_call_are_text(written):
    answer = calls(QWEN_CODER, written)
    assert (answer.calls, answer.text) == ([], written)


@pytest.mark.parametrize(
    ("written", "arguments", "rest"),
    [
        ("<tool_call><function=get_weather><parameter=city>Be", '{"city": "Be', ""),
        ("<tool_call><function=get_weather><parameter=city>Be\n</par", '{"city": "Be', "\n</par"),
    ],
)
def test_tags_that_break_off_a_call(written, arguments, rest):
    answer = calls(QWEN_CODER, written)
    assert [made.arguments for made in answer.calls] == [arguments]
    assert answer.text == rest


def test_a_text_in_tags_comes_as_it_is_written():
    parser = parser_of(QWEN_CODER)
    begun = parser.push("<tool_call><function=get_weather><parameter=city>\n")
    assert [event.delta for event in begun[1:]] == ['{"city": "']
    assert [event.delta for event in parser.push('Be"rn\n</par')] == ['Be\\"rn']
    assert [event.delta for event in parser.push("k")] == ["\\n</park"]


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (HERMES, f"<tool_call>{call()}</tool_call>"),
        (LLAMA, call(key="parameters")),
        (MISTRAL, f"[TOOL_CALLS]get_weather[ARGS]{WEATHER}"),
        (PYTHONIC, f"[{PYTHON}]"),
        (QWEN_CODER, XML),
        (JSON, call()),
    ],
)
def test_a_call_that_is_cut_off_comes_as_far_as_it_was_written(kind, text):
    named = text.index("get_weather") + len("get_weather")
    for stop in range(named + 8, len(text)):
        whole, pieces = parser_of(kind), parser_of(kind)
        answer = Answered().add([*whole.push(text[:stop]), *whole.flush(cut=True)])
        by_character = Answered()
        for character in text[:stop]:
            by_character.add(pieces.push(character))
        assert by_character.add(pieces.flush(cut=True)) == answer
        [made] = answer.calls
        assert made.name == "get_weather"
        assert WEATHER.startswith(made.arguments)
        assert answer.text == ""


def test_what_was_no_call_before_it_was_cut_off_is_none():
    for text in (
        '<tool_call>{"name": "n',
        '<tool_call>{"arguments": {"a": 1}, "nam',
    ):
        parser = parser_of(HERMES)
        answer = Answered().add([*parser.push(text), *parser.flush(cut=True)])
        assert (answer.calls, answer.text) == ([], text)


def test_thoughts_are_kept_apart():
    def parser(opened: bool) -> Read:
        return lambda text: read(lambda: parser_of(None, thoughts=THINK, opened=opened), text)

    for opened in (False, True):
        answer = parser(opened)("<think>\nLet me see.\n</think>\n\nIt is 5.")
        assert (answer.reasoning, answer.text) == ("Let me see.", "It is 5.")
    answer = parser(True)("Let me see.</think>It is <think>.")
    assert (answer.reasoning, answer.text) == ("Let me see.", "It is <think>.")
    answer = parser(False)(" It is 5.</think>")
    assert (answer.reasoning, answer.text) == ("", " It is 5.</think>")
    answer = parser(True)("cut o </thi")
    assert (answer.reasoning, answer.text) == ("cut o </thi", "")
    assert parser(False)("<think>\n\n</think>\n\nHi.").text == "Hi."


def test_calls_after_thoughts():
    text = f"<think>\nI call <tool_call>.\n</think>\n\n<tool_call>{call()}</tool_call>"
    answer = read(lambda: parser_of(HERMES, thoughts=THINK), text)
    assert answer.reasoning == "I call <tool_call>."
    assert [made.name for made in answer.calls] == ["get_weather"]
    assert answer.text == ""


def test_objects():
    for text in ("{}", '{"a": [1, -0.5e+3, 0, 10E-05, -7.0, true, null, "\\u00e9\\n"], "b": {}}'):
        assert is_object(text)
    for text in (
        "",
        "[]",
        "1",
        "{} ",
        "{a: 1}",
        '{"a": 1.}',
        '{"a": -}',
        '{"a": 1e}',
        '{"a": +1}',
        '{"a": .5}',
        '{"a": 1,}',
        '{"a": tru}',
        '{"a": "\n"}',
        "{}}",
    ):
        assert not is_object(text)
