"""Where what is marked ends in a prompt."""

from __future__ import annotations

from typing import Any

import pytest

from radixlm.text.breakpoints import PrefixEnd, ends_in, tokens_within, with_marks
from radixlm.text.chat_template import ChatTemplate
from radixlm.text.tokenizer import Tokenizer
from tests.chat_templates import HERMES, LLAMA
from tests.text_samples import byte_level

MARK = "\U000f0001"
TRIMS = "{% for m in messages %}[{{ m.role }}]{{ m.content | trim }}{% endfor %}"
COUNTS = "{% for m in messages %}{{ m.content | length }}:{{ m.content }};{% endfor %}"
DROPS = "{{ messages[-1].content }}"
TOOL = {
    "type": "function",
    "function": {
        "name": "look_up",
        "parameters": {"type": "object", "properties": {"n": {"type": "string"}}, "required": []},
    },
}
CALL = {"id": "1", "type": "function", "function": {"name": "f", "arguments": {"a": "b", "n": 1}}}
TALK: list[dict[str, Any]] = [
    {"role": "system", "content": "Be brief. "},
    {"role": "user", "content": "Hello"},
]


def before(
    source: str, place: PrefixEnd, messages: list[dict[str, Any]] | None = None, **more: Any
) -> str | None:
    """The text of a prompt up to the end of a place."""
    template = ChatTemplate(source)
    tools = more.get("tools", [])
    messages = messages or TALK
    text = template.render(messages, tools=tools or None)
    marked, marked_tools = with_marks(messages, tools, {place: MARK})
    ends = ends_in(text, template.render(marked, tools=marked_tools or None), [MARK])
    return text[: ends[MARK]] if ends else None


class TestPlaces:
    def test_a_text(self) -> None:
        assert before(HERMES, PrefixEnd("part", 0, 0)) == "<|start|>system\nBe brief. "

    def test_a_part(self) -> None:
        parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
        found = before(HERMES, PrefixEnd("part", 0, 0), [{"role": "user", "content": parts}])
        assert found == "<|start|>user\none"

    @pytest.mark.parametrize("source", [HERMES, LLAMA])
    def test_a_tool(self, source: str) -> None:
        found = before(source, PrefixEnd("tool", 0), TALK[1:], tools=[TOOL])
        assert found is not None
        assert found.endswith('"type": "string')

    def test_a_call(self) -> None:
        talk = [*TALK, {"role": "assistant", "content": "", "tool_calls": [CALL]}]
        found = before(HERMES, PrefixEnd("call", 0, 2), talk)
        assert found is not None
        assert found.endswith('{"name": "f", "arguments": {"a": "b')

    def test_trimmed_text_ends_where_it_is_the_same(self) -> None:
        assert before(TRIMS, PrefixEnd("part", 0, 0)) == "[system]Be brief."

    def test_what_depends_on_the_mark_does_not_count(self) -> None:
        assert before(COUNTS, PrefixEnd("part", 0, 0)) == "1"

    def test_what_is_left_out_has_no_place(self) -> None:
        assert before(DROPS, PrefixEnd("part", 0, 0)) is None

    def test_nothing_to_mark(self) -> None:
        empty = [{"role": "tool", "content": []}]
        assert with_marks(empty, [], {PrefixEnd("part", 0, 0): MARK}) == (empty, [])

    def test_several(self) -> None:
        assert ends_in("abcd", "a1bc2d", ["2", "1", "3"]) == {"1": 1, "2": 3}


class TestTokens:
    def test_those_that_lie_wholly_in_front(self) -> None:
        tokenizer = Tokenizer(byte_level(), {})
        text = "Grüße, world"
        key = tokenizer.encode(text)
        ends = tokens_within(tokenizer, key, text, [0, 3, len(text)])
        spelled = [tokenizer.decode(key[:end]) for end in ends]
        assert spelled[0] == ""
        assert text[:3].startswith(spelled[1])
        assert ends[2] == key.size

    def test_where_tokens_do_not_spell_the_text(self) -> None:
        tokenizer = Tokenizer(byte_level(), {})
        key = tokenizer.encode("hello world")
        other = "hello there"
        [end] = tokens_within(tokenizer, key, other, [len(other)])
        assert tokenizer.decode(key[:end]) == "hello "[: len(tokenizer.decode(key[:end]))]
        assert end > 0
