"""Schemas that need not be followed whole: what can not be followed of them is passed over, and the
rest is followed.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from radixlm.core.errors import InvalidRequestError
from radixlm.core.grammar import JSON_STYLE, Grammar
from radixlm.structured_output.compiler import Compiler
from radixlm.structured_output.grammar_source import GrammarError, source_of
from radixlm.structured_output.matcher import Table, compile_source
from radixlm.structured_output.trial import Trial
from tests.engines import byte_tokenizer

TABLE = Table.of(byte_tokenizer(), 256, (0,))
TOKENIZER = TABLE.tokenizer()
LOOK_AHEAD = r"^(?!\.)[a-z]+$"
A, B = ({"type": "object", "properties": {name: {"type": "string"}}} for name in "ab")
DEEP: dict[str, Any] = {"type": "string"}
for _ in range(100):
    DEEP = {"type": "object", "properties": {"x": DEEP}}


def grammar(schema: Any, *, lenient: bool = True) -> Grammar:
    """Of arguments x, which are of the schema, and y, a number from 1 to 3."""
    named = {"x": schema, "y": {"type": "integer", "minimum": 1, "maximum": 3}}
    whole = {"type": "object", "properties": named, "required": ["y"]}
    options = {**JSON_STYLE, "lenient": lenient}
    return Grammar.lark(f"start: %json {json.dumps({**whole, 'x-guidance': options})}")


def accepts(schema: Any, value: Any, *, outlines: bool = False) -> bool:
    matcher = compile_source(source_of(grammar(schema), outlines=outlines), TOKENIZER)
    ids = byte_tokenizer().encode(json.dumps(value)).tolist()
    return matcher.try_consume_tokens(ids) == len(ids) and matcher.is_accepting()


# Of each a value that it allows, and where some of it is followed, one that it does not.
@pytest.mark.parametrize(
    ("schema", "right", "wrong"),
    [
        ({"type": "string", "pattern": LOOK_AHEAD}, "a", 5),
        ({"type": "string", "pattern": LOOK_AHEAD, "maxLength": 2}, "ab", "abc"),
        ({"type": "string", "enum": ["a", "b"], "pattern": LOOK_AHEAD}, "a", "c"),
        ({"type": "string", "pattern": r"^(a)\1$"}, "aa", 5),
        ({"type": "string", "pattern": r"\bfoo\b"}, "foo", 5),
        ({"type": "string", "pattern": "("}, "(", 5),
        ({"type": "array", "items": {"type": "string", "pattern": LOOK_AHEAD}}, ["a"], [5]),
        (
            {**A, "properties": {"a": {"pattern": LOOK_AHEAD}, "b": {"const": 1}}},
            {"b": 1},
            {"b": 2},
        ),
        ({"patternProperties": {"^(?!x)": A}, "additionalProperties": False}, {"a": 1}, None),
        ({"oneOf": [A, B]}, {"a": "x"}, {"a": 5}),
        ({"oneOf": [A, B], "anyOf": [A]}, {"a": "x"}, {"a": 5}),
        ({"$ref": "#/$defs/none"}, "a", None),
        ({"$ref": "https://example.org/a.json"}, 5, None),
        ({"$ref": "#name"}, 5, None),
        ({"$ref": 5}, 5, None),
        ({"$ref": "#/properties/y"}, 2, 4),
        (
            {"anyOf": [{"type": "null"}, {"$ref": "#/properties/x/anyOf/2"}, A]},
            {"a": "x"},
            {"a": 1},
        ),
        ({"$dynamicRef": "#meta"}, 5, None),
        ({"$id": "http://example.org/", "$ref": "#/properties/y"}, 2, 4),
        ({"const": 2**53 + 1}, 5, None),
        ({"type": "integer", "enum": [1, 2**53 + 1]}, 5, "a"),
        ({"type": "integer", "maximum": 10**400, "minimum": 3}, 5, 2),
        ({"type": "any"}, "a", None),
        ({"type": ["string", "file"]}, "a", None),
        ({"type": None}, "a", None),
        ({"type": "object", "properties": []}, {"a": 1}, 5),
        ({"type": "string", "required": True}, "a", 5),
        ({"type": "string", "enum": "a"}, "b", 5),
        ({"type": "string", "minLength": "3"}, "b", 5),
        ({"type": "integer", "minimum": 5, "maximum": 3}, None, 4),
        ("string", "a", None),
        (None, 5, None),
        ([A], 5, None),
        ({"not": A, "type": "string"}, "a", 5),
        ({"allOf": [{"type": "string"}, {"type": "integer"}], "uniqueItems": True}, None, None),
        (DEEP, {"x": {"x": {}}}, {"x": 5}),
    ],
)
def test_the_rest_of_a_schema_is_followed(schema, right, wrong):
    assert accepts(schema, {"y": 2})
    assert not accepts(schema, {"y": 4})
    if right is not None:
        assert accepts(schema, {"x": right, "y": 1})
    if wrong is not None:
        assert not accepts(schema, {"x": wrong, "y": 1})


@pytest.mark.parametrize("schema", [{"pattern": LOOK_AHEAD}, {"oneOf": [A, B]}])
def test_one_that_must_be_followed_is_refused(schema):
    with pytest.raises(GrammarError):
        compile_source(source_of(grammar(schema, lenient=False)), TOKENIZER)


def test_an_outline_has_names_and_types():
    assert accepts(A, {"x": {"a": "b"}, "y": 9}, outlines=True)
    assert not accepts(A, {"x": {"a": 5}, "y": 9}, outlines=True)
    assert not accepts(A, {"x": {}}, outlines=True)


SLOW = {"type": "integer", "multipleOf": 1_000_003}


def test_one_that_takes_too_long_is_followed_in_outline():
    trial = Trial(TABLE, seconds=0.5)
    tried = trial.check(grammar(SLOW))
    assert '"multipleOf"' not in tried.source
    with pytest.raises(GrammarError, match="took more than"):
        trial.check(grammar(SLOW, lenient=False))
    trial.close()


def test_the_compiler_takes_it():
    compiler = Compiler(byte_tokenizer(), vocab_size=256, eos_ids=(0,))
    compiler.compile(grammar({"pattern": LOOK_AHEAD}))
    with pytest.raises(InvalidRequestError, match="look-around"):
        compiler.compile(grammar({"pattern": LOOK_AHEAD}, lenient=False))
    compiler.close()


def test_hundreds_of_tools_are_followed_in_outline():
    """Their open objects would be more symbols than llguidance counts."""
    tools = [json.dumps({"const": place}) for place in range(300)]
    open_parts = {"a": {"type": "object"}, "b": {}, "c": {"type": "array"}}
    options = {**JSON_STYLE, "lenient": True}
    lines = [f"start: {' | '.join(f'tool_{place}' for place in range(len(tools)))}"]
    for place, name in enumerate(tools):
        named = {
            "name": json.loads(name),
            "arguments": {"type": "object", "properties": open_parts},
        }
        schema = {"type": "object", "properties": named, "required": ["name", "arguments"]}
        lines.append(f"tool_{place}: %json {json.dumps({**schema, 'x-guidance': options})}")
    many = Grammar.lark("\n".join(lines))
    with pytest.raises(GrammarError):
        compile_source(source_of(many), TOKENIZER)
    matcher = compile_source(source_of(many, outlines=True), TOKENIZER)
    text = json.dumps({"name": 299, "arguments": {"a": {"any": [1]}, "b": None}})
    ids = byte_tokenizer().encode(text).tolist()
    assert matcher.try_consume_tokens(ids) == len(ids)
    assert matcher.is_accepting()
