"""Slots laid aside: growing leases lie in long runs, and nobody goes without for it."""

from __future__ import annotations

import numpy as np
import pytest

from radixlm.cache import Lease, RadixCache
from radixlm.cache.radix.allocator import split_runs
from tests.invariants import check


def _lease(cache: RadixCache, first: int, room: int = 40) -> Lease:
    return cache.acquire(np.full(room, first, dtype=np.int32), n_tokens=2)


def test_leases_that_grow_in_turn_lie_in_long_runs() -> None:
    for reserve, runs in ((0, 31), (16, 2)):
        cache = RadixCache(400, reserve=reserve)
        leases = [_lease(cache, first) for first in (1, 2, 3)]
        for lease in leases:
            lease.extend(2)
        for _ in range(30):
            for lease in leases:
                assert lease.extend(1) is not None
                check(cache)
        assert [len(split_runs(lease.slots)) for lease in leases] == [runs] * 3


def test_one_alone_lies_in_one_run() -> None:
    cache = RadixCache(200, reserve=8)
    lease = _lease(cache, 1)
    for _ in range(38):
        lease.extend(1)
    assert len(split_runs(lease.slots)) == 1


def test_no_more_is_laid_aside_than_may_come() -> None:
    cache = RadixCache(200, reserve=16)
    lease = _lease(cache, 1, room=6)
    lease.extend(2)
    assert (lease.length, lease.reserve, cache.usage().private) == (2, 4, 6)


@pytest.mark.parametrize("page_size", [1, 4])
def test_reserves_are_given_back_when_they_are_needed(page_size: int) -> None:
    cache = RadixCache(256, page_size, reserve=16)
    first, second = _lease(cache, 1), _lease(cache, 2, 256)
    assert first.extend(2) is not None
    own = max(page_size, 2)
    assert first.reserve == 16
    assert second.extend(252) is not None
    check(cache)
    assert first.reserve == 0
    assert [segment.stop for segment in first.segments()] == [2]
    assert first.block_table().size == own // page_size
    assert second.extend(5) is None
    second.release()
    assert first.extend(20) is not None
    assert len(np.unique(first.slots)) == 22
    first.release()
    check(cache)
    assert cache.usage().free == 256


def test_segments_leave_out_reserves_of_several_runs() -> None:
    cache = RadixCache(64, reserve=8)
    holes = [cache.acquire([9] * 4, namespace=index) for index in range(16)]
    for hole in holes:
        hole.extend(4)
    for hole in holes[::2]:
        hole.release()
    lease = _lease(cache, 1)
    lease.extend(2)
    assert lease.reserve == 8
    [segment] = lease.segments()
    assert sum(extent.stop - extent.start for extent in segment.extents) == 2
    assert lease.segments()[-1].extents == split_runs(lease.slots)


def test_reserves_are_a_small_share_of_the_pool() -> None:
    cache = RadixCache(160, reserve=8)
    leases = [_lease(cache, first) for first in range(4)]
    for lease in leases:
        lease.extend(2)
    assert [lease.reserve for lease in leases] == [8, 8, 0, 0]


def test_what_cannot_be_given_changes_nothing() -> None:
    cache = RadixCache(256, reserve=16)
    first, second = _lease(cache, 1), _lease(cache, 2, 300)
    first.extend(2)
    before = (cache.usage(), first.reserve)
    assert second.extend(255) is None
    assert (cache.usage(), first.reserve) == before
    assert cache.available == 254
    assert second.extend(254) is not None
    check(cache)


def test_others_keep_what_is_not_needed_of_them() -> None:
    cache = RadixCache(256, reserve=8)
    leases = [_lease(cache, first) for first in range(4)]
    for lease in leases:
        lease.extend(1)
    big = _lease(cache, 9, 300)
    assert big.extend(cache.usage().free + 5) is not None
    assert sorted(lease.reserve for lease in leases) == [0, 8, 8, 8]
    check(cache)


def test_reserves_are_taken_back_oldest_lease_first() -> None:
    """Not by where leases lie in memory: runs repeat."""
    cache = RadixCache(1024, reserve=8)
    leases = [_lease(cache, first) for first in range(12)]
    for lease in leases:
        lease.extend(1)
    big = _lease(cache, 99, 1_100)
    assert big.extend(cache.usage().free + 40) is not None
    assert [lease.reserve for lease in leases] == [0] * 5 + [8] * 7
