"""Arguments that are tags within tags, as MiniMax M3 writes them."""

from __future__ import annotations

import json

import pytest

from radixlm.parsers.call_format import Written
from radixlm.parsers.families import MINIMAX_M3
from tests.unit.parsers.readings import read

SPACE = "]<]minimax[>["
CALL = MINIMAX_M3.write([Written("now", {"b": "QQ"})])


def value_of(written: str) -> object:
    [made] = read(MINIMAX_M3, CALL.replace("QQ", written)).calls
    return json.loads(made.arguments)["b"]


def item(written: str, depth: int = 1) -> str:
    return f"{SPACE}<item>" * depth + written + f"{SPACE}</item>" * depth


def test_arrays_and_objects():
    assert value_of(item("1") + item("true")) == [1, True]
    assert value_of(f"{SPACE}<x>{item('y')}{SPACE}</x>") == {"x": ["y"]}
    assert value_of("<item>1</item>") == "<item>1</item>"


@pytest.mark.parametrize("depth", [500, 2_000])
def test_what_is_too_deep_is_text(depth):
    """And ends no answer with a RecursionError."""
    text = CALL.replace("QQ", item("1", depth))
    answer = read(MINIMAX_M3, text)
    assert (answer.calls, answer.text) == ([], text)


def test_a_text_that_is_not_closed_ends_where_the_next_tag_begins():
    text = CALL.replace(f"QQ{SPACE}</b>", "Bern")
    assert [made.arguments for made in read(MINIMAX_M3, text).calls] == ['{"b": "Bern"}']
    bare = CALL.replace(f"QQ{SPACE}</b>", f"Bern{SPACE}")
    assert [made.arguments for made in read(MINIMAX_M3, bare).calls] == ['{"b": "Bern"}']
