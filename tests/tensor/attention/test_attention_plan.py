from __future__ import annotations

import pytest

from radixlm.attention.plan import make_plan
from radixlm.attention.torch_reads import grouped, view_of
from radixlm.core.batch import Extent, ScheduledRow
from tests.tensor.rows import make_row


def _decode(length: int) -> ScheduledRow:
    return make_row([1] * length)


def _widths(lengths: list[int], group_tokens: int) -> list[list[int]]:
    plan = make_plan([_decode(length) for length in lengths])
    return [[span.context for span in group] for group in grouped(plan.rows, group_tokens)]


def test_neighbouring_extents_merge_into_a_view() -> None:
    for slots, view in [
        (range(10, 16), Extent(10, 16)),
        ([0, 1, 5, 6], None),
        ([0, 1, 3, 4], None),
    ]:
        (span,) = make_plan([make_row([1] * len(slots), slots=slots, start=2)]).rows
        assert view_of(span) == view


def test_rows_follow_each_other() -> None:
    rows = [make_row([1] * 6, start=2), _decode(5), make_row([1] * 3, start=0), _decode(4)]
    spans = make_plan(rows).rows
    assert [(span.token, span.n_new, span.context) for span in spans] == [
        (0, 4, 6),
        (4, 1, 5),
        (5, 3, 3),
        (8, 1, 4),
    ]


def test_groups_hold_similar_lengths_within_the_budget() -> None:
    assert _widths([1000, 300, 900, 10, 60], 10_000) == [[1000, 900], [300], [60, 10]]
    assert _widths([100, 100, 100, 100, 100], 250) == [[100, 100], [100, 100], [100]]
    assert _widths([500, 499], 100) == [[500], [499]]


def test_segments_that_do_not_cover_the_row_are_refused() -> None:
    row = _decode(5)
    object.__setattr__(row, "segments", row.segments[:1])
    with pytest.raises(ValueError, match="row-0 cover 4 of 5 tokens"):
        make_plan([row])
