"""What can be restored where layers with a window have slots of their own: a run of blocks as long
as a window, stored with the part of these layers.
"""

from __future__ import annotations

import numpy as np
import pytest

from radixlm.cache import RadixCache
from radixlm.cache.components.window_slots import WindowSize, WindowSlots
from radixlm.cache.places.stored import StoredTier
from radixlm.core.keys import Key, as_key
from radixlm.core.misses import MissReason
from radixlm.core.moves import Place

BLOCK = 4
KEY = as_key(range(40))
SIZE = WindowSize(window=6, capacity=60, step=4, block=BLOCK)


def made(page: int = 1) -> tuple[RadixCache, StoredTier, WindowSlots]:
    cache = RadixCache(400, page, windows=SIZE)
    assert cache.windows is not None
    return cache, cache.add_store(Place.HOST, BLOCK, 100 * BLOCK), cache.windows


def computed(cache: RadixCache, key: Key) -> None:
    lease = cache.acquire(key)
    assert lease.extend(key.size - lease.length) is not None
    lease.commit(key.size)
    lease.release()


@pytest.mark.parametrize(
    ("windows", "usable"),
    [
        (0b00, 0),
        (0b01, 4),  # before it there is nothing
        (0b11, 8),
        (0b1010, 0),
        (0b0110, 12),  # the last token may be computed: a window before it takes two blocks
        (0b110110, 24),
        (0b0111011, 24),
        (0b1011011, 20),
        (-1, 40),
    ],
)
def test_the_longest_prefix_whose_last_window_is_stored(windows: int, usable: int) -> None:
    cache, tier, _ = made()
    tier.stored(KEY, None, 0, 40, windows=windows)
    assert tier.length_of(KEY, None) == 40
    assert tier.restorable(KEY, None) == usable
    assert tier.restorable(KEY[:usable], None) == usable
    computed(cache, as_key([*range(13), 99]))  # paths part within a block, and join again
    assert tier.restorable(KEY, None) == usable
    cache.flush()
    assert tier.usage().evictable == 0


def test_what_is_written_again_with_windows_counts_and_what_is_dropped_does_not() -> None:
    _, tier, _ = made()
    tier.stored(KEY, None, 0, 24, windows=0)
    assert tier.restorable(KEY, None) == 0
    tier.stored(KEY, None, 16, 24, windows=0b110000)
    assert tier.restorable(KEY, None) == 24
    tier.gone(KEY, None, 20)
    tier.stored(KEY, None, 20, 24, windows=0)
    assert (tier.length_of(KEY, None), tier.restorable(KEY, None)) == (24, 0)
    tier.stored(KEY[:22], None, 0, 22)  # no more than the blocks that are named
    assert tier.restorable(KEY, None) == 20


def test_a_window_that_was_evicted_and_is_stored_is_reported() -> None:
    cache, tier, windows = made()
    computed(cache, KEY)
    windows.evict(windows.evictable)
    tier.stored(KEY, None, 0, 32, windows=0b01100000)
    why = cache.acquire(KEY).why()
    assert (why.reason, why.cached) == (MissReason.WINDOW_EVICTED, 0)
    assert (why.on_host, why.evicted) == (28, 39)


def test_a_lease_for_copies_takes_window_slots_from_one_token_on() -> None:
    cache, _, windows = made()
    computed(cache, KEY[:12])
    windows.evict(windows.evictable)
    lease = cache.hold_read(KEY[:32], None, 12, 25)
    slots = lease.extend(20)
    assert slots is not None
    assert (windows.of[slots] >= 0).tolist() == [False] * 13 + [True] * 7
    [hold] = lease.holds
    assert windows.usage().private == hold.private(lease.length, lease.committed) == 7
    for upto in range(16, 33, 4):
        lease.commit(upto)
    assert windows.usage().locked == 7
    lease.release()
    assert windows.usage()[1:] == (0, 0, 7)
    assert cache.match(KEY).length == 32


def test_a_window_that_was_read_is_handed_to_tokens_that_are_resident() -> None:
    cache, _, windows = made()
    computed(cache, KEY[:32])
    windows.evict(windows.evictable)
    assert cache.match(KEY).length == 0
    lease = cache.hold_read(KEY[:32], None, 24, 26)
    assert lease.extend(8) is not None
    lease.commit(32)
    lease.release()
    assert cache.match(KEY).length == 32
    assert (cache.usage().evictable, windows.usage()[1:]) == (32, (0, 0, 6))


@pytest.mark.parametrize(("used", "left"), [(False, [0, 24]), (True, [24, 0])])
def test_a_read_that_gets_no_room_is_no_use_of_windows(*, used: bool, left: list[int]) -> None:
    cache, _, windows = made()
    keys = KEY[:24], as_key(range(100, 124))
    for key in keys:
        computed(cache, key)
    cache.hold_read(keys[0], None, 24, 18).release(used=used)
    windows.evict(19)
    assert [cache.match(key, max_match=24).length for key in keys] == left


def test_the_last_window_of_what_is_stored_without_it_is_written_once_it_is_there() -> None:
    cache, tier, windows = made()
    tier.stored(KEY, None, 0, 36, windows=0b10000000)
    computed(cache, KEY)
    assert [blocks.start for blocks in tier.queue.take("through", 400)] == [32]
    tier.stored(KEY, None, 32, 40, windows=0b1000000000)
    assert tier.restorable(KEY, None) == 0
    computed(cache, KEY[:1])
    cache.acquire(KEY).release()
    assert [blocks.start for blocks in tier.queue.take("through", 400)] == [32]
    windows.evict(windows.evictable)
    assert [blocks.start for blocks in tier.queue.rest(400)] == []


def test_only_whole_blocks_are_copied_and_stay_meanwhile() -> None:
    cache, _, windows = made()
    computed(cache, KEY)
    slots = cache.tree.match_prefix(KEY).slots()
    windows.drop(slots[5:6])
    before = windows.of[slots[8:12]].copy()
    mine = windows.begin_copy(slots[:12], BLOCK)
    assert (mine >= 0).tolist() == [True] * 4 + [False] * 4 + [True] * 4
    windows.evict(windows.evictable)
    assert np.array_equal(windows.of[slots[8:12]], before)
    assert windows.usage().locked == 8
    windows.end_copy(mine)
    assert windows.usage()[1:] == (0, 0, 8)


def test_what_others_say_of_windows_takes_some_away() -> None:
    _, tier, _ = made()
    tier.stored(KEY, None, 0, 24)
    tier.stored(KEY, None, 0, 20, windows=0b1011, exact=True)
    assert (tier.length_of(KEY, None), tier.restorable(KEY, None)) == (24, 8)
    tier.stored(KEY, None, 8, 16, windows=0)  # a write takes nothing away
    tier.stored(KEY, None, 8, 12, windows=0b100)
    assert tier.restorable(KEY, None) == 16
    tier.lacks_windows(KEY, None, 4)
    assert (tier.length_of(KEY, None), tier.restorable(KEY, None)) == (24, 16)
    tier.lacks_windows(KEY, None, 12)
    assert (tier.length_of(KEY, None), tier.restorable(KEY, None)) == (24, 4)
