"""JSON schemas that llguidance would not keep to are mended, or refused; the rest stays."""

from __future__ import annotations

import itertools
import json
import re
from typing import Any

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from radixlm.core.grammar import Grammar
from radixlm.structured_output.compiler import MAX_KEPT_BYTES, Compiler
from radixlm.structured_output.disjoint import Branches
from radixlm.structured_output.grammar_source import GrammarError, source_of
from radixlm.structured_output.matcher import Table, compile_source
from radixlm.structured_output.trial import Trial
from tests.engines import byte_tokenizer

TOKENIZER = Table.of(byte_tokenizer(), 256, (0,)).tokenizer()
CHARACTERS = [*'ab"\\/ -]^', "\n", "\t", "é", "\u2028", "🙂", "\x01"]


def accepted(grammar: Grammar, texts: list[str]) -> list[str]:
    matcher = compile_source(source_of(grammar), TOKENIZER)
    kept = []
    for text in texts:
        ids = byte_tokenizer().encode(text).tolist()
        copy = matcher.deep_copy()
        if copy.try_consume_tokens(ids) == len(ids) and copy.is_accepting():
            kept.append(text)
    return kept


def wrong(schema: Any, texts: list[str]) -> list[str]:
    """What the grammar accepts and the schema, by the library for that, does not."""
    valid = jsonschema.Draft202012Validator(schema).is_valid
    found = accepted(Grammar.json_schema(schema), texts)
    return [text for text in found if not valid(json.loads(text))]


@pytest.mark.parametrize(
    "unit",
    [
        *(
            '[^"]',
            r"[^\\]",
            r'[^\\"]',
            r"[^a\x22]",
            r"[\x00-!#-~]",
            r"[^\x00-\x08\x22]",
            '(?:[^"])',
        ),
        *(r"[^\n]", "[a-z]", r"[\s-]", r"\S", ".", r"[\\\"]", '[^]"]', r"[\x00-\x1f]", '[^"]|a'),
    ],
)
def test_patterns_are_kept(unit: str) -> None:
    for count in (1, 2):
        pattern = f"^(?:{unit}){{{count}}}$"
        texts = [
            json.dumps("".join(each), ensure_ascii=False)
            for each in itertools.product(CHARACTERS, repeat=count)
        ]
        schema = {"type": "string", "pattern": pattern}
        assert wrong(schema, texts) == []
        plain = [text for text in texts if re.search(pattern, json.loads(text))]
        if "x1f" not in unit:
            missing = {*plain} - {*accepted(Grammar.json_schema(schema), texts)}
            assert not [text for text in missing if "\\u00" not in text]


def test_patterns_are_kept_wherever_they_stand() -> None:
    inner = {"type": "string", "pattern": '^[^"]$'}
    for schema in (
        {"$ref": "#/$defs/a", "$defs": {"a": inner}},
        {"type": "array", "items": inner, "minItems": 1},
        {"type": "object", "properties": {"a": inner}, "required": ["a"]},
        {"anyOf": [inner, {"type": "null"}]},
    ):
        assert wrong(schema, [r'"\""', r'["\""]', r'{"a": "\""}']) == []
    lark = Grammar.lark(f'start: a "?"\na: %json {json.dumps(inner)}')
    assert accepted(lark, ['"\\""?', '"a"?']) == ['"a"?']


NUMBERS = ["0", "-0", "0.0", "0.5", "0.50", "0.25", "0.4999", "1", "1.0", "1.2", "-1", "-0.5", "2"]


@given(
    low=st.sampled_from([0, 1, -1, 0.5, 10, 0.25]),
    width=st.sampled_from([0.5, 0.25, 0.1, 1, 1.5]),
    lower=st.sampled_from(["minimum", "exclusiveMinimum"]),
    upper=st.sampled_from(["maximum", "exclusiveMaximum"]),
)
@settings(deadline=None, max_examples=40)
def test_bounds_are_kept(low: float, width: float, lower: str, upper: str) -> None:
    high = low + width
    schema = {"type": "number", lower: low, upper: high}
    texts = [*NUMBERS, *(repr(value) for value in (low, high, low + width / 2, -low))]
    assert wrong(schema, texts) == []
    middle = low + width / 2
    assert accepted(Grammar.json_schema(schema), [f"{middle:.{n}f}" for n in (1, 2, 3)])


@pytest.mark.parametrize("bound", [2**53 + 1, -(2**53) - 1, 2**63 - 1, 12345678901234567891])
def test_bounds_beyond_a_double_s_integers_are_kept(bound: int) -> None:
    around = [str(bound + step) for step in (-4096, -2, -1, 0, 1, 2, 4096)]
    for name in ("minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum"):
        if bound > 2**62 and name.lower().endswith("minimum"):
            continue  # which llguidance refuses
        schema = {"type": "integer", name: bound}
        assert wrong(schema, around) == []
        assert accepted(Grammar.json_schema(schema), [*around, "0"])


@pytest.mark.parametrize(
    ("schema", "says"),
    [
        ({"const": 2**53 + 1}, "9007199254740993"),
        ({"enum": ["a", {"b": [2**53 + 1]}]}, "9007199254740993"),
        ({"anyOf": [{"type": "null"}, {"const": 10**400}]}, "double"),
        ({"minimum": 10**400}, "double"),
        ({"oneOf": [{"type": "integer"}, {"type": "number"}]}, "0 and 1"),
        ({"oneOf": [{"type": "null"}, {"enum": ["a", "b"]}, {"enum": ["b", "c"]}]}, "1 and 2"),
        ({"oneOf": [{"const": 1}, {"const": 1.0}]}, "oneOf"),
        ({"oneOf": [{"type": "object"}, {"type": "object", "required": ["a"]}]}, "oneOf"),
        ({"oneOf": [{"type": "object", "required": 5}, {"type": "object"}]}, "schema"),
    ],
)
def test_what_can_not_be_kept_is_refused(schema: Any, says: str) -> None:
    with pytest.raises(GrammarError, match=says):
        compile_source(source_of(Grammar.json_schema(schema)), TOKENIZER)


def tagged(*tags: str, **more: Any) -> dict[str, Any]:
    kind = {"const": tags[0]} if len(tags) == 1 else {"enum": [*tags]}
    return {"type": "object", "properties": {"kind": kind}, "required": ["kind"], **more}


DISJOINT: list[dict[str, Any]] = [
    {"oneOf": [{"const": 1}, {"const": 2}]},
    {"oneOf": [{"const": 1}, {"const": True}, {"const": "1"}]},
    {"oneOf": [{"type": "integer", "minimum": 0}, {"type": "integer", "maximum": -1}]},
    {"oneOf": [{"type": "number", "minimum": 0}, {"type": "number", "exclusiveMaximum": 0}]},
    {"oneOf": [{"type": "string", "maxLength": 3}, {"type": "string", "minLength": 4}]},
    {"oneOf": [tagged("a"), tagged("b", "c"), {"type": ["null", "string"]}]},
    {
        "oneOf": [{"$ref": "#/$defs/a"}, {"allOf": [{"$ref": "#/$defs/b"}]}],
        "$defs": {"a": tagged("a"), "b": {"anyOf": [tagged("b"), tagged("c")]}},
    },
    {
        "oneOf": [
            {"type": "object", "required": ["a"]},
            {"type": "object", "properties": {"b": {}}, "additionalProperties": False},
        ]
    },
    {
        "oneOf": [
            {"type": "array", "items": {"type": "string"}, "minItems": 1},
            {"type": "array", "prefixItems": [{"type": "integer"}], "minItems": 1},
        ]
    },
]
ANSWERS = ["1", "2", "true", '"1"', "5", "-5", "0", '"abc"', '"abcd"', "null", "{}", "[]"]
ANSWERS += [
    '{"kind": "a"}',
    '{"kind": "b"}',
    '{"kind": "c"}',
    '{"a": 1}',
    '{"b": 1}',
    '["a"]',
    "[1]",
]


@pytest.mark.parametrize("schema", DISJOINT, ids=json.dumps)
def test_branches_that_exclude_each_other_are_taken(schema: dict[str, Any]) -> None:
    assert wrong(schema, ANSWERS) == []
    found = accepted(Grammar.json_schema(schema), ANSWERS)
    valid = jsonschema.Draft202012Validator(schema).is_valid
    assert found == [text for text in ANSWERS if valid(json.loads(text))]


leaves = st.one_of(
    st.sampled_from([{"type": t} for t in ("integer", "number", "string", "null", "boolean")]),
    st.builds(lambda v: {"const": v}, st.sampled_from([0, 1, 1.0, True, None, "a", "ab"])),
    st.builds(lambda v: {"enum": v}, st.lists(st.sampled_from([0, 2, "a", "b", None]), min_size=1)),
    st.builds(lambda a, b: {"minimum": a, "maximum": b}, st.integers(-1, 2), st.integers(-1, 2)),
    st.builds(lambda a: {"type": "string", "maxLength": a}, st.integers(0, 2)),
    st.builds(lambda a: {"minLength": a}, st.integers(0, 2)),
)
schemas = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.builds(lambda parts: {"anyOf": parts}, st.lists(inner, min_size=1, max_size=2)),
        st.builds(lambda parts: {"allOf": parts}, st.lists(inner, min_size=1, max_size=2)),
        st.builds(
            lambda a, need, more: {
                "type": "object",
                "properties": {"a": a},
                "required": need,
                "additionalProperties": more,
            },
            inner,
            st.sampled_from([[], ["a"], ["b"]]),
            st.booleans(),
        ),
        st.builds(
            lambda a, n: {"type": "array", "items": a, "minItems": n}, inner, st.integers(0, 1)
        ),
    ),
    max_leaves=4,
)
values = st.recursive(
    st.sampled_from([None, True, False, -1, 0, 1, 2, 0.5, 1.0, "", "a", "ab", "b"]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from("ab"), inner),
    max_leaves=3,
)


@pytest.mark.slow
@given(left=schemas, right=schemas, tried=st.lists(values, min_size=10, max_size=40))
@settings(deadline=None, max_examples=150)
def test_no_value_matches_both_of_what_is_said_to_exclude_each_other(
    left: Any, right: Any, tried: list[Any]
) -> None:
    if Branches({}).exclude(left, right):
        one, other = map(jsonschema.Draft202012Validator, (left, right))
        assert not [value for value in tried if one.is_valid(value) and other.is_valid(value)]


def test_what_is_kept_is_bounded_by_its_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    check, third = Trial.check, MAX_KEPT_BYTES // 3 + 1
    monkeypatch.setattr(
        Trial, "check", lambda trial, grammar: check(trial, grammar)._replace(size=third)
    )
    compiler = Compiler(byte_tokenizer(), vocab_size=256, eos_ids=(0,))
    grammars = [Grammar.regex(f"a{{{index + 1}}}") for index in range(4)]
    made = [compiler.compile(grammar) for grammar in grammars]
    again = [compiler.compile(grammar) for grammar in grammars[::-1]][::-1]
    compiler.close()
    assert [one is two for one, two in zip(made, again, strict=True)] == [False, False, True, True]


def test_the_memory_of_a_grammar_is_measured() -> None:
    compiler = Compiler(byte_tokenizer(), vocab_size=256, eos_ids=(0,))
    small = compiler.compile(Grammar.json_schema({"type": "integer"}))
    large = compiler.compile(Grammar.json_schema({"type": "integer", "multipleOf": 10_007}))
    compiler.close()
    assert large.size > 2 * small.size + 1_000_000
