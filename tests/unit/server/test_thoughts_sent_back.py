"""Reasoning that comes back, in the words of a template with channels."""

from __future__ import annotations

from typing import Any

import pytest

from radixlm.parsers.call_format import CallFormat
from radixlm.parsers.families import HERMES
from radixlm.parsers.harmony import HARMONY
from radixlm.parsers.style import AnswerStyle
from radixlm.server.bodies.conversation import Conversation
from radixlm.text.chat_template import ChatTemplate
from radixlm.text.tokenizer import Tokenizer
from tests.text_samples import byte_level

TEMPLATE = (
    "{% for m in messages %}"
    "{% if m.tool_calls and m.thinking and m.content %}{{ raise_exception('both') }}{% endif %}"
    "[{{ m.FIELD }}|{{ m.content }}{% for c in m.tool_calls %}|{{ c.function | tojson }}"
    "{% endfor %}]{% endfor %}"
)
CALLS = [{"id": "a", "type": "function", "function": {"name": "f", "arguments": {}}}]
CALL = '{"name": "f", "arguments": {}}'


@pytest.mark.parametrize("style", [HARMONY, HERMES])
@pytest.mark.parametrize("name", ["thinking", "reasoning", "reasoning_content", "thought"])
@pytest.mark.parametrize(
    ("message", "text"),
    [
        ({"reasoning_content": "Hm", "content": "Hi"}, "[Hm|Hi]"),
        ({"reasoning_content": "Hm", "content": "", "tool_calls": CALLS}, f"[Hm||{CALL}]"),
        ({"content": "Hi"}, "[|Hi]"),
    ],
)
def test_it_has_the_templates_own_name(
    style: CallFormat, name: str, message: dict[str, Any], text: str
) -> None:
    conversation = Conversation([{"role": "assistant", **message}])
    tokenizer = Tokenizer(byte_level(), {})
    template = ChatTemplate(TEMPLATE.replace("FIELD", name))
    assert conversation.render(template, AnswerStyle(style), tokenizer, "") == text


def test_beside_a_text_and_a_call_where_the_template_takes_two_of_the_three() -> None:
    message = {"role": "assistant", "reasoning_content": "Hm", "content": "Hi", "tool_calls": CALLS}
    template = ChatTemplate(TEMPLATE.replace("FIELD", "thinking"))
    tokenizer = Tokenizer(byte_level(), {})
    rendered = Conversation([message]).render(template, AnswerStyle(HARMONY), tokenizer, "")
    assert rendered == f"[|Hi][Hm||{CALL}]"
