"""Matchers go on token by token; masks hold exactly the tokens that may come next."""

from __future__ import annotations

import json
import re
import string

import numpy as np
import pytest

from radixlm.core.grammar import Grammar
from radixlm.structured_output import MaskFiller, Matcher
from radixlm.structured_output.matcher import cutter
from radixlm.text.tokenizer import Tokenizer
from tests.engines import byte_tokenizer, constraint
from tests.text_samples import sentencepiece_like


def _follow(grammar: Grammar, text: str) -> Matcher:
    matcher: Matcher = constraint(grammar).matcher()
    assert matcher.accept(byte_tokenizer().encode(text).tolist())
    return matcher


def _allowed(filler: MaskFiller, *matchers: Matcher) -> list[str]:
    """What each matcher allows, as text; the end is a `$`."""
    bits = filler.start(matchers).result()
    assert bits.dtype == np.int32
    each = np.unpackbits(bits.view(np.uint8), axis=1, bitorder="little")
    return [
        "".join(
            sorted("$" if t == 0 else byte_tokenizer().decode([t]) for t in np.flatnonzero(row))
        )
        for row in each
    ]


def test_a_mask_holds_what_may_come_next() -> None:
    filler = MaskFiller(256)
    regex = Grammar.regex("[0-9]+[ab]?")
    assert _allowed(
        filler, _follow(regex, ""), _follow(regex, "7"), _follow(Grammar.regex("xyz"), "x")
    ) == [string.digits, "$" + string.digits + "ab", "y"]


def test_what_is_forced_ends_where_there_is_a_choice() -> None:
    schema = Grammar.json_schema(
        {
            "type": "object",
            "properties": {"city": {"enum": ["Paris", "Prague"]}},
            "required": ["city"],
            "additionalProperties": False,
        }
    )
    matcher = _follow(schema, "")
    forced = matcher.forced()
    assert byte_tokenizer().decode(forced) == '{"city": "P'
    assert matcher.accept(forced)
    assert matcher.forced() == []
    assert matcher.accept(byte_tokenizer().encode("r").tolist())
    assert byte_tokenizer().decode(matcher.forced()) == 'ague"}'
    assert not matcher.complete
    assert matcher.accept(matcher.forced())
    assert matcher.complete
    assert matcher.error is None


def test_what_is_not_allowed_is_an_error_for_good() -> None:
    matcher = _follow(Grammar.regex("ab"), "a")
    assert not matcher.accept(byte_tokenizer().encode("c").tolist())
    assert matcher.error is not None
    assert not matcher.complete
    assert matcher.forced() == []


@pytest.mark.slow
def test_a_grammar_that_is_too_ambiguous_ends_its_answer() -> None:
    """It keeps the interpreter by the square of the ways in which the answer can be read."""
    rule = 't t t t | t t t | t t | "a"'
    grammar = Grammar.lark(f"start: s\ns: {rule}\nt: {rule.replace('t', 's')}")
    matcher = _follow(grammar, "a")
    [token] = byte_tokenizer().encode("a").tolist()
    accepted = sum(matcher.accept([token]) for _ in range(100))
    assert 20 < accepted < 100
    assert matcher.error is not None
    assert "too ambiguous" in matcher.error


def test_what_is_long_or_large_is_not_too_ambiguous() -> None:
    properties = {f"key{place}": {"type": "string"} for place in range(450)}
    optional = Grammar.json_schema({"type": "object", "properties": properties})
    right = Grammar.lark('start: list\nlist: item | item "," list\nitem: /[a-z]/')
    terms = Grammar.lark('start: s\ns: s "+" s | s "*" s | "(" s ")" | /[a-z]/')
    filler = MaskFiller(256)
    for grammar, text in (
        (optional, '{"key7": "a", "key299": "b"}'),
        (right, ",".join("abcdefgh" * 40)),
        (terms, "+".join("abcdefgh" * 20)),
        (Grammar.json_schema({"const": [*range(2000)]}), json.dumps([*range(2000)])),
    ):
        matcher = _follow(grammar, text[:-1])
        filler.start([matcher]).result()
        assert matcher.accept(byte_tokenizer().encode(text[-1]).tolist())
        assert matcher.error is None


def test_a_row_that_allows_nothing_is_left_open() -> None:
    """So that whatever is drawn for it is finite; its matcher says that it is of no use."""
    broken = _follow(Grammar.regex("ab"), "a")
    broken.accept([7])
    fine = _follow(Grammar.regex("ab"), "a")
    bits = MaskFiller(256).start([broken, fine]).result()
    assert bits.any(axis=1).all()
    assert broken.error is not None
    assert fine.error is None


def test_two_answers_to_one_grammar_do_not_meet() -> None:
    one, two = _follow(Grammar.regex("ab|cd"), "a"), _follow(Grammar.regex("ab|cd"), "c")
    assert _allowed(MaskFiller(256), one, two) == ["b", "d"]


@pytest.mark.parametrize("text", ["name", " name", '{"name": "', "é中😀", "a  b"])
def test_text_is_cut_into_tokens_that_spell_it(text: str) -> None:
    """Also where the tokenizer puts a space before a text."""
    for tokenizer in (byte_tokenizer(), Tokenizer(sentencepiece_like(), {})):
        ids = cutter(tokenizer)(text)
        assert ids is not None
        assert b"".join(map(tokenizer.token_bytes, ids)) == text.encode()


@pytest.mark.parametrize("pattern", ["^a$", "a|bc", "(x|y){2,3}z?", r"[0-9]\.[0-9]"])
def test_a_regex_is_matched_whole(pattern: str) -> None:
    rng = np.random.default_rng(0)
    filler = MaskFiller(256)
    for _ in range(10):
        matcher, text = _follow(Grammar.regex(pattern), ""), ""
        while not matcher.complete:
            letter = str(rng.choice(list(_allowed(filler, matcher)[0])))
            if letter == "$":
                break
            text += letter
            assert matcher.accept(byte_tokenizer().encode(letter).tolist())
        assert re.fullmatch(pattern, text)
