"""Events as bytes: one line each, by whatever ends a line for who reads it."""

from __future__ import annotations

import json

import pytest

from radixlm.server.http.sse import event


@pytest.mark.parametrize("character", "\x85\u2028\u2029\n\r\x0b\x0c\x1c\x1d\x1e")
def test_no_character_of_a_text_ends_a_line(character):
    text = f"a{character}b é 你"
    told = event({"text": text}, "name").decode()
    name, data, *rest = told.splitlines()
    assert (name, rest) == ("event: name", [""])
    assert json.loads(data.removeprefix("data: ")) == {"text": text}
    assert "é 你" in data
