"""A cache whose layers with a window have slots of their own."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pytest

from radixlm.cache import RadixCache, TreeNode
from radixlm.cache.components.window_slots import WindowSize
from radixlm.cache.radix.observer import TreeObserver
from radixlm.cache.radix.tree_stats import Changes
from radixlm.core.errors import PinError
from radixlm.core.keys import Slots, as_key
from radixlm.core.misses import MissReason
from radixlm.core.reports import TreeQuery
from radixlm.observe.picture import Picture

SIZE = WindowSize(window=5, capacity=40, step=4)


def make(size: WindowSize = SIZE) -> RadixCache:
    return RadixCache(400, windows=size)


def serve(cache: RadixCache, key: list[int], *, step: int = 4) -> int:
    """One request from its start to its end; how much was cached."""
    lease = cache.acquire(key)
    cached = lease.cached
    while lease.length < len(key):
        assert lease.extend(min(step, len(key) - lease.length)) is not None
        lease.commit(lease.length)
        lease.pass_by(lease.length)
    lease.release()
    return cached


def there(cache: RadixCache, key: list[int]) -> list[int]:
    """The tokens of a cached key that have window slots."""
    slots = cache.tree.match_prefix(key).slots()
    assert cache.windows is not None
    return np.flatnonzero(cache.windows.resident(slots)).tolist()


def test_the_inside_goes_first_and_ends_are_kept() -> None:
    cache = make()
    a, b = [1] * 20, [2] * 20
    serve(cache, a)
    assert there(cache, a) == list(range(20))
    serve(cache, b)
    serve(cache, [3] * 8)
    assert there(cache, a) == list(range(8, 20))
    serve(cache, [4] * 8)
    assert there(cache, a) == list(range(16, 20))
    assert there(cache, b)[-4:] == list(range(16, 20))
    assert cache.match([*a, 9]).length == 20


def test_a_match_refreshes_its_window_alone() -> None:
    """sglang #26615: more than the window, and what is needed least stays longest."""
    cache = make()
    a, b = [1] * 16, [2] * 16
    serve(cache, a)
    serve(cache, b)
    assert serve(cache, [*a, 9]) == 16  # its inside is no younger by that
    serve(cache, [3] * 16)
    assert there(cache, [*a, 9]) == list(range(9, 17))
    assert there(cache, b) == list(range(16))


def test_a_tombstone_ends_a_match_where_a_window_is_whole() -> None:
    cache = make()
    a = list(range(20))
    serve(cache, a)
    serve(cache, [*range(30, 90)])
    assert there(cache, a) == [16, 17, 18, 19]
    lease = cache.acquire([*a[:18], 99, 99])
    assert lease.cached == 0
    report = lease.why()
    assert (report.reason, report.evicted) == (MissReason.WINDOW_EVICTED, 18)
    assert "18 from token 0 on are cached" in str(report)
    lease.release()


def test_tokens_that_are_computed_again_get_their_window_back() -> None:
    cache = make()
    a = list(range(20))
    serve(cache, a)
    serve(cache, [*range(30, 90)])
    before = cache.tree.match_prefix(a).slots().tolist()
    assert serve(cache, [*a[:18], 99]) == 0
    assert cache.tree.match_prefix(a).slots().tolist() == before
    assert serve(cache, [*a[:18], 98]) == 18


def test_a_lease_undoes_what_it_locked() -> None:
    cache = make()
    serve(cache, [1] * 12)
    assert cache.windows is not None
    one, two = cache.acquire([*[1] * 12, 2]), cache.acquire([*[1] * 12, 3])
    assert cache.windows.usage().locked == 4
    one.release()
    assert cache.windows.usage().locked == 4
    two.release()
    assert cache.windows.usage() == (28, 0, 0, 12)


def test_a_pin_keeps_the_last_window() -> None:
    cache = make()
    a = list(range(20))
    serve(cache, a)
    pin = cache.pin(a)
    for n in range(10):
        serve(cache, [100 + n] * 20)
    assert cache.match([*a, 9]).length == 20
    cache.unpin(pin.id)
    assert cache.windows is not None
    assert cache.windows.locked == 0


def test_pins_leave_room_for_a_request() -> None:
    cache = make()
    budget = SIZE.capacity - SIZE.least(1)
    fits = budget // 4
    for n in range(fits + 1):
        serve(cache, [n] * 4)
    for n in range(fits):
        cache.pin([n] * 4)
    with pytest.raises(PinError, match="windows"):
        cache.pin([fits] * 4)


def test_what_several_pins_hold_counts_once() -> None:
    cache = make()
    serve(cache, [1] * 4)
    pins = [cache.pin([1] * 4) for _ in range(20)]
    assert cache.windows is not None
    assert cache.windows.pinned == 4
    for pin in pins:
        cache.unpin(pin.id)
    assert (cache.windows.pinned, cache.windows.locked) == (0, 0)


def test_a_prefix_that_can_not_be_kept_drives_out_no_other() -> None:
    """Its window is larger than what pins may hold of windows, whoever yields."""
    cache = make(WindowSize(window=20, capacity=45, step=4))
    assert cache.windows is not None
    serve(cache, [1] * 3)
    cache.keep(as_key([1] * 3), None, 60, "one")
    long = [2] * 40
    serve(cache, long)
    assert cache.windows.size.window > cache.windows.pin_budget
    with pytest.raises(PinError, match="--swa-full-tokens-ratio"):
        cache.keep(as_key(long), None, 60, "two")
    assert cache.windows.pinned == 3


def test_a_slot_that_is_given_again_has_one_place() -> None:
    """Else the device may follow the one before: a request would read another's tokens."""
    cache = make()
    assert cache.windows is not None
    lease = cache.acquire([1] * 4)
    first = lease.extend(4)
    lease.release()
    again = cache.acquire([2] * 4)
    second = again.extend(4)
    assert first is not None
    assert second is not None
    assert set(first.tolist()) == set(second.tolist())
    moves = cache.windows.take_moves()["windows"]
    assert sorted(moves.slots.tolist()) == sorted(second.tolist())
    assert moves.window_slots.tolist() == cache.windows.of[moves.slots].tolist()


def test_what_is_given_back_before_a_step_does_not_move() -> None:
    cache = make()
    assert cache.windows is not None
    for _ in range(9):
        lease = cache.acquire([1] * 4)
        lease.extend(4)
        lease.release()
    assert cache.windows.take_moves() == {}


def test_a_window_that_is_computed_again_costs_no_walk_over_all_nodes() -> None:
    class Walks(TreeObserver):
        count = 0

        def matches_changed(self, slots: Slots, nodes: Iterable[TreeNode]) -> None:
            self.count += 1

    cache, walks = make(), Walks()
    a = list(range(20))
    serve(cache, a)
    assert cache.windows is not None
    cache.windows.evict(cache.windows.evictable)
    before = cache.match([*a[:18], 99])
    cache.tree.watch(walks)
    assert serve(cache, [*a[:18], 99]) == before.length == 0
    assert (cache.match([*a[:18], 99]).length, walks.count) == (18, 0)


def test_a_match_from_before_an_eviction_of_windows_is_found_anew() -> None:
    cache = make()
    serve(cache, [1] * 20)
    before = cache.match([*[1] * 20, 9])
    assert (before.length, cache.windows is not None) == (20, True)
    cache.windows.evict(cache.windows.evictable)
    assert cache.acquire([*[1] * 20, 9], match=before).cached == 0


def test_a_match_from_before_a_window_is_there_again_is_found_anew() -> None:
    cache, key = make(), as_key([1] * 20)
    serve(cache, [1] * 20)
    assert cache.windows is not None
    cache.windows.evict(cache.windows.evictable)
    cache.hold(key, None, 12)  # so that nothing is merged
    reader = cache.hold_read(key, None, 12, 15)
    reader.extend(8)
    before = cache.match([*[1] * 20, 9])
    assert before.length == 0
    reader.commit(20)
    assert cache.acquire([*[1] * 20, 9], match=before).cached == 20


def test_there_is_nothing_to_save_in_a_small_pool() -> None:
    assert WindowSize.of(5, 0.5, 20, 1, 64) is None
    assert WindowSize.of(5, 1.0, 10_000, 1, 64) is None
    assert WindowSize.of(5, 0.25, 1_000, 16, 64) == WindowSize(5, 240, 64)


def test_who_watches_sees_tombstones_come_and_go() -> None:
    cache = make()
    a = list(range(20))
    serve(cache, a)
    assert cache.windows is not None
    changes = Changes()
    cache.tree.watch(changes)
    picture = Picture(cache.tree, TreeQuery(), cache.windows.of)
    picture.develop(100)
    assert [node.tombstones for node in picture.snapshot().nodes] == [(), ()]
    picture.update(changes.take())
    serve(cache, [*range(30, 90)])
    shown = {node.start + len(node.ids): node for node in picture.update(changes.take()).nodes}
    assert shown[20].tombstones == ((0, 16),)
    serve(cache, [*a[:18], 99])
    shown = {node.start + len(node.ids): node for node in picture.update(changes).nodes}
    assert shown[18].tombstones == ()
