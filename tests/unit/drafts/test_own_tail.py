"""A text's last tokens in itself."""

from __future__ import annotations

from radixlm.core.keys import as_key
from radixlm.drafts.own_tail import find_within, going_on
from radixlm.drafts.token_log import NOTHING, Found


def within(*tokens: int) -> Found:
    return find_within(as_key(tokens).tobytes())


def test_the_longest_then_the_newest() -> None:
    assert within(9, 1, 2, 3, 4, 5, 1, 2, 3, 4, 6, 9, 1, 2, 3, 4) == Found(5, 5)
    assert within(1, 2, 3, 4, 5, 1, 2, 3, 4, 6, 1, 2, 3, 4) == Found(4, 9)
    assert within(1, 2, 8, 2, 7, 1, 2) == Found(2, 2)
    assert within(1, 2, 8, 2, 7, 2) == Found(1, 4)
    assert within(1, 2, 3) == NOTHING
    assert within(1) == NOTHING


def test_bytes_between_tokens_are_no_match() -> None:
    assert within(1 << 8, 0, 1) == NOTHING  # 00 01 00 00 | 00 00 00 00 | 01 00 00 00
    assert within(1, 1 << 8, 0, 1) == Found(1, 1)


def test_a_period_goes_on() -> None:
    assert within(7, 7, 7) == Found(2, 2)
    assert going_on([7, 7, 7], 2, 4) == [7, 7, 7, 7]
