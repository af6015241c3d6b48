"""Markers that are special tokens: which these are, and grammars with them."""

from __future__ import annotations

import pytest

from radixlm.parsers.call_format import Written
from radixlm.parsers.families import DEEPSEEK32, GEMMA4, KIMI, MINIMAX_M3
from radixlm.parsers.style import AnswerStyle
from radixlm.parsers.thoughts import GEMMA4 as GEMMA4_THOUGHTS
from radixlm.parsers.tools import Calling, Tool, ToolUse
from radixlm.text.tokenizer import Tokenizer
from tests.text_samples import byte_level
from tests.unit.parsers.test_tool_grammars import allows

SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "string"}},
    "required": ["a"],
    "additionalProperties": False,
}
USE = ToolUse((Tool("f", SCHEMA, strict=True),), Calling.REQUIRED)
SPECIAL = {
    KIMI: (KIMI.begin, KIMI.end, "<|tool_call_begin|>", "<|tool_call_end|>"),
    GEMMA4: ("<|tool_call>", "<tool_call|>", '<|"|>'),
    DEEPSEEK32: ("｜DSML｜",),
    MINIMAX_M3: ("]<]minimax[>[",),
}


def tokenizer_of(special: tuple[str, ...]) -> Tokenizer:
    backend = byte_level()
    backend.add_special_tokens(list(special))
    return Tokenizer(backend, {})


@pytest.mark.parametrize(("form", "special"), SPECIAL.items())
def test_special_tokens_within_markers_are_found(form, special):
    tokenizer = tokenizer_of((*special, "<|other|>"))
    wanted = {tokenizer.token_id(text) for text in special}
    assert AnswerStyle(form).shown(USE, tokenizer) == wanted
    assert AnswerStyle(form).shown(ToolUse(), tokenizer) == frozenset()
    thinking = AnswerStyle(form, GEMMA4_THOUGHTS)
    assert thinking.shown(ToolUse(), tokenizer_of(("<|channel>", *special))) != frozenset()


@pytest.mark.parametrize(("form", "special"), SPECIAL.items())
def test_grammars_write_special_tokens_as_such(form, special):
    grammar = AnswerStyle(form).grammar(USE, "", tokenizer_of(special))
    assert grammar is not None
    assert not any(f'"{text}"' in grammar.text for text in special)
    assert allows(grammar, special, form.write([Written("f", {"a": 'x "y" <b>'})]))
    assert not allows(grammar, special, form.write([Written("f", {"b": "x"})]))
    assert not allows(grammar, special, form.write([Written("f", {"a": special[-1]})]))
