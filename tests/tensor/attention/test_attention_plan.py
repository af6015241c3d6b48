from __future__ import annotations

import pytest

from radixlm.attention.plan import make_plan
from radixlm.core.batch import Extent, ScheduledRow
from tests.tensor.rows import make_row


def _decode(length: int) -> ScheduledRow:
    return make_row([1] * length)


def _widths(lengths: list[int], group_tokens: int) -> list[list[int]]:
    plan = make_plan([_decode(length) for length in lengths], group_tokens)
    return [[span.context for span in group] for group in plan.groups]


def test_neighbouring_extents_merge_into_a_view() -> None:
    (chunk,) = make_plan([make_row([1] * 6, slots=range(10, 16), start=2)], 100).chunks
    assert chunk.view == Extent(10, 16)
    (chunk,) = make_plan([make_row([1] * 4, slots=[0, 1, 5, 6], start=2)], 100).chunks
    assert chunk.view is None
    (chunk,) = make_plan([make_row([1] * 4, slots=[0, 1, 3, 4], start=2)], 100).chunks
    assert chunk.view is None


def test_rows_are_told_apart_by_their_new_tokens() -> None:
    rows = [make_row([1] * 6, start=2), _decode(5), make_row([1] * 3, start=0), _decode(4)]
    plan = make_plan(rows, 100)
    assert [(span.token, span.n_new, span.context) for span in plan.chunks] == [
        (0, 4, 6),
        (5, 3, 3),
    ]
    (group,) = plan.groups
    assert [(span.token, span.n_new, span.context) for span in group] == [(4, 1, 5), (8, 1, 4)]


def test_groups_hold_similar_lengths_within_the_budget() -> None:
    assert _widths([1000, 300, 900, 10, 60], 10_000) == [[1000, 900], [300], [60, 10]]
    assert _widths([100, 100, 100, 100, 100], 250) == [[100, 100], [100, 100], [100]]
    assert _widths([500, 499], 100) == [[500], [499]]


def test_segments_that_do_not_cover_the_row_are_refused() -> None:
    row = _decode(5)
    object.__setattr__(row, "segments", row.segments[:1])
    with pytest.raises(ValueError, match="row-0 cover 4 of 5 tokens"):
        make_plan([row], 100)
