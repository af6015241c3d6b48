"""What a JSON schema leaves open ends all the same: a weak model would go on until `max_tokens`."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from llguidance.numpy import allocate_token_bitmask, fill_next_token_bitmask

from radixlm.core.grammar import ANY_OBJECT, Grammar
from radixlm.structured_output.grammar_source import (
    MAX_DEPTH,
    MAX_ITEMS,
    MAX_KEYS,
    GrammarError,
    source_of,
)
from radixlm.structured_output.matcher import Table, compile_source
from tests.engines import byte_tokenizer

TOKENIZER = Table.of(byte_tokenizer(), 256, (0,)).tokenizer()
A = {"a": {"type": "integer", "minimum": 0, "maximum": 9}}
ENDS = {b"}", b"]"}
LONGEST = 2_000
OPEN = {"type": "object", "properties": A}


def accepts(schema: Any, value: Any) -> bool:
    matcher = compile_source(source_of(Grammar.json_schema(schema)), TOKENIZER)
    ids = byte_tokenizer().encode(json.dumps(value)).tolist()
    return matcher.try_consume_tokens(ids) == len(ids) and matcher.is_accepting()


def nested(depth: int) -> Any:
    return {"a": nested(depth - 1)} if depth else 1


@pytest.mark.parametrize(
    ("schema", "taken", "refused"),
    [
        (
            ANY_OBJECT,
            {str(i): i for i in range(MAX_KEYS)},
            {str(i): i for i in range(MAX_KEYS + 1)},
        ),
        (ANY_OBJECT, nested(MAX_DEPTH), nested(MAX_DEPTH + 1)),
        ({}, [0] * MAX_ITEMS, [0] * (MAX_ITEMS + 1)),
        ({"type": "array"}, [{"a": [1]}], [0] * (MAX_ITEMS + 1)),
        ({"type": "array", "items": True}, [0] * (MAX_ITEMS + 1), nested(1)),
        ({"properties": {"a": True}}, {"a": {"b": 1}}, {"b": 1}),
        (OPEN, {"a": 1}, {"a": 1, "b": 2}),
        ({"type": "object", "properties": {}}, {}, {"b": 2}),
        ({**OPEN, "patternProperties": {"^b": {}}}, {"a": 1, "b": 2}, {"c": 1}),
        ({"anyOf": [OPEN, {"type": "null"}]}, {"a": 1}, {"b": 1}),
        ({"$ref": "#/$defs/a", "$defs": {"a": OPEN}}, {"a": 1}, {"b": 1}),
    ],
)
def test_what_a_schema_leaves_open_ends(schema: Any, taken: Any, refused: Any) -> None:
    assert accepts(schema, taken)
    assert not accepts(schema, refused)


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({**OPEN, "additionalProperties": True}, {"a": 1, "b": 2}),
        ({**OPEN, "required": ["b"]}, {"b": 2}),
        ({**OPEN, "required": ["a"], "minProperties": 2}, {"a": 1, "b": 2}),
        ({"type": "object", "maxProperties": 99}, {str(i): i for i in range(99)}),
        ({"type": "object", "minProperties": 99}, {str(i): i for i in range(99)}),
        ({"type": "object", "additionalProperties": {}}, {str(i): i for i in range(99)}),
        ({"type": "array", "minItems": 300}, [0] * 300),
        ({"type": "array", "maxItems": 300}, [0] * 300),
        ({"allOf": [OPEN, {"type": "object", "properties": {"b": True}}]}, {"a": 1, "b": 2}),
        ({"$ref": "#/$defs/a", "$defs": {"a": OPEN}, "properties": {"b": True}}, {"a": 1, "b": 2}),
        ({"const": {"a": [{}]}}, {"a": [{}]}),
    ],
)
def test_what_a_schema_asks_for_stays(schema: Any, value: Any) -> None:
    assert accepts(schema, value)


@pytest.mark.parametrize("schema", [ANY_OBJECT, {**OPEN, "required": ["a"]}, {}])
@pytest.mark.parametrize("first", [b"{", b"["])
def test_a_model_that_always_goes_on_comes_to_an_end(schema: Any, first: bytes) -> None:
    """It writes empty texts, and ends an object or a list only where nothing else is left."""
    spelled = [*map(byte_tokenizer().token_bytes, range(256))]
    matcher = compile_source(source_of(Grammar.json_schema(schema)), TOKENIZER)
    mask = allocate_token_bitmask(1, TOKENIZER.vocab_size)
    answer = bytearray()
    while len(answer) < LONGEST and not matcher.is_stopped():
        fill_next_token_bitmask(matcher, mask)
        bits = np.unpackbits(mask.view(np.uint8), bitorder="little")
        allowed = {spelled[token]: token for token in np.flatnonzero(bits).tolist()}
        wanted = [first, b'"', b",", *sorted({*allowed} - ENDS), *ENDS]
        chosen = next(text for text in wanted[bool(answer) :] if text in allowed)
        matcher.consume_token(allowed[chosen])
        answer += chosen
    assert len(answer) < LONGEST, answer[:200]


def test_white_space_is_bounded_in_lark_too() -> None:
    lark = Grammar.lark(f"start: a\na: %json {json.dumps(OPEN)}")
    matcher = compile_source(source_of(lark), TOKENIZER)
    ids = byte_tokenizer().encode('{"a":' + " " * 9).tolist()
    assert matcher.try_consume_tokens(ids) == 6


@pytest.mark.parametrize(
    "schema", [{"properties": 5}, {"required": 5}, {"minProperties": "a"}, {"minItems": []}]
)
def test_what_is_no_schema_is_refused(schema: Any) -> None:
    with pytest.raises(GrammarError, match="JSON schema"):
        compile_source(source_of(Grammar.json_schema(schema)), TOKENIZER)
