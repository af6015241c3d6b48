"""The tier on disk: locks, placeholders, what is written, and what a miss says of it."""

from __future__ import annotations

import numpy as np
import pytest

from radixlm.cache import RadixCache, Usage, make_policy
from radixlm.cache.places.stored import StoredTier
from radixlm.core.clock import VirtualClock
from radixlm.core.config import DiskWritePolicy
from radixlm.core.errors import CacheError, ConfigError, InvalidKeyError
from radixlm.core.keys import Key, as_key
from radixlm.core.misses import MissReason
from radixlm.core.moves import Place
from tests.invariants import check

B = 4
KEY = as_key(range(16))


@pytest.fixture
def cache() -> RadixCache:
    return RadixCache(capacity=20, clock=VirtualClock())


@pytest.fixture
def tier(cache: RadixCache) -> StoredTier:
    return cache.add_store(Place.DISK, B, 6 * B + 1)


def use(cache: RadixCache, key: Key, times: int = 1) -> str:
    for _ in range(times):
        lease = cache.acquire(key)
        assert lease.extend(key.size - lease.cached) is not None
        lease.commit(key.size)
        lease.release()
    return str(lease.why())


def written(
    tier: StoredTier, policy: DiskWritePolicy, n_tokens: int = 100
) -> list[tuple[int, int]]:
    """Start and end of each path's blocks."""
    return [(item.start, item.tokens.size) for item in tier.queue.take(policy, n_tokens)]


class TestBooks:
    def test_a_chain_of_blocks_is_one_node(self, cache: RadixCache, tier: StoredTier) -> None:
        """As an index gives them, block by block."""
        for end in range(B, KEY.size + 1, B):
            tier.stored(KEY, None, end - B, end)
        assert sorted(len(node) for node in cache.tree.nodes()) == [0, 16]
        assert (tier.restorable(KEY[:15], None), cache.match(KEY).length) == (12, 0)
        assert tier.usage() == Usage(2 * B, 0, 0, 4 * B)
        check(cache)

    def test_a_lock_keeps_its_own_path_only(self, cache: RadixCache, tier: StoredTier) -> None:
        tier.stored(KEY, None, 0, 16)
        held = tier.lock(KEY, None, 2 * B)
        assert tier.usage().locked == 2 * B
        tier.clear()
        assert tier.length_of(KEY, None) == 2 * B
        tier.unlock(held)
        assert tier.usage().evictable == 2 * B
        check(cache)

    def test_a_lock_outlives_what_it_was_on(self, cache: RadixCache, tier: StoredTier) -> None:
        """Two paths part at 8: the deeper lock ends at what is left of its path."""
        other = as_key([*range(8), *range(20, 28)])
        tier.stored(KEY, None, 0, 16)
        tier.stored(other, None, 8, 12)
        held = tier.lock(KEY, None, 16)
        tier.gone(KEY, None, 8)
        check(cache)
        assert tier.usage() == Usage(3 * B, 0, 2 * B, B)
        tier.clear()
        assert tier.length_of(KEY, None) == 8
        tier.unlock(held)
        assert tier.usage().locked == 0
        check(cache)

    def test_a_merged_node_goes_when_its_older_part_would(
        self, cache: RadixCache, tier: StoredTier
    ) -> None:
        cache.tree.set_policy(make_policy("fifo"))
        first = cache.acquire(KEY)
        first.extend(12)
        first.commit(8)
        reader = cache.acquire(KEY[:9])
        use(cache, KEY[12:])
        first.commit(12)
        tier.stored(KEY, None, 0, 12)
        tier.stored(KEY[12:], None, 0, 4)
        reader.release()
        assert tier.reserve(3 * B)
        assert [item.tokens.tolist() for item in tier.take_dropped()] == [list(range(12))]

    def test_blocks_behind_a_gap_are_refused(self, tier: StoredTier) -> None:
        tier.stored(KEY, None, B, 2 * B)
        [refused] = tier.take_dropped()
        assert (refused.tokens.size, refused.start) == (2 * B, B)
        assert tier.usage().free == tier.capacity

    def test_reservations_are_in_blocks_and_bounded(self, tier: StoredTier) -> None:
        assert not tier.reserve(7 * B)
        assert tier.reserve(6 * B)
        tier.stored(KEY, None, 0, 2 * B, reserved=3 * B)
        assert tier.usage() == Usage(B, 3 * B, 0, 2 * B)
        with pytest.raises(CacheError, match="16 reserved tokens to give back, there are 12"):
            tier.give_back(4 * B)
        with pytest.raises(CacheError, match="3 tokens are not whole blocks of 4"):
            tier.reserve(3)

    @pytest.mark.parametrize(("block", "capacity"), [(0, 8), (3, 8), (4, 3)])
    def test_sizes_that_make_no_tier(self, block: int, capacity: int) -> None:
        with pytest.raises(ConfigError, match=f"{block}"):
            RadixCache(capacity=8, page_size=2).add_store(Place.DISK, block, capacity)

    def test_ids_from_disk_are_not_trusted(self, tier: StoredTier) -> None:
        with pytest.raises(InvalidKeyError, match="-1"):
            tier.stored(np.array([1, 2, 3, -1], dtype=np.int32), None, 0, 4)
        assert tier.usage().free == tier.capacity

    def test_a_flush_leaves_the_disk_alone(self, cache: RadixCache, tier: StoredTier) -> None:
        use(cache, KEY)
        tier.stored(KEY, None, 0, 8)
        cache.flush()
        assert (tier.length_of(KEY, None), cache.match(KEY).length) == (8, 0)
        assert cache.tree.ghosts.size == 0


class TestWriting:
    def test_all_takes_what_was_committed_once(self, cache: RadixCache, tier: StoredTier) -> None:
        use(cache, KEY[:14])
        assert written(tier, "all") == [(0, 12)]
        assert written(tier, "all") == []

    def test_what_has_no_room_yet_comes_again(self, cache: RadixCache, tier: StoredTier) -> None:
        use(cache, KEY)
        assert written(tier, "all", 9) == [(0, 8)]
        tier.stored(KEY, None, 0, 8)
        assert written(tier, "all", 9) == [(8, 16)]

    def test_selective_takes_what_was_used_twice(self, cache: RadixCache, tier: StoredTier) -> None:
        use(cache, KEY[:9])
        assert written(tier, "selective") == []
        use(cache, KEY)
        assert written(tier, "selective") == [(0, 8)]

    def test_a_merged_path_is_not_lost(self, cache: RadixCache, tier: StoredTier) -> None:
        first = cache.acquire(KEY)
        first.extend(16)
        first.commit(8)
        reader = cache.acquire(KEY[:9])  # it keeps this a node, so that what follows is a child
        first.commit(16)
        assert written(tier, "all") == [(0, 8), (8, 16)]
        tier.queue.note(reader.node)
        reader.release()
        assert cache.tree.stats.merges == 1
        assert written(tier, "all") == [(0, 16)]

    def test_evict_waits_until_the_pool_is_nearly_full(
        self, cache: RadixCache, tier: StoredTier
    ) -> None:
        use(cache, KEY[:12])
        assert written(tier, "evict") == []
        use(cache, KEY[::-1][:8].copy())
        assert written(tier, "evict") == [(0, 12), (0, 8)]
        use(cache, KEY[:12])
        assert written(tier, "evict") == [(0, 8), (0, 12)]
        assert written(tier, "off") == []

    def test_at_stop_the_best_comes_first(self, cache: RadixCache, tier: StoredTier) -> None:
        use(cache, KEY[:8])
        use(cache, KEY[8:].copy())
        best = tier.queue.rest(B)
        assert [item.tokens.tolist() for item in best] == [KEY[8:12].tolist()]


class TestMisses:
    def test_evicted_says_on_disk(self, cache: RadixCache, tier: StoredTier) -> None:
        use(cache, KEY)
        tier.stored(KEY, None, 0, 12)
        use(cache, KEY[::-1].copy())
        why = use(cache, KEY)
        assert why.startswith("4 of 16 tokens cached; 11 from token 4 on were evicted 0.0 s ago")
        assert why.endswith("after 0 hits, 8 are on disk")

    def test_what_another_run_stored(self, cache: RadixCache, tier: StoredTier) -> None:
        tier.stored(KEY, None, 0, 12)
        report = cache.explain(KEY).report
        assert (report.on_disk, report.evicted, report.evicted_ago) == (12, 12, None)
        assert (
            str(report)
            == "0 of 16 tokens cached; 12 from token 0 on were never in this pool, 12 are on disk"
        )

    def test_what_fills_no_block_is_not_called_new(
        self, cache: RadixCache, tier: StoredTier
    ) -> None:
        """The tokens after the last whole block may have been computed before a restart, too."""
        tier.stored(KEY, None, 0, 12)
        reader = cache.hold(KEY[:12], None, 0)
        assert reader.extend(12) is not None
        reader.commit(12)
        reader.release()
        longer = as_key(range(20))
        assert cache.explain(longer).report.reason is MissReason.NEW, "a whole block more"
        why = use(cache, KEY)
        assert why == "12 of 16 tokens cached; the tokens from 12 on fill no block on disk"
        assert use(cache, longer).endswith("nothing known goes on at token 16")

    def test_a_pool_of_any_size_has_the_same_disk(
        self, cache: RadixCache, tier: StoredTier
    ) -> None:
        use(cache, KEY)
        tier.stored(KEY, None, 0, 12)
        use(cache, as_key(range(100, 120)))
        lease = cache.acquire(KEY)
        lease.release()
        assert lease.expected == (12, 12, 15, 15)
