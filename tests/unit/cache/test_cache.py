"""RadixCache and Lease: acquire, extend, commit while running, remap, release."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from radixlm.cache import Lease, RadixCache, Usage
from tests.invariants import check

PAGE_SIZES = [1, 4, 16]


def compute(lease: Lease, upto: int | None = None) -> np.ndarray:
    """Extend to `upto` and commit all of it."""
    upto = lease.key.size if upto is None else upto
    slots = lease.extend(upto - lease.length)
    assert slots is not None
    lease.commit(upto)
    return slots


def serve(cache: RadixCache, tokens: list[int], namespace: str | None = None) -> int:
    """One request from beginning to end; returns the tokens it found."""
    lease = cache.acquire(tokens, namespace)
    compute(lease)
    lease.release()
    check(cache)
    return lease.cached


def in_order(lease: Lease) -> list[int]:
    """Slots as the segments say; they must cover [0, length)."""
    at, slots = 0, []
    for segment in lease.segments():
        assert segment.start == at < segment.stop
        mine = [slot for extent in segment.extents for slot in range(*extent)]
        assert len(mine) == segment.stop - segment.start
        slots += mine
        at = segment.stop
    assert at == lease.length
    return slots


class TestLifeOfALease:
    @pytest.mark.parametrize("page_size", PAGE_SIZES)
    def test_a_second_request_starts_where_the_tree_ends(self, page_size: int) -> None:
        cache = RadixCache(16 * page_size, page_size)
        key = [*list(range(3 * page_size)), 500]
        assert serve(cache, key) == 0
        assert serve(cache, key) == 3 * page_size
        assert serve(cache, [*key[: 2 * page_size], 900, 901]) == 2 * page_size

    def test_the_last_token_is_always_computed(self) -> None:
        cache = RadixCache(16)
        serve(cache, [1, 2, 3])
        assert cache.acquire([1, 2, 3]).cached == 2

    @pytest.mark.parametrize(("limit", "cached"), [(0, 0), (1, 1), (3, 3), (99, 3), (-1, 0)])
    def test_max_match_caps_the_match(self, limit: int, cached: int) -> None:
        cache = RadixCache(16)
        serve(cache, [1, 2, 3])
        lease = cache.acquire([1, 2, 3], max_match=limit)
        assert lease.cached == cached == cache.match([1, 2, 3], max_match=limit).length
        check(cache)

    def test_usage_follows_the_slots_life(self) -> None:
        cache = RadixCache(16, 4)
        lease = cache.acquire(range(10))
        assert cache.usage() == Usage(16, 0, 0, 0)
        lease.extend(9)
        assert cache.usage() == Usage(4, 12, 0, 0)
        lease.extend(1)
        assert (cache.usage(), lease.private_size) == (Usage(4, 12, 0, 0), 12)
        lease.commit(9)
        assert cache.usage() == Usage(4, 4, 8, 0)
        check(cache)
        lease.release()
        assert (cache.usage(), cache.available) == (Usage(8, 0, 0, 8), 16)
        assert cache.flush() == 8
        assert (cache.usage(), cache.tree.node_count) == (Usage(16, 0, 0, 0), 0)

    def test_capacity_is_rounded_down_to_pages(self) -> None:
        assert RadixCache(19, 4).capacity == 16

    @pytest.mark.parametrize("page_size", PAGE_SIZES)
    def test_extend_hands_out_one_run_and_uses_up_its_page(self, page_size: int) -> None:
        cache = RadixCache(8 * page_size, page_size)
        lease = cache.acquire([0] * (6 * page_size))
        for _ in range(2 * page_size + 1):
            assert lease.extend(1) is not None
        assert lease.slots.tolist() == list(range(2 * page_size + 1))
        assert cache.usage().private == 3 * page_size
        check(cache)

    def test_a_key_that_grows_while_the_request_runs(self) -> None:
        cache = RadixCache(32)
        lease = cache.acquire([1, 2])
        compute(lease)
        buffer = np.array([1, 2, 7, 8, 9], dtype=np.int32)
        lease.key = buffer
        for _ in range(3):
            lease.extend(1)
        lease.commit(5)
        check(cache)
        lease.release()
        assert cache.match([1, 2, 7, 8, 9, 0]).length == 5

    def test_commit_without_anything_new_is_nothing(self) -> None:
        cache = RadixCache(16)
        lease = cache.acquire([1, 2, 3])
        assert lease.commit(0) is None
        compute(lease)
        version = cache.tree.version
        assert (lease.commit(3), lease.commit(1), cache.tree.version) == (None, None, version)

    def test_own_leaf_grows_in_place(self) -> None:
        cache = RadixCache(32)
        lease = cache.acquire(range(20))
        for upto in (5, 9, 20):
            compute(lease, upto)
        assert (cache.tree.node_count, len(lease.segments())) == (2, 1)

    def test_a_leaf_that_another_lease_holds_does_not_grow(self) -> None:
        cache = RadixCache(32)
        first = cache.acquire([1, 2, 3, 4])
        compute(first, 2)
        second = cache.acquire([1, 2, 9])
        compute(first)
        assert (second.committed, first.committed) == (2, 4)
        assert first.node.parent is second.node
        check(cache)


class TestRemap:
    @pytest.mark.parametrize("page_size", PAGE_SIZES)
    def test_the_first_commit_wins(self, page_size: int) -> None:
        cache = RadixCache(16 * page_size, page_size)
        key = [k for k in (1, 2, 3) for _ in range(page_size)]
        first, second = cache.acquire(key), cache.acquire([*key, 7])
        first.extend(len(key))
        second.extend(len(key) + 1)
        private = second.slots[len(key) :].tolist()
        assert first.commit(len(key)) is None
        remap = second.commit(len(key))
        assert remap is not None
        assert (remap.start, remap.slots.tolist()) == (0, first.slots.tolist())
        assert second.slots.tolist() == first.slots.tolist() + private
        assert cache.usage() == Usage(12 * page_size, page_size, 3 * page_size, 0)
        check(cache)

    def test_only_what_was_there_is_remapped(self) -> None:
        cache = RadixCache(32)
        first, second = cache.acquire([1, 2, 3]), cache.acquire([1, 2, 8, 9])
        first.extend(3)
        own = second.extend(4).tolist()
        first.commit(3)
        remap = second.commit(4)
        assert (remap.start, remap.slots.tolist()) == (0, first.slots[:2].tolist())
        assert second.slots.tolist() == [*first.slots[:2].tolist(), *own[2:]]
        check(cache)

    def test_it_starts_where_the_commit_started(self) -> None:
        cache = RadixCache(32)
        serve(cache, [1, 2])
        first, second = cache.acquire([1, 2, 3, 4]), cache.acquire([1, 2, 3, 4])
        compute(first)
        second.extend(2)
        remap = second.commit(4)
        assert (remap.start, remap.slots.tolist()) == (2, first.slots[2:].tolist())
        check(cache)

    def test_segments_follow_a_commit_that_changes_no_node(self) -> None:
        """All was there: no node changes, but the lease's path is longer than it was."""
        cache = RadixCache(32)
        first, second = cache.acquire([1, 2, 3]), cache.acquire([1, 2, 3])
        first.extend(3)
        second.extend(3)
        first.commit(3)
        in_order(second)
        second.commit(3)
        assert in_order(second) == second.slots.tolist() == in_order(first)
        assert first.segments() == second.segments()


class TestRoom:
    def test_extend_evicts_only_what_is_needed_and_the_oldest_first(self) -> None:
        cache = RadixCache(8)
        serve(cache, [1, 2, 3])
        serve(cache, [4, 5, 6])
        lease = cache.acquire([7, 7, 7, 7])
        assert lease.extend(4) is not None
        assert cache.match([1, 2, 3, 0]).length == 1
        assert cache.match([4, 5, 6, 0]).length == 3
        check(cache)

    @pytest.mark.parametrize("page_size", [1, 4, 16, 256])
    def test_eviction_makes_room_by_a_quantum(self, page_size: int) -> None:
        """Decoding in a full pool evicts once in a while, not for every token."""
        cache = RadixCache(64 * 256, page_size)
        serve(cache, [1] * 64 * 256)
        lease = cache.acquire([7, 8])
        quantum = max(256, page_size)
        for generated in range(1, 3 * quantum + 1):
            lease.extend(1)
            quanta = -(-generated // quantum)
            assert cache.tree.stats.evictions == quanta
            assert cache.tree.stats.evicted_tokens == quanta * quantum
        check(cache)

    @pytest.mark.parametrize(("capacity", "page_size", "quantum"), [
        (32, 1, 1), (64 * 10, 1, 10), (64 * 10, 4, 12), (256, 16, 16), (10**6, 1, 256),
    ])  # fmt: skip
    def test_a_quantum_is_a_small_share_of_the_pool(
        self, capacity: int, page_size: int, quantum: int
    ) -> None:
        cache = RadixCache(capacity, page_size)
        serve(cache, [1] * cache.capacity)
        cache.acquire([7]).extend(1)
        assert cache.tree.stats.evicted_tokens == quantum

    def test_a_quantum_is_no_more_than_is_evictable(self) -> None:
        cache = RadixCache(64 * 64)
        serve(cache, [1] * 20)
        first = cache.acquire([2] * (64 * 64))
        assert first.extend(64 * 64 - 20) is not None
        assert first.extend(1) is not None
        assert cache.usage() == Usage(19, 64 * 64 - 19, 0, 0)
        assert first.extend(20) is None

    def test_locked_is_never_evicted(self) -> None:
        cache = RadixCache(6)
        serve(cache, [1, 2, 3, 4])
        held = cache.acquire([1, 2, 3])
        lease = cache.acquire([9] * 5)
        assert lease.extend(5) is None
        assert lease.extend(4) is not None
        assert (held.slots.tolist(), cache.available) == ([0, 1], 0)
        check(cache)

    @pytest.mark.parametrize("page_size", PAGE_SIZES)
    def test_none_changes_nothing(self, page_size: int) -> None:
        cache = RadixCache(4 * page_size, page_size)
        serve(cache, list(range(2 * page_size)))
        lease = cache.acquire([99] * (5 * page_size))
        before = (cache.usage(), cache.tree.version)
        assert lease.extend(4 * page_size + 1) is None
        assert (cache.usage(), cache.tree.version, lease.length) == (*before, 0)
        assert lease.extend(4 * page_size) is not None
        check(cache)

    def test_available_after_a_match(self) -> None:
        cache = RadixCache(10)
        serve(cache, [1, 2, 3, 4])
        match = cache.match([1, 2, 3, 9])
        assert (cache.available, cache.available_after(match)) == (10, 7)
        cache.acquire([1, 2, 3, 9])
        assert cache.available == 7
        assert cache.available_after(cache.match([1, 2, 3, 9])) == 7

    def test_flush_leaves_what_is_used(self) -> None:
        cache = RadixCache(16)
        serve(cache, [1, 2, 3, 4])
        serve(cache, [5, 6])
        lease = cache.acquire([1, 2, 3])
        assert cache.flush() == 4
        assert lease.slots.tolist() == [0, 1]
        assert cache.flush() == 0
        check(cache)


class TestNamespaces:
    def test_never_share(self) -> None:
        cache = RadixCache(32)
        serve(cache, [1, 2, 3])
        assert serve(cache, [1, 2, 3], "adapter") == 0
        assert serve(cache, [1, 2, 3], "adapter") == 2
        assert cache.usage().evictable == 6

    def test_leave_no_root_behind(self) -> None:
        cache = RadixCache(32)
        for name in "abcdef":
            cache.acquire([1, 2], name).release()
        assert cache.tree.node_count == 0
        check(cache)


class TestDisabled:
    @pytest.mark.parametrize("page_size", PAGE_SIZES)
    def test_shares_and_keeps_nothing(self, page_size: int) -> None:
        cache = RadixCache(8 * page_size, page_size, enabled=False)
        first, second = (cache.acquire([5] * (2 * page_size)) for _ in range(2))
        compute(first)
        assert (first.committed, first.private_size) == (0, 2 * page_size)
        assert second.extend(2 * page_size) is not None
        assert not set(first.slots) & set(second.slots)
        assert in_order(first) == first.slots.tolist()
        assert [s.node_id for s in first.segments()] == [None]
        check(cache)
        first.release()
        second.release()
        assert (cache.usage(), cache.tree.node_count) == (Usage(8 * page_size, 0, 0, 0), 0)
        assert cache.match([5] * 8).length == 0


class TestSegments:
    @pytest.mark.parametrize("page_size", PAGE_SIZES)
    def test_cover_the_tokens_and_name_shared_nodes_alike(self, page_size: int) -> None:
        cache = RadixCache(32 * page_size, page_size)
        common = [1] * (2 * page_size)
        serve(cache, common)
        leases = [cache.acquire(common + [7 + row] * (page_size + 1)) for row in range(3)]
        for lease in leases:
            lease.extend(lease.key.size - lease.length)
        leases[0].commit(leases[0].length)
        for lease in leases:
            assert in_order(lease) == lease.slots.tolist()
        shared = {lease.segments()[0] for lease in leases}
        assert len(shared) == 1
        assert [lease.segments()[-1].node_id for lease in leases[1:]] == [None, None]

    def test_reserved_slots_are_not_part_of_them(self) -> None:
        cache = RadixCache(32, 16)
        lease = cache.acquire([1, 2, 3])
        lease.extend(2)
        assert lease.segments()[0].extents == ((0, 2),)

    def test_a_split_by_someone_else_shows(self) -> None:
        cache = RadixCache(32)
        lease = cache.acquire([1, 2, 3, 4])
        compute(lease)
        before = lease.segments()
        cache.acquire([1, 2, 9])
        assert (len(before), len(lease.segments())) == (1, 2)
        assert in_order(lease) == lease.slots.tolist()

    def test_extents_are_maximal_runs_in_token_order(self) -> None:
        cache = RadixCache(16)
        blocker = cache.acquire([9] * 4)
        blocker.extend(2)
        lease = cache.acquire([1] * 8)
        lease.extend(3)
        blocker.extend(2)
        lease.extend(2)
        lease.extend(1)
        assert lease.segments()[0].extents == ((2, 5), (7, 10))
        lease.commit(4)
        assert [segment.extents for segment in lease.segments()] == [
            ((2, 5), (7, 8)),
            ((8, 10),),
        ]

    def test_depth_first_makes_readers_neighbours(self) -> None:
        cache = RadixCache(128)
        keys = [[a, b, c] for c in (1, 2) for b in (1, 2) for a in (1, 2)]
        leases = [cache.acquire([*key, 7]) for key in keys]
        for lease in leases:
            compute(lease)
        order = cache.depth_first(leases)
        assert sorted(map(id, order)) == sorted(map(id, leases))
        for depth in (1, 2, 3):
            prefixes = [tuple(lease.key[:depth]) for lease in order]
            changes = sum(a != b for a, b in itertools.pairwise(prefixes))
            assert changes + 1 == len(set(prefixes))


@pytest.mark.parametrize("changed", [False, True])
def test_a_match_is_used_again_unless_the_tree_has_changed(changed: bool) -> None:
    cache = RadixCache(16)
    first = cache.acquire([1, 2, 3, 4])
    first.extend(4)
    first.commit(2)
    match = cache.match([1, 2, 3, 9])
    if changed:
        first.commit(4)
    lease = cache.acquire([1, 2, 3, 9], match=match)
    assert lease.cached == (3 if changed else 2)
    check(cache)
