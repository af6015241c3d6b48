"""Checkpoints of states that a place keeps, in blocks that go on from those of their tokens."""

from __future__ import annotations

import sys
from functools import partial

import numpy as np
import pytest

from radixlm.cache import RadixCache
from radixlm.cache.components.states import StateSlots
from radixlm.cache.places.stored import StoredTier
from radixlm.core.config import DiskWritePolicy
from radixlm.core.keys import Key, as_key
from radixlm.core.moves import MARK, STATE_SLOTS, Place, StateBlocks, tokens_of
from tests.invariants import check

B, STATE = 4, 2
KEY = as_key(range(1, 31))


def make(blocks: int = 30, states: int = 4) -> tuple[RadixCache, StoredTier]:
    cache = RadixCache(200, components=[partial(StateSlots, states)])
    return cache, cache.add_store(Place.DISK, B, blocks * B, STATE)


def stored(tier: StoredTier, end: int, key: Key = KEY) -> None:
    path = tier.sizes.path(key[:end])
    tier.stored(path, None, 0, path.size)


def computed(cache: RadixCache, key: Key, *ends: int) -> None:
    """A request leaves checkpoints there."""
    lease = cache.acquire(key)
    lease.extend(ends[-1] - lease.length)
    for end in ends[:-1]:
        lease.mark(end)
    lease.commit(ends[-1])
    lease.checkpoint()
    lease.release()


@pytest.mark.parametrize(("end", "size"), [(6, 16), (8, 16), (1, 12)])
def test_the_path_of_a_checkpoint(end: int, size: int) -> None:
    sizes = StateBlocks(B, STATE)
    path = sizes.path(KEY[:end])
    assert (path.size, tokens_of(path)) == (size, end)
    assert set(path[end:].tolist()) == {MARK}
    slots = sizes.slots(np.arange(50, 50 + end, dtype=np.int32), 3)
    assert slots.size == size
    assert slots[-8:].tolist() == [STATE_SLOTS + 6] * B + [STATE_SLOTS + 7] * B
    assert set(slots[end:-8].tolist()) <= {49 + end}


def test_what_is_stored_can_be_gone_on_from_where_a_checkpoint_is() -> None:
    cache, tier = make()
    stored(tier, 6)
    stored(tier, 13)
    assert [tier.restorable(KEY[:end], None) for end in (5, 6, 12, 13, 30)] == [0, 6, 6, 13, 13]
    assert tier.length_of(KEY, None) == 12
    assert tier.usage().evictable == (3 + 2 * (1 + STATE)) * B  # three of tokens, two of a rest
    check(cache)


def test_as_many_checkpoints_of_one_path_go_as_there_are() -> None:
    count = sys.getrecursionlimit() + 1
    _, tier = make(blocks=5 * count)
    key = as_key(range(count * B))
    for end in range(B, key.size + 1, B):
        stored(tier, end, key)
    assert tier.restorable(key, None) == key.size
    tier.gone(key, None, 0)
    assert tier.usage().free == tier.capacity
    [dropped] = tier.take_dropped()  # all others go on from it: their paths are not copied
    assert dropped.tokens.tolist() == key[:B].tolist()


def test_room_is_made_by_whole_checkpoints() -> None:
    cache, tier = make(blocks=8)
    stored(tier, 6)
    stored(tier, 8, as_key(range(50, 80)))
    assert tier.usage().free == 0
    assert tier.reserve(B)
    assert [(each.tokens[:8].tolist(), each.start) for each in tier.take_dropped()] == [
        ([1, 2, 3, 4, 5, 6, MARK, MARK], 4)
    ]
    assert (tier.usage().free, tier.restorable(KEY, None)) == (2 * B, 0)
    check(cache)


def test_a_part_of_a_checkpoint_is_of_no_use_and_goes_with_its_tokens() -> None:
    """It is being written, or was when its process ended."""
    _, tier = make()
    path = tier.sizes.path(KEY[:6])[:-B]
    tier.stored(path, None, 0, path.size)
    assert (tier.length_of(KEY, None), tier.restorable(KEY, None)) == (4, 0)
    assert (tier.usage().evictable, tier.take_dropped()) == (4, [])
    tier.clear()
    [dropped] = tier.take_dropped()  # and all that goes on from it
    assert (dropped.tokens.tolist(), dropped.start) == ([1, 2, 3, 4], 0)


def test_a_damaged_block_of_a_state_is_that_checkpoint_s_alone() -> None:
    cache, tier = make()
    stored(tier, 6)
    stored(tier, 13)
    tier.gone(tier.sizes.path(KEY[:6]), None, 8)
    assert tier.restorable(KEY, None) == 13
    assert tier.restorable(KEY[:12], None) == 0
    tier.gone(KEY, None, 8)
    assert (tier.restorable(KEY, None), tier.length_of(KEY, None)) == (0, 8)
    check(cache)


def test_what_is_read_stays() -> None:
    cache, tier = make(blocks=5)
    stored(tier, 6)
    held = tier.lock_path(tier.sizes.path(KEY[:6]), None)
    assert tier.usage().locked == 4 * B
    assert not tier.reserve(2 * B)
    check(cache)
    tier.unlock(held)
    assert tier.reserve(2 * B)
    check(cache)


@pytest.mark.parametrize("policy", ["all", "selective", "evict"])
def test_checkpoints_are_written_with_what_is_before_them(policy: str) -> None:
    cache, tier = make()
    computed(cache, KEY, 6, 21)
    computed(cache, as_key([*KEY[:6], 90, 91]), 8)
    found = tier.queue.take(policy, 100)  # type: ignore[arg-type]
    ends = [(tokens_of(each.tokens), each.start) for each in found]
    # The first was found again; no state slot is left, so all may go.
    wanted = [(6, 0)] if policy == "selective" else [(6, 0), (21, 4), (8, 4)]
    assert sorted(ends) == sorted(wanted)
    for each in found:
        tier.stored(each.tokens, None, each.start, each.tokens.size)
    rest = tier.queue.take(policy, 100)  # type: ignore[arg-type]
    assert len(rest) == (2 if policy == "selective" else 0)  # as long as there is room
    check(cache)


def test_places_on_the_way_are_stored_once_they_are_of_use() -> None:
    cache, tier = make(states=3)
    lease = cache.acquire(KEY)
    lease.extend(20)
    lease.mark(8, since=8, ahead=12)
    lease.commit(20)
    lease.checkpoint()
    lease.release()
    assert [tokens_of(each.tokens) for each in tier.queue.take("all", 100)] == [20]
    computed(cache, as_key([*KEY[:8], 90, 91]), 10)
    assert {tokens_of(each.tokens) for each in tier.queue.take("all", 100)} == {8, 10}


def test_a_prompt_and_its_short_answer_are_stored_once() -> None:
    """What a state takes, the room of 32 tokens, is more than 16 times the two that it saves."""
    cache = RadixCache(200, components=[partial(StateSlots, 4)])
    tier = cache.add_store(Place.DISK, B, 200, 8)
    computed(cache, KEY, 18, 19)
    assert [tokens_of(each.tokens) for each in tier.queue.take("all", 100)] == [18]
    stored(tier, 18)
    computed(cache, KEY, 26)
    assert [tokens_of(each.tokens) for each in tier.queue.take("all", 100)] == [26]


def test_what_is_stored_soon_goes_after_what_never_is() -> None:
    cache, tier = make(states=3)
    states = cache.states
    assert states is not None
    computed(cache, KEY, 6)
    computed(cache, as_key(range(50, 80)), 29)  # worth more
    states.awaited.append(tier.queue.lacks)
    stored(tier, 29, as_key(range(50, 80)))
    states.evict()
    assert [node.end for node in states.at] == [6]
    states.evict()  # if nothing else is there
    assert not states.at


@pytest.mark.parametrize("policy", ["all", "evict"])
def test_what_a_place_can_never_hold_is_in_nobodys_way(policy: DiskWritePolicy) -> None:
    cache, tier = make(blocks=8)
    computed(cache, as_key(range(90, 120)), 29)
    computed(cache, KEY, 4, 29)
    found = tier.queue.take(policy, 1)
    assert [tokens_of(each.tokens) for each in found] == [4]
    tier.stored(found[0].tokens, None, 0, found[0].tokens.size)
    assert tier.queue.take(policy, 1) == []
    assert tier.queue.rest(1) == []


def test_a_checkpoint_is_read_beside_what_is_resident() -> None:
    cache, tier = make(states=2)
    computed(cache, KEY, 6)
    stored(tier, 6)
    states = cache.states
    assert states is not None
    states.evict()
    lease = cache.hold_read(KEY[:6], None, 4, 0)
    assert lease is not None
    lease.extend(2)
    lease.commit(6)
    lease.checkpoint()
    lease.release(used=False)
    assert cache.match(KEY).length == 6
    assert states.usage().private == states.usage().locked == 0
    check(cache)


def test_a_state_is_not_read_over_one_that_is_copied_in_the_next_step() -> None:
    cache, _ = make(states=2)
    computed(cache, KEY, 6)
    states = cache.states
    assert states is not None
    states.take_moves()
    lease = cache.acquire(KEY)
    lease.extend(1)
    states.evict()  # its content is still to be copied
    assert states.take() is None
    states.take_moves()
    assert states.take() is not None


def test_a_lease_that_was_not_used_unlocks_its_state() -> None:
    cache, _ = make()
    computed(cache, KEY, 6)
    cache.acquire(KEY).release(used=False)
    assert cache.states is not None
    assert cache.states.usage().locked == 0
