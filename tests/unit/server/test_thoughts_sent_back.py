"""Reasoning that comes back, in the words of a template with channels."""

from __future__ import annotations

from typing import Any

import pytest

from radixlm.parsers.call_format import CallFormat
from radixlm.parsers.families import HERMES
from radixlm.parsers.harmony import HARMONY
from radixlm.parsers.style import AnswerStyle
from radixlm.server.pipeline.conversation import Conversation
from radixlm.text.chat_template import ChatTemplate
from radixlm.text.tokenizer import Tokenizer
from tests.text_samples import byte_level

TEMPLATE = "{% for m in messages %}[{{ m.thinking }}|{{ m.content }}]{% endfor %}"
CALLS = [{"type": "function", "function": {"name": "f", "arguments": {}}}]


@pytest.mark.parametrize(
    ("style", "message", "text"),
    [
        (HARMONY, {"reasoning_content": "Hm", "content": "Hi"}, "[Hm|Hi]"),
        (HARMONY, {"reasoning_content": "Hm", "content": "", "tool_calls": CALLS}, "[Hm|]"),
        (HARMONY, {"reasoning_content": "Hm", "content": "Hi", "tool_calls": CALLS}, "[|Hi]"),
        (HARMONY, {"content": "Hi"}, "[|Hi]"),
        (HERMES, {"reasoning_content": "Hm", "content": "Hi"}, "[|Hi]"),
    ],
)
def test_it_is_called_thinking(style: CallFormat, message: dict[str, Any], text: str) -> None:
    conversation = Conversation([{"role": "assistant", **message}])
    tokenizer = Tokenizer(byte_level(), {})
    rendered = conversation.render(ChatTemplate(TEMPLATE), AnswerStyle(style), tokenizer, "")
    assert rendered == text
