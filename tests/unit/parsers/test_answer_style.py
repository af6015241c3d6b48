"""Which parser a model's template asks for, and which of its markers must show."""

from __future__ import annotations

import pytest

from radixlm.core.sampling import ThoughtMarks
from radixlm.parsers import ReasoningDelta, TextDelta
from radixlm.parsers.families import (
    HERMES,
    JSON,
    LLAMA,
    MISTRAL,
    MISTRAL_NAMED,
    PYTHONIC,
    QWEN_CODER,
)
from radixlm.parsers.formats import FORMATS
from radixlm.parsers.harmony import FINAL, HARMONY, MESSAGE, START
from radixlm.parsers.style import AnswerStyle
from radixlm.parsers.thoughts import ALWAYS, THINK, THOUGHTS
from radixlm.parsers.tools import Calling, Tool, ToolUse
from radixlm.text.tokenizer import Tokenizer
from tests import chat_templates
from tests.text_samples import byte_level

USE = ToolUse((Tool("f", {"type": "object"}),), Calling.AUTO)


@pytest.mark.parametrize(
    ("template", "calls", "thinking"),
    [
        (chat_templates.HERMES, HERMES, None),
        (chat_templates.THINKING, HERMES, THINK),
        (chat_templates.LLAMA, LLAMA, None),
        (chat_templates.MISTRAL, MISTRAL, None),
        (chat_templates.MISTRAL_NAMED, MISTRAL_NAMED, None),
        ("{{ messages[0].content }}", JSON, None),
        ("{{ tools }}", JSON, None),
        (chat_templates.QWEN_CODER, QWEN_CODER, None),
        (chat_templates.PYTHONIC, PYTHONIC, None),
        (chat_templates.PYTHONIC_TAGGED, PYTHONIC, None),
        ("<tool_call>", JSON, None),
        ("", JSON, None),
    ],
)
def test_the_template_tells(template, calls, thinking):
    assert AnswerStyle.of(template) == AnswerStyle(calls, thinking)


def test_a_name_goes_before_the_template():
    for name, calls in FORMATS.items():
        assert AnswerStyle.of(chat_templates.QWEN_CODER, name).calls is calls
    for name, thinking in THOUGHTS.items():
        assert AnswerStyle.of("", "auto", name).thinking is thinking
    assert AnswerStyle.of(chat_templates.MISTRAL_NAMED, "mistral").calls == MISTRAL_NAMED


@pytest.mark.parametrize(
    ("thinking", "prompt", "thought"),
    [
        (None, "assistant\n<think>\n", False),
        (THINK, "assistant\n<think>\n", True),
        (THINK, "assistant\n", False),
        (THINK, "assistant\n<think>\n\n</think>\n\n", False),
        (ALWAYS, "assistant\n", True),
        (ALWAYS, "assistant\n<think>\n\n</think>\n\n", False),
    ],
)
def test_whether_the_prompt_opens_the_thoughts(thinking, prompt, thought):
    parser = AnswerStyle(HERMES, thinking).parser(ToolUse(), prompt)
    [event] = [*parser.push("x"), *parser.flush()]
    assert event == (ReasoningDelta("x") if thought else TextDelta("x"))


@pytest.mark.parametrize(
    ("calls", "thinking", "prompt", "marks"),
    [
        (HERMES, None, "assistant\n", None),
        (HERMES, THINK, "assistant\n<think>\n", ThoughtMarks("", ("</think>",))),
        (HERMES, THINK, "assistant\n", ThoughtMarks("<think>", ("</think>",))),
        (HERMES, ALWAYS, "assistant\n", ThoughtMarks("", ("</think>",))),
        (HARMONY, None, "<|start|>assistant", ThoughtMarks("", (FINAL, MESSAGE))),
        (HARMONY, None, f"{FINAL}{MESSAGE}Hi<|start|>assistant<|channel|>final", None),
        (HARMONY, None, f"{FINAL}{MESSAGE}x{START}assistant", ThoughtMarks("", (FINAL, MESSAGE))),
    ],
)
def test_where_stop_strings_do_not_count(calls, thinking, prompt, marks):
    assert AnswerStyle(calls, thinking).marks(prompt) == marks


def test_markers_show_where_they_are_needed():
    backend = byte_level()
    backend.add_special_tokens(["<tool_call>", "</think>"])
    tokenizer = Tokenizer(backend, {})
    call, thought = (tokenizer.token_id(text) for text in ("<tool_call>", "</think>"))
    assert AnswerStyle(HERMES).shown(USE, tokenizer) == {call}
    assert AnswerStyle(HERMES).shown(ToolUse(), tokenizer) == frozenset()
    assert AnswerStyle(MISTRAL).shown(USE, tokenizer) == frozenset()
    assert AnswerStyle(HERMES, THINK).shown(USE, tokenizer) == {call, thought}
    assert AnswerStyle(HERMES, THINK).shown(ToolUse(), tokenizer) == {thought}


def test_ids_are_fresh_and_as_the_model_s_template_takes_them():
    for form, length in ((HERMES, 29), (MISTRAL, 9)):
        ids = {form.new_id() for _ in range(50)}
        assert len(ids) == 50
        assert {len(name) for name in ids} == {length}
