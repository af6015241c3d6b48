"""Which message of a chat a token lies in."""

from __future__ import annotations

import pytest

from radixlm.text.outline import Outline, Spot
from tests.engines import byte_tokenizer

MESSAGES = [
    {"role": "system", "content": "Be kind."},
    {"role": "user", "content": [{"type": "text", "text": "Hi"}, {"type": "text", "text": "you"}]},
    {"role": "assistant", "content": None},
    {"role": "user", "content": "Hi"},
]
TOOLS = [{"type": "function", "function": {"name": "find", "description": "Finds."}}]
TEXT = '<s>Be kind.{"name": "find", "description": "Finds."}<u>Hi\nyou<a><u>Hi<a>'


@pytest.mark.parametrize(
    ("at", "expected"),
    [
        ("Be", Spot(0, "system", 4)),
        ("<s>", Spot(0, "system", 4)),
        ('"find', Spot(None, "tools", 4)),
        ("Finds.", Spot(None, "tools", 4)),
        ("<u>", Spot(1, "user", 4)),
        ("you", Spot(1, "user", 4)),
        ("<u>Hi<", Spot(3, "user", 4)),
    ],
)
def test_the_message_of_a_token(at: str, expected: Spot) -> None:
    tokenizer = byte_tokenizer()
    key = tokenizer.encode(TEXT)
    assert Outline(TEXT, MESSAGES, TOOLS).at(tokenizer, key, TEXT.index(at)) == expected


def test_behind_the_last_message_and_without_any() -> None:
    tokenizer = byte_tokenizer()
    key = tokenizer.encode(TEXT)
    assert Outline(TEXT, MESSAGES).at(tokenizer, key, key.size - 1) == Spot(3, "user", 4)
    assert Outline("", []).at(tokenizer, key, 0) is None


def test_the_places_are_in_bytes() -> None:
    messages = [{"role": "user", "content": "é" * 9}, {"role": "assistant", "content": "x"}]
    text = "".join(str(message["content"]) for message in messages)
    key = byte_tokenizer().encode(text)
    outline = Outline(text, messages)
    assert outline.at(byte_tokenizer(), key, 17) == Spot(0, "user", 2)
    assert outline.at(byte_tokenizer(), key, 18) == Spot(1, "assistant", 2)
