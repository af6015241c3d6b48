"""From a grammar's text to what llguidance compiles, within limits."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, cast

import numpy as np
from llguidance import LLMatcher, LLParserLimits, LLTokenizer, grammar_from
from llguidance.numpy import allocate_token_bitmask, fill_next_token_bitmask

from radixlm.core.grammar import JSON_STYLE, Grammar, GrammarKind
from radixlm.structured_output.schema import load

if TYPE_CHECKING:
    from llguidance._lib import JsonCompileOptions

_JSON = cast("JsonCompileOptions", dict(JSON_STYLE))
# A lexer state takes 2 kB, and few grammars come to 2,000. Items in a row are ways in which the
# text can be read so far: an ambiguous grammar takes time by their square, and holds the
# interpreter. Few grammars come to 50. An object comes to four for each optional property, which
# take less time (10 ms for 500), so schemas may have as many as llguidance allows by default. Items
# of a step bound how far masks and forced text look ahead: a list of 3,000 forced items comes to
# nearly 10,000.
MAX_READINGS, MAX_READINGS_OF_SCHEMAS = 1_400, 2_000
_OF_SCHEMAS = ('"json_schema"', "%json")
# Its conversion to Lark is Python, and of the square of the number of rules.
MAX_GBNF_LENGTH = 16_384
_SCHEMA_IN_LARK = re.compile(r"(%json\s*)(?=\{)")
_LONGEST_REASON = 400
_TOO_AMBIGUOUS = (
    "the grammar is too ambiguous: what is written so far can be read in more ways than are "
    "followed at a time; let fewer rules match the same text, write "
    "lists as (item)* instead of a rule that names itself, and require most properties of large "
    "objects"
)
# By what llguidance says.
_REASONS = {
    "NoExtensionBias": "no answer that ends is allowed, or none that the model's tokens can spell",
    "Current row has": _TOO_AMBIGUOUS,
    "Too many items": _TOO_AMBIGUOUS,
}


class GrammarError(ValueError):
    """The grammar cannot be compiled, or no answer can follow it; says why."""


def compile_source(source: str, tokenizer: LLTokenizer) -> LLMatcher:
    """A matcher at the beginning of an answer, its first mask made, so that the first request has
    it for nothing, and a grammar that no answer can follow is found here.

    source: of `source_of`. Raises GrammarError. May take any time, or crash the process: see Trial.
    """
    has_schema = any(mark in source for mark in _OF_SCHEMAS)
    limits = LLParserLimits(
        max_lexer_states=20_000,
        step_max_items=10_000,
        max_items_in_row=MAX_READINGS_OF_SCHEMAS if has_schema else MAX_READINGS,
        verbose_errors=False,
    )
    matcher = LLMatcher(tokenizer, source, log_level=0, limits=limits)
    _raise_error(matcher)
    mask = allocate_token_bitmask(1, tokenizer.vocab_size)
    fill_next_token_bitmask(matcher, mask)
    _raise_error(matcher)
    if not np.any(mask):
        raise GrammarError("no answer is allowed")
    return matcher


def try_first_tokens(matcher: LLMatcher) -> None:
    """Raise GrammarError where the forced begin of an answer leads nowhere. It may take long, and
    holds the interpreter: only for a process of its own.
    """
    ahead = matcher.deep_copy()
    ahead.consume_tokens(matcher.compute_ff_tokens())
    _raise_error(ahead)


def reason_of(matcher: LLMatcher) -> str | None:
    """Why a matcher cannot go on, in one line; None when it can."""
    return _shortened(matcher.get_error()) if matcher.is_error() else None


def _raise_error(matcher: LLMatcher) -> None:
    reason = reason_of(matcher)
    if reason is not None:
        raise GrammarError(reason)


def source_of(grammar: Grammar) -> str:
    """What llguidance compiles. In Python, and as slow as a grammar is odd. Raises GrammarError."""
    try:
        match grammar.kind:
            case GrammarKind.REGEX:
                return LLMatcher.grammar_from_regex(grammar.text)
            case GrammarKind.JSON_SCHEMA:
                schema = json.dumps(load(_schema(grammar.text)))
                return LLMatcher.grammar_from_json_schema(schema, defaults=_JSON)
            case GrammarKind.LARK:
                return _lark(_with_mended_schemas(grammar.text))
    except ValueError as error:
        raise GrammarError(_shortened(str(error))) from None


def _schema(text: str) -> str:
    """`true` is the schema of everything; llguidance takes objects only."""
    match text.strip():
        case "true":
            return "{}"
        case "false":
            raise GrammarError("the schema `false` allows no answer")
        case text if text.startswith("{"):
            return text
        case text:
            raise GrammarError(f"a JSON schema is an object, got {text:.40}")


def _lark(text: str) -> str:
    if "::=" in text and len(text) > MAX_GBNF_LENGTH:
        raise GrammarError(
            f"a GBNF grammar may have {MAX_GBNF_LENGTH} characters, this one has {len(text)}; "
            "write it in Lark"
        )
    return grammar_from("ebnf", text)


def _with_mended_schemas(text: str) -> str:
    """Lark whose schemas (`%json {...}`) are mended, and written as other JSON is."""
    parts = _SCHEMA_IN_LARK.split(text)
    made = parts[:1]
    for mark, part in zip(parts[1::2], parts[2::2], strict=True):
        try:
            _, end = json.JSONDecoder().raw_decode(part)
        except (ValueError, RecursionError):
            made += [mark, part]  # for llguidance to say what is wrong
            continue
        schema = {"x-guidance": _JSON} | load(part[:end])
        made += [mark, json.dumps(schema), part[end:]]
    return "".join(made)


def _shortened(text: str) -> str:
    text = " ".join(text.replace("<non-verbose/>", "").split())
    for name, meaning in _REASONS.items():
        if name in text:
            return meaning
    return text if len(text) <= _LONGEST_REASON else text[:_LONGEST_REASON] + " ..."
