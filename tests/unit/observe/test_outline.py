"""Which message of a chat a token lies in."""

from __future__ import annotations

import pytest

from radixlm.observe.causes import Outline, Spot
from tests.engines import byte_tokenizer


class Searched(str):
    """Counts the characters that are looked through."""

    __slots__ = ("looked_at",)
    looked_at: int

    def find(self, sub: str, start: int = 0, end: int | None = None) -> int:  # type: ignore[override]
        at = super().find(sub, start, end)
        stop = len(self) if end is None else min(end, len(self))
        self.looked_at += (stop if at < 0 else at) - start
        return at

    def rfind(self, sub: str, start: int = 0, end: int | None = None) -> int:  # type: ignore[override]
        at = super().rfind(sub, start, end)
        self.looked_at += (len(self) if end is None else end) - max(at, start)
        return at


def searched(text: str) -> Searched:
    made = Searched(text)
    made.looked_at = 0
    return made


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
    found = Outline(TEXT, MESSAGES, TOOLS).at(tokenizer, key, TEXT.index(at))
    assert found is not None
    assert found[:3] == expected[:3]


def test_behind_the_last_message_and_without_any() -> None:
    tokenizer = byte_tokenizer()
    key = tokenizer.encode(TEXT)
    assert Outline(TEXT, MESSAGES).at(tokenizer, key, key.size - 1) == Spot(3, "user", 4)
    assert Outline("", []).at(tokenizer, key, 0) is None


def test_the_places_are_in_bytes() -> None:
    messages = [{"role": "user", "content": "é" * 9}, {"role": "assistant", "content": "x"}]
    text = "<a>".join(str(message["content"]) for message in messages)
    key = byte_tokenizer().encode(text)
    outline = Outline(text, messages)
    assert outline.at(byte_tokenizer(), key, 17) == Spot(0, "user", 2, 8, 1)
    assert outline.at(byte_tokenizer(), key, 18) == Spot(0, "user", 2, 9, 0)
    assert outline.at(byte_tokenizer(), key, 19) == Spot(1, "assistant", 2, -2, 3)


def test_where_a_message_ends_it_may_have_gone_on() -> None:
    messages = [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Hi"}]
    told = '{"name": "find", "description": "Finds."}'
    for text, tools, role in (
        ("<s>Be kind.<u>Hi", [], "system"),
        (f"<s>Be kind.{told}<u>Hi", TOOLS, "tools"),
    ):
        key = byte_tokenizer().encode(text)
        found = Outline(text, messages, tools).at(byte_tokenizer(), key, text.index("kind.") + 5)
        assert found is not None
        assert found.role == role


def test_a_call_belongs_to_the_message_that_makes_it() -> None:
    call = {"function": {"name": "find", "arguments": {"id": 5}}}
    messages = [
        {"role": "user", "content": "Find it."},
        {"role": "assistant", "content": "<think>Hm.</think>I look.", "tool_calls": [call]},
        {"role": "tool", "content": "It is here."},
    ]
    text = '{"name": "find", "description": "Finds."}<u>Find it.<a>I look.'
    text += '{"name": "find", "arguments": {"id": 5}}<t>It is here.'
    key = byte_tokenizer().encode(text)
    outline = Outline(text, messages, TOOLS)
    for at, role in (("Finds", "tools"), ("I look", "assistant"), ("5}", "assistant")):
        found = outline.at(byte_tokenizer(), key, text.index(at))
        assert found is not None
        assert found.role == role


def test_many_messages_that_the_template_changed_are_not_each_sought_to_the_end() -> None:
    contents = [
        ("user", f"q{n}") if n % 2 else ("assistant", f"<think/>a{n}") for n in range(8_000)
    ]
    messages = [{"role": role, "content": content} for role, content in contents]
    text = searched("".join(f"<m>{turn['content'].removeprefix('<think/>')}" for turn in messages))
    key = byte_tokenizer().encode(str(text))
    at = text.index("q7999")
    text.looked_at = 0
    assert Outline(text, messages).at(byte_tokenizer(), key, at) == Spot(7_999, "user", 8_000, 0, 5)
    assert text.looked_at < 1_000 * len(text)


def test_many_tools_are_sought_once_through_the_text() -> None:
    tools = [{"type": "function", "function": {"name": f"find{n}"}} for n in range(1_000)]
    told = "".join(f'{{"name": "find{n}"}}' for n in range(1_000))
    text = searched(f"{told}<u>Hi")
    outline = Outline(text, [{"role": "user", "content": "Hi"}], tools)
    spot = outline.at(byte_tokenizer(), byte_tokenizer().encode(str(text)), 9)
    assert spot is not None
    assert spot.message is None
    assert text.looked_at < 10 * len(text)
