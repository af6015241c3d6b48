"""Two continuations: what is shown of them, and what kind of difference it is."""

from __future__ import annotations

import numpy as np
import pytest

from radixlm.core.keys import Key
from radixlm.text.difference import Difference, Kind, difference, visible
from radixlm.text.tokenizer import Tokenizer
from tests.engines import byte_tokenizer

BYTES: Tokenizer = byte_tokenizer()


def ids(text: str) -> Key:
    return BYTES.encode(text)


def parted(shared: str, cached: str, requested: str) -> Difference:
    return difference(BYTES, ids(shared)[-64:], ids(cached), ids(requested))


def test_whole_words_are_marked() -> None:
    found = parted("Today is 2026-11-", "19 14:05 now", "20 14:05 now")
    assert found.marked == "… is [2026-11-19|2026-11-20] 14:05 now…"
    assert found.kind is Kind.DATE_TIME


@pytest.mark.parametrize(
    ("shared", "cached", "requested", "kind"),
    [
        ("It is ", "14:05 h", "15:06 h", Kind.DATE_TIME),
        ("It is ", "Monday, ok", "Tuesday, ok", Kind.DATE_TIME),
        ("Since November ", "19, we", "20, we", Kind.DATE_TIME),
        ("at ", "1763560000 s", "1763560099 s", Kind.DATE_TIME),
        ("id=", "4f1c2d9ab0", "a0b7719cd3", Kind.ID),
        ("id ", "123e4567-e89b-12d3-a456-426614174000", "9b2e4567-e89b-12d3-a456-426614174000",
         Kind.ID),
        ("Request ", "17 of", "18 of", Kind.NUMBER),
        ("Agent ", "5: sort the imports", "6: check the licence", Kind.TEXT),
        ("Hello ", " you", "you", Kind.WHITE_SPACE),
        ("Hello", "\n\nyou", " you", Kind.WHITE_SPACE),
        ("I like ", "dogs a lot", "cats a lot", Kind.TEXT),
        ('[\n{"name": "', 'one"},\n{"name": "two"}]', 'two"},\n{"name": "one"}]', Kind.REORDERED),
        ('{"', 'one": 11, "two": 22}', 'two": 22, "one": 11}', Kind.REORDERED),
    ],
)  # fmt: skip
def test_kinds(shared: str, cached: str, requested: str, kind: Kind) -> None:
    assert parted(shared, cached, requested).kind is kind


def test_the_same_text_in_other_tokens() -> None:
    class Pairs:
        def spelled(self, ids: list[int]) -> bytes:
            return b"".join({1: b" ", 2: b" yes", 3: b"yes"}[token] for token in ids)

    made = [np.array(each, dtype=np.int32) for each in ([], [1, 3], [2])]
    found = difference(Pairs(), *made)  # type: ignore[arg-type]
    assert found.kind is Kind.RETOKENIZED


def test_what_can_not_be_seen_is_escaped() -> None:
    assert visible("a\n\x1b[31m\u202eb\u2028\\<b>é") == ("a\\n\\x1b[31m\\u202eb\\u2028\\\\<b>é")
    found = parted("x ", "\u202eone", "\x00two")
    assert "\u202e" not in found.marked
    assert "\x00" not in found.marked


def test_invalid_utf8_is_shown() -> None:
    assert (
        "\N{REPLACEMENT CHARACTER}" in difference(BYTES, ids("x "), ids("é")[:1], ids("y")).marked
    )
