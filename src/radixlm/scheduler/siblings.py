"""Siblings of drafts: the other way that a draft may go, computed in the same step."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from radixlm.cache.radix.allocator import split_runs
from radixlm.core.batch import Remap, ScheduledRow, Segment
from radixlm.drafts.draft import Draft, Sibling
from radixlm.scheduler.state import RequestState

# Segments that a row and its sibling share have numbers from here down, other nodes rise from 0.
_FIRST_NAME = -2


def with_sibling(
    row: ScheduledRow, state: RequestState, its: Sibling, table_row: int
) -> ScheduledRow:
    """The row with a sibling, whose slots follow on its own in the lease; it begins with the first
    token that differs, and shares all that comes before.

        tokens of the row    ... t7 | t8   d0   d1   d2
        of its sibling       ... t7 | t8   d0 | s1   s2         after: 1
                              shared  in the row's slots
    """
    start, lease = row.known + its.after, state.running_lease
    path, slots = lease.segments(lease.committed), lease.slots
    seen = slots[lease.committed : row.start]
    if seen.size:
        name = _FIRST_NAME - state.row
        path = *path, Segment(name, lease.committed, row.start, split_runs(seen))
    new = slots[row.stop : row.stop + len(its.tokens)]
    between = slots[row.start : start]
    tail = Segment(None, row.start, start + new.size, split_runs(np.concatenate((between, new))))
    sibling = replace(
        row,
        row=table_row,
        beside=row.row,
        tokens=np.concatenate((row.tokens[:start], np.array(its.tokens, dtype=np.int32))),
        start=start,
        new_slots=new,
        remaps=(),
        segments=(*path, tail),
        drafted=new.size - 1,
    )
    own = Segment(None, row.start, row.stop, split_runs(row.new_slots))
    return replace(row, segments=(*path, own), sibling=sibling)


def take_sibling(state: RequestState, draft: Draft, accepted: int) -> None:
    """Have the first `accepted` tokens that were computed after those known be its sibling's, from
    where the draft was wrong; the device's table follows.
    """
    if (its := draft.sibling) is None:
        return
    start, first = state.computed + its.after, state.computed + len(draft.tokens)
    lease, count = state.running_lease, accepted - its.after
    lease.prefer(start, first, first + count)
    state.remaps.append(Remap(start, lease.slots[start : start + count].copy()))
