"""The grammars of answers that call tools: what they allow, and that parsers read it as calls."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import llguidance
import pytest
from jsonschema import Draft202012Validator

from radixlm.core.errors import InvalidRequestError
from radixlm.core.grammar import Grammar
from radixlm.parsers import Answered
from radixlm.parsers.call_format import CallFormat, FieldCall, Written
from radixlm.parsers.families import HERMES, JSON, LLAMA, PYTHONIC, QWEN_CODER
from radixlm.parsers.formats import FORMATS
from radixlm.parsers.style import AnswerStyle
from radixlm.parsers.thoughts import ALWAYS, THINK, Thoughts
from radixlm.parsers.tools import ANY_TYPE, Calling, Tool, ToolUse, types_of
from radixlm.text.tokenizer import Tokenizer
from tests.text_samples import byte_level

MARKERS = (
    *("<tool_call>", "</tool_call>", "[TOOL_CALLS]", "[ARGS]", "<|python_tag|>"),
    *("<think>", "</think>", "<|tool_call_begin|>", "<|tool_calls_section_begin|>"),
    *("<|tool_call>", '<|"|>', "<｜tool▁calls▁begin｜>", "<｜tool▁sep｜>", "｜DSML｜", "<arg_key>"),
)
SCHEMA = {
    "type": "object",
    "properties": {"a": {"$ref": "#/$defs/number"}},
    "required": ["a"],
    "additionalProperties": False,
    "$defs": {"number": {"type": "integer"}},
}
STRICT = (Tool("f", SCHEMA, strict=True), Tool("fg", {"type": "object"}))
LOOSE = (Tool("f", SCHEMA), Tool("fg", {"type": "object"}))


def in_tags(name: str, fields: str = "") -> str:
    """As Qwen3-Coder writes it."""
    return f"<tool_call>\n<function={name}>\n{fields}</function>\n</tool_call>"


ONE, OTHER, SECOND = Written("f", {"a": 1}), Written("f", {"b": 1}), Written("fg", {})
# Of each format: a call of f as it must be, one with other arguments, and two calls.
WRITTEN = {
    name: (form, form.write([ONE]), form.write([OTHER]), form.write([ONE, SECOND]))
    for form, name in {form: name for name, form in reversed(FORMATS.items())}.items()
    if not form.channels
}


class _Wrapped:
    """The tokenizer in the form in which llguidance takes one."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.eos_token_id = tokenizer.token_id("<|end|>")
        self.bos_token_id = None
        self.tokens = [tokenizer.token_bytes(token) for token in range(tokenizer.vocab_size)]
        self.special_token_ids = sorted(tokenizer.special_ids)

    def __call__(self, text: Any) -> list[int]:
        if isinstance(text, bytes):
            raise TypeError
        return []


@cache
def tokenizer_with(special: tuple[str, ...]) -> tuple[Tokenizer, llguidance.LLTokenizer]:
    backend = byte_level()
    backend.add_special_tokens(list(special))
    tokenizer = Tokenizer(backend, {})
    wrapped = llguidance.TokenizerWrapper(_Wrapped(tokenizer))
    return tokenizer, llguidance.LLTokenizer(wrapped, n_vocab=tokenizer.vocab_size)


def allows(grammar: Grammar, special: tuple[str, ...], text: str) -> bool:
    tokenizer, made = tokenizer_with(special)
    matcher = llguidance.LLMatcher(made, grammar.text, log_level=0)
    assert not matcher.is_error(), matcher.get_error()
    ids = tokenizer.encode(text, add_special_tokens=False).tolist()
    return matcher.try_consume_tokens(ids) == len(ids) and matcher.is_accepting()


@pytest.fixture(params=[(), MARKERS], ids=["text", "special"])
def special(request: pytest.FixtureRequest) -> tuple[str, ...]:
    """Which markers are special tokens."""
    found: tuple[str, ...] = request.param
    return found


def grammar_of(
    form: CallFormat,
    use: ToolUse,
    special: tuple[str, ...],
    thinking: Thoughts | None = None,
    prompt: str = "",
) -> Grammar:
    grammar = AnswerStyle(form, thinking).grammar(use, prompt, tokenizer_with(special)[0])
    assert grammar is not None
    return grammar


def takes_several(form: CallFormat) -> bool:
    return form.join is not None or form.again is not None


@pytest.mark.parametrize(("form", "call", "other", "both"), WRITTEN.values(), ids=WRITTEN)
class TestFormats:
    def test_required(self, form, call, other, both, special):
        for tools in (STRICT, LOOSE):
            grammar = grammar_of(form, ToolUse(tools, Calling.REQUIRED), special)
            assert allows(grammar, special, call)
            assert allows(grammar, special, both) is takes_several(form)
            for text in (other, "Hello.", f"Hello. {call}", "", call + call[:1]):
                assert not allows(grammar, special, text), text

    def test_one_at_most(self, form, call, other, both, special):
        for calling in (Calling.REQUIRED, Calling.AUTO):
            grammar = grammar_of(form, ToolUse(LOOSE, calling, parallel=False), special)
            assert allows(grammar, special, call)
            assert not allows(grammar, special, both)
            known_only = isinstance(form.call, FieldCall) and "{key}" in form.call.value_end
            assert allows(grammar, special, other) is (calling is Calling.AUTO and not known_only)

    def test_strict(self, form, call, other, both, special):
        grammar = grammar_of(form, ToolUse(STRICT, Calling.AUTO), special)
        for text in (call, "Hello.", "", "Hello {", "[1] says", "```py"):
            assert allows(grammar, special, text), text
        assert not allows(grammar, special, other)
        assert allows(grammar, special, f"Hi. {call}\nMore.")
        # Without a marker that is no call, but text.
        assert allows(grammar, special, f"Hi. {other}") is (not form.begin)

    def test_none(self, form, call, other, both, special):
        grammar = grammar_of(form, ToolUse(LOOSE, Calling.NONE), special)
        assert allows(grammar, special, "Hello {")
        for text in (call, both):
            assert not allows(grammar, special, text)

    def test_what_is_allowed_is_read_as_calls(self, form, call, other, both, special):
        parser = AnswerStyle(form).parser(ToolUse(LOOSE, Calling.REQUIRED), "")
        answer = Answered().add([*parser.push(both), *parser.flush()])
        assert [made.name for made in answer.calls] == ["f", "fg"]
        assert answer.text == ""


@pytest.mark.slow
@pytest.mark.parametrize(("form", "call", "other", "both"), WRITTEN.values(), ids=WRITTEN)
@pytest.mark.parametrize(
    ("wanted", "followed", "not_followed"),
    [
        (Grammar.json_schema(SCHEMA), '{"a": 7}', '{"a": "7"}'),
        (Grammar.json_schema({"type": "array"}), "[7]", "7"),
        (Grammar.regex(r"a\/b/c\n"), "a/b/c\n", "a/b"),
        (Grammar.regex("a\nb"), "a\nb", "ab"),
        (Grammar.lark('start: foo "c"\nfoo: /[ab]+/'), "abc", "ab"),
    ],
)
def test_what_is_wanted_comes_instead_of_text(
    form, call, other, both, wanted, followed, not_followed, special
):
    tokenizer, _ = tokenizer_with(special)
    style = AnswerStyle(form)
    grammar = style.grammar(ToolUse(STRICT, Calling.AUTO), "", tokenizer, wanted)
    for text in (followed, call):
        assert allows(grammar, special, text), text
    assert allows(grammar, special, both) is takes_several(form)
    for text in (not_followed, other, f"Hi. {call}"):
        assert not allows(grammar, special, text), text
    thinking = AnswerStyle(form, THINK).grammar(ToolUse(), "", tokenizer, wanted)
    for text in (followed, f"<think>\nHm.\n</think>\n\n{followed}"):
        assert allows(thinking, special, text)
    assert not allows(thinking, special, call)
    assert style.grammar(ToolUse(), "", tokenizer, wanted) is wanted
    required = style.grammar(ToolUse(LOOSE, Calling.REQUIRED), "", tokenizer, wanted)
    assert allows(required, special, call)
    assert not allows(required, special, followed)


@pytest.mark.parametrize(
    ("wanted", "why"),
    [(Grammar.lark('root ::= "a"', param="ebnf"), "Lark"), (Grammar.json_schema("{"), "no JSON")],
)
def test_what_can_not_stand_within_a_grammar_says_so(wanted, why):
    tokenizer, _ = tokenizer_with(())
    with pytest.raises(InvalidRequestError, match=why) as caught:
        AnswerStyle(JSON).grammar(ToolUse(LOOSE, Calling.AUTO), "", tokenizer, wanted)
    assert caught.value.param == wanted.param


def test_only_strict_schemas_must_be_followed_in_all_they_say():
    odd = {"type": "object", "properties": {"a": {"type": "array", "uniqueItems": True}}}
    use = ToolUse((Tool("f", odd),), Calling.REQUIRED)
    assert allows(grammar_of(JSON, use, ()), (), '{"name": "f", "arguments": {"a": [1, 1]}}')
    strict = ToolUse((Tool("f", odd, strict=True),), Calling.REQUIRED)
    with pytest.raises(AssertionError, match="uniqueItems"):
        allows(grammar_of(JSON, strict, ()), (), "")


def test_what_needs_no_grammar_has_none():
    tokenizer, _ = tokenizer_with(())
    for use in (ToolUse(), ToolUse(LOOSE, Calling.AUTO)):
        assert AnswerStyle(HERMES).grammar(use, "", tokenizer) is None


@pytest.mark.parametrize(
    ("thinking", "prompt", "with_thoughts", "without"),
    [
        (None, "<think>", False, True),
        (THINK, "", True, True),
        (THINK, "<think>", True, False),
        (ALWAYS, "", True, False),
    ],
)
def test_thoughts_come_before_calls(thinking, prompt, with_thoughts, without, special):
    use = ToolUse(LOOSE, Calling.REQUIRED)
    grammar = grammar_of(HERMES, use, special, thinking, prompt)
    _, call, *_ = WRITTEN["hermes"]
    assert allows(grammar, special, f"<think>\nI {{look}}.\n</think>\n\n{call}") is with_thoughts
    assert allows(grammar, special, call) is without
    opened = prompt == "<think>" or thinking is ALWAYS
    assert allows(grammar, special, f"I look.\n</think>{call}") is (opened and with_thoughts)


@pytest.mark.parametrize(
    ("form", "text"),
    [
        (PYTHONIC, "<|python_start|>[f(b=1)]<|python_end|>"),
        (LLAMA, '<|python_tag|>{"name": "f", "parameters": {"b": 1}}'),
        (LLAMA, 'Hi.<|python_tag|>{"name": "f", "parameters": {"b": 1}}'),
    ],
)
def test_other_ways_to_begin_a_call_are_no_text(form, text):
    """Where the markers are no special tokens, which are never text."""
    parser = AnswerStyle(form).parser(ToolUse(STRICT, Calling.AUTO), "")
    assert Answered().add([*parser.push(text), *parser.flush()]).calls
    assert not allows(grammar_of(form, ToolUse(STRICT, Calling.AUTO), ()), (), text)


DEFINED = {
    "Mode": {"enum": ["fast", "slow"], "type": "string", "title": "Mode"},
    "Text": {"type": "string"},
    "Many": {"type": "array", "items": {"$ref": "#/$defs/Mode"}},
    "Ring": {"$ref": "#/$defs/Ring"},
}


def tool_with(schema: Any) -> Tool:
    parameters = {
        "type": "object",
        "properties": {"a": schema, "b": {"type": "boolean"}},
        "required": ["a"],
        "additionalProperties": False,
        "$defs": DEFINED,
    }
    return Tool("f", parameters, strict=True)


@pytest.mark.parametrize(
    ("schema", "followed", "not_followed"),
    [
        ({"type": "string"}, ["x", "", "two\nlines", "7", '"'], []),
        ({"type": ["string", "null"]}, ["x", "null"], []),
        ({"anyOf": [{"type": "string"}, {"type": "null"}], "default": None}, ["x", "null"], []),
        ({"$ref": "#/$defs/Text"}, ["x", "7"], []),
        ({"enum": ["fast", None, 7]}, ["fast", "null", "7"], ["x", '"fast"', ""]),
        ({"$ref": "#/$defs/Mode"}, ["fast", "slow"], ["x", ""]),
        ({"anyOf": [{"$ref": "#/$defs/Mode"}, {"type": "null"}]}, ["slow", "null"], ["x", "7"]),
        ({"anyOf": [{"const": "x"}, {"const": 7}]}, ["x", "7"], ["8"]),
        ({"oneOf": [{"const": "x", "title": "X"}, {"const": "y"}]}, ["x", "y"], ["8"]),
        ({"anyOf": [{"type": "integer"}, {"type": "null"}]}, ["7", "null"], ["x", "7.5"]),
        ({"$ref": "#/$defs/Many"}, ['["fast"]', "[]"], ["fast", '["x"]']),
        ({"$ref": "#/$defs/Ring"}, [], ["", "x"]),
    ],
)
def test_arguments_in_tags_follow_their_schemas(schema, followed, not_followed):
    """And are read as values that are valid by them."""
    tool = tool_with(schema)
    use = ToolUse((tool,), Calling.REQUIRED)
    if not followed:
        with pytest.raises(InvalidRequestError, match="can not be followed"):
            grammar_of(QWEN_CODER, use, ())
        return
    grammar = grammar_of(QWEN_CODER, use, ())
    for value in followed:
        text = in_tags("f", f"<parameter=a>\n{value}\n</parameter>\n")
        assert allows(grammar, (), text), value
        parser = AnswerStyle(QWEN_CODER).parser(use, "")
        [call] = Answered().add([*parser.push(text), *parser.flush()]).calls
        Draft202012Validator(tool.parameters).validate(json.loads(call.arguments))
    for value in not_followed:
        text = in_tags("f", f"<parameter=a>\n{value}\n</parameter>\n")
        assert not allows(grammar, (), text), value


def test_schemas_that_refer_to_each_other_end():
    """Followed again at each place, these would be 10 ** 16 ones."""
    again = {"anyOf": [{"$ref": f"#/$defs/{name}"} for name in "ab" * 5]}
    root = {"$defs": {"a": again, "b": again}}
    assert types_of(again, root) == ANY_TYPE
    many = {f"d{place}": {"$ref": f"#/$defs/d{place + 1}"} for place in range(5_000)}
    assert types_of({"$ref": "#/$defs/d0"}, {"$defs": many}) == ANY_TYPE
    last = {"$defs": {**many, "d500": {"type": "string"}}}
    assert types_of({"$ref": "#/$defs/d0"}, last) == {"string"}


@pytest.mark.parametrize("form", [PYTHONIC, QWEN_CODER])
def test_arguments_one_by_one_stand_in_the_schema_s_order(form):
    fields = {"a": "1", "b": "true"}
    tagged = {key: f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in fields.items()}

    def written(*keys: str) -> str:
        if form is QWEN_CODER:
            return in_tags("f", "".join(tagged[key] for key in keys))
        return "[f(" + ", ".join(f"{key}={fields[key]}" for key in keys) + ")]"

    use = ToolUse((tool_with({"type": "integer"}),), Calling.REQUIRED)
    grammar = grammar_of(form, use, ())
    assert allows(grammar, (), written("a", "b"))
    assert allows(grammar, (), written("a"))
    for keys in ((), ("b",), ("b", "a"), ("a", "a")):
        assert not allows(grammar, (), written(*keys)), keys


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "string", "pattern": "a+"},
        {"type": "string", "minLength": 2},
        {"type": ["string", "integer"]},
        {"anyOf": [{"type": "string"}, {"type": "array"}]},
        {"anyOf": [{"type": "string", "maxLength": 2}, {"type": "null"}]},
        {"$ref": "#/$defs/Nothing"},
        False,
        {"enum": ["x", "xx"], "maxLength": 1},
        {"anyOf": [{"const": "x"}, {"const": "y"}], "not": {"const": "y"}},
        {"oneOf": [{"enum": ["x", "y"]}, {"enum": ["y", "z"]}]},
    ],
)
def test_texts_in_tags_have_a_type_or_values_and_no_more(schema):
    for strict in (True, False):
        tool = Tool("f", tool_with(schema).parameters, strict=strict)
        use = ToolUse((tool,), Calling.REQUIRED)
        if strict:
            with pytest.raises(InvalidRequestError, match="can not be followed"):
                grammar_of(QWEN_CODER, use, ())
        else:
            text = in_tags("f", "<parameter=a>\nx\n</parameter>\n")
            assert allows(grammar_of(QWEN_CODER, use, ()), (), text)
        assert grammar_of(PYTHONIC, use, ())


@pytest.mark.parametrize("form", [PYTHONIC, QWEN_CODER])
def test_names_that_a_form_can_not_hold_are_refused_where_they_must_be_followed(form):
    odd = {"type": "object", "properties": {"a b": {}, "c": {}}, "required": ["a b"]}
    strict = ToolUse((Tool("f", odd, strict=True),), Calling.REQUIRED)
    with pytest.raises(InvalidRequestError, match="an argument named 'a b'"):
        grammar_of(form, strict, ())
    grammar = grammar_of(form, ToolUse((Tool("f", odd),), Calling.REQUIRED), ())
    assert allows(grammar, (), form.write([Written("f", {"c": 1})]))


@pytest.mark.parametrize("calling", Calling)
def test_a_prompt_that_opened_the_calls_is_answered_without_their_opening(calling):
    style, use = AnswerStyle(FORMATS["functionary"]), ToolUse(STRICT, calling)
    grammar = style.grammar(use, "assistant\n>>>", tokenizer_with(())[0])
    assert grammar is not None
    calls, text = 'f\n{"a": 1}>>>fg\n{}', "all\nHello."
    assert allows(grammar, (), calls) is (calling is not Calling.NONE)
    assert allows(grammar, (), text) is (calling is not Calling.REQUIRED)
    for written, said in ((calls, ""), (text, "Hello.")):
        if allows(grammar, (), written):
            parser = style.parser(use, "assistant\n>>>")
            answer = Answered().add([*parser.push(written), *parser.flush()])
            assert (answer.text, len(answer.calls)) == (said, 0 if said else 2)


def test_an_answer_that_may_not_think_or_whose_prompt_has_is_without_thoughts(special):
    call = '<tool_call>\n{"name": "f", "arguments": {"a": 7}}\n</tool_call>'
    for use, answer in ((ToolUse(STRICT, Calling.REQUIRED), call), (ToolUse(), '{"a": 7}')):
        wanted = None if use.tools else Grammar.json_schema(SCHEMA)
        tokenizer, _ = tokenizer_with(special)
        for prompt, thinks, thoughts in (
            ("", True, True),
            ("<think>\n\n</think>\n\n", True, False),
            ("", False, False),
        ):
            style = AnswerStyle(HERMES, THINK)
            grammar = style.grammar(use, prompt, tokenizer, wanted, thinks=thinks)
            assert allows(grammar, special, answer)
            assert allows(grammar, special, f"<think>\nHm.\n</think>\n\n{answer}") is thoughts


def test_values_that_a_strict_schema_leaves_open_are_any():
    tool = Tool("f", {"type": "object", "properties": {}}, strict=True)
    grammar = grammar_of(FORMATS["gemma4"], ToolUse((tool,), Calling.REQUIRED), ())
    call = FORMATS["gemma4"].write([Written("f", {"a": {"b": [1, "x"]}})])
    assert allows(grammar, (), call)
