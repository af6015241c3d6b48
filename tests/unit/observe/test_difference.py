"""Two continuations: what is shown of them, and what kind of difference it is."""

from __future__ import annotations

import time

import numpy as np
import pytest

from radixlm.core.keys import Key
from radixlm.observe.difference import (
    SAME,
    Difference,
    DifferenceKind,
    difference,
    kind_of,
    meeting,
    visible,
)
from radixlm.text.tokenizer import Tokenizer
from tests.engines import byte_tokenizer

BYTES: Tokenizer = byte_tokenizer()


def ids(text: str) -> Key:
    return BYTES.encode(text)


def parted(shared: str, cached: str, requested: str) -> Difference:
    return difference(BYTES, ids(shared)[-64:], ids(cached), ids(requested))[0]


def test_whole_words_are_marked() -> None:
    found = parted("Today is 2026-11-", "19 14:05 now", "20 14:05 now")
    assert found.marked == "… is [2026-11-19|2026-11-20] 14:05 now…"
    assert found.kind is DifferenceKind.DATE_TIME


@pytest.mark.parametrize(
    ("shared", "cached", "requested", "kind"),
    [
        ("It is ", "14:05 h", "15:06 h", DifferenceKind.DATE_TIME),
        ("It is ", "Monday, ok", "Tuesday, ok", DifferenceKind.DATE_TIME),
        ("Since November ", "19, we", "20, we", DifferenceKind.DATE_TIME),
        ("at ", "1763560000 s", "1763560099 s", DifferenceKind.DATE_TIME),
        ("It is 2:05 ", "AM now", "PM now", DifferenceKind.DATE_TIME),
        ("It is ", "2 PM now", "3 PM now", DifferenceKind.DATE_TIME),
        ("It is Friday, ", "20 November", "27 November", DifferenceKind.DATE_TIME),
        ("It is", " Fri, 20 Nov", " Sat, 21 Nov", DifferenceKind.DATE_TIME),
        ("Since 2026-1", "1, we", "2, we", DifferenceKind.DATE_TIME),
        ("at 20261120T14", "0533Z s", "0612Z s", DifferenceKind.DATE_TIME),
        ("今天是2026年11月", "20日。", "21日。", DifferenceKind.DATE_TIME),
        ("Phone ", "5551234567 ok", "5559876543 ok", DifferenceKind.NUMBER),
        ("Host 10.0.0.", "17 is", "18 is", DifferenceKind.NUMBER),
        ("They may ", "decide it", "separate it", DifferenceKind.TEXT),
        ("Head ", "4f1c2d9 is", "a0b7719 is", DifferenceKind.ID),
        ("id ", "31187348761d11bb5 x", "d041814553e7177e2 x", DifferenceKind.ID),
        ("id=", "4f1c2d9ab0", "a0b7719cd3", DifferenceKind.ID),
        (
            "id ",
            "123e4567-e89b-12d3-a456-426614174000",
            "9b2e4567-e89b-12d3-a456-426614174000",
            DifferenceKind.ID,
        ),
        ("Request ", "17 of", "18 of", DifferenceKind.NUMBER),
        ("Agent ", "5: sort the imports", "6: check the licence", DifferenceKind.TEXT),
        ("Hello ", " you", "you", DifferenceKind.WHITE_SPACE),
        ("Hello", "\n\nyou", " you", DifferenceKind.WHITE_SPACE),
        ("I like ", "dogs a lot", "cats a lot", DifferenceKind.TEXT),
        (
            '[\n{"name": "',
            'one"},\n{"name": "two"}]',
            'two"},\n{"name": "one"}]',
            DifferenceKind.REORDERED,
        ),
        ('{"', 'one": 11, "two": 22}', 'two": 22, "one": 11}', DifferenceKind.REORDERED),
        (
            '"enum": ["',
            'fast", "slow", "best"]',
            'best", "fast", "slow"]',
            DifferenceKind.REORDERED,
        ),
        ("Allowed: ", "read, write. Be", "write, read. Be", DifferenceKind.REORDERED),
        (
            "Documents:\n[1] ",
            "One is red.\n[2] Two is blue.\n",
            "Two is blue.\n[2] One is red.\n",
            DifferenceKind.REORDERED,
        ),
        (
            "<u>",
            "dog<a>chien<u>cat<a>chat<u>",
            "cat<a>chat<u>dog<a>chien<u>",
            DifferenceKind.REORDERED,
        ),
        ("Be ", "polite, and say", "politely, and say", DifferenceKind.TEXT),
        ("It is of", " a bank", "\u200b a bank", DifferenceKind.UNICODE),
        ("<s>", "You are", "\ufeffYou are", DifferenceKind.UNICODE),
        ("A caf", "é au lait", "e\u0301 au lait", DifferenceKind.UNICODE),
        ("<a>", "<think>\nIt may be.\n</think>\n\nYes.", "Yes.", DifferenceKind.REASONING),
    ],
)
def test_kinds(shared: str, cached: str, requested: str, kind: DifferenceKind) -> None:
    assert parted(shared, cached, requested).kind is kind


def test_the_same_text_in_other_tokens() -> None:
    class Pairs:
        def spelled(self, ids: list[int]) -> bytes:
            return b"".join({1: b" ", 2: b" yes", 3: b"yes"}[token] for token in ids)

    made = [np.array(each, dtype=np.int32) for each in ([], [1, 3], [2])]
    found, _ = difference(Pairs(), *made)  # type: ignore[arg-type]
    assert found.kind is DifferenceKind.RETOKENIZED


def test_what_can_not_be_seen_is_escaped() -> None:
    assert visible("a\n\x1b[31m\u202eb\u2028\\<b>é") == ("a\\n\\x1b[31m\\u202eb\\u2028\\\\<b>é")
    found = parted("x ", "\u202eone", "\x00two")
    assert "\u202e" not in found.marked
    assert "\x00" not in found.marked


def test_invalid_utf8_is_shown() -> None:
    found, _ = difference(BYTES, ids("x "), ids("é")[:1], ids("y"))
    assert "\N{REPLACEMENT CHARACTER}" in found.marked


def test_a_character_that_the_tokens_cut_is_shown_whole() -> None:
    one, other = ids("It is é."), ids("It is è.")
    found, _ = difference(BYTES, one[:7], one[7:], other[7:])
    assert found.marked == "…It is [é.|è.]…"


def test_what_is_put_in_is_shown_alone() -> None:
    assert parted("<u>Hi", "\n<a>", "<a>").marked == "…<u>Hi[\\n|]<a>…"
    assert parted("<u>", "You are", "\ufeffYou are").marked == "…<u>[You|\\ufeffYou] are…"
    assert parted("<u>a caf", "é", "e\u0301").marked == "…<u>a [caf\\xe9|cafe\\u0301]…"


def test_a_mark_of_the_template_is_no_part_of_a_word() -> None:
    found = parted("kind.<|end|><|user|>", "Hi<|end|>", "Ho<|end|>")
    assert found.marked.endswith("<|user|>[Hi|Ho]<|end|>…")


def test_a_word_is_shown_to_its_end() -> None:
    one, other = "4f1c2d9ab0e84d1bb8c1", "a0b7719cd3c94a6f9e2d"
    assert f"[{one}|{other}]" in parted("id ", f"{one} is", f"{other} is").marked


def test_where_texts_meet_again() -> None:
    rest = " is the one whom you help in this shop for bicycles."
    assert len(rest) > SAME
    assert meeting("Ann Lee" + rest, "Bob" + rest) == (7, 3)
    assert meeting(rest, "Bob" + rest) == (0, 3)
    assert meeting("Bob" + rest, rest) == (3, 0)
    assert meeting("Ann" + rest, "Bob") is None


def test_a_long_line_in_front_is_looked_through_once() -> None:
    begun = time.thread_time()
    assert kind_of("x" * 30_000 + "\nSo, ", "cc dd", "ee ff") is DifferenceKind.TEXT
    assert time.thread_time() - begun < 0.2
