"""Deliberate faults in the cache: the stress run must notice every one of them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from benchmarks.cache_stress import Mismatch, Stress
from radixlm.cache import Lease, RadixCache, RadixTree, SlotAllocator
from radixlm.cache import eviction as eviction_module
from radixlm.cache.node import NO_SLOTS, RootNode, TreeNode
from radixlm.core.errors import InvariantError

Patch = pytest.MonkeyPatch
FAULTS: dict[str, Callable[[Patch], None]] = {}
SETUPS = [(1, 32), (1, 12), (4, 24), (16, 24)]
OPERATIONS = 1_500


def fault(function: Callable[[Patch], None]) -> Callable[[Patch], None]:
    FAULTS[function.__name__] = function
    return function


def after_split(patch: Patch, spoil: Callable[[TreeNode, TreeNode, int], None]) -> None:
    """Let `spoil(upper, lower, offset)` work on each finished split."""
    split = RadixTree._split

    def broken(self: RadixTree, node: TreeNode, offset: int) -> TreeNode:
        upper = split(self, node, offset)
        spoil(upper, node, offset)
        return upper

    patch.setattr(RadixTree, "_split", broken)


@fault
def split_gives_the_lower_half_the_wrong_slots(patch: Patch) -> None:
    def spoil(upper: TreeNode, lower: TreeNode, offset: int) -> None:
        every = np.concatenate((upper.slots, lower.slots))
        lower.set_edge(lower.edge, every[: len(lower)].copy())

    after_split(patch, spoil)


@fault
def split_swaps_the_slots_of_the_halves(patch: Patch) -> None:
    def spoil(upper: TreeNode, lower: TreeNode, offset: int) -> None:
        every = np.concatenate((lower.slots, upper.slots))
        upper.set_edge(upper.edge, every[:offset].copy())
        lower.set_edge(lower.edge, every[offset:].copy())

    after_split(patch, spoil)


@fault
def split_makes_the_lower_half_young(patch: Patch) -> None:
    split = RadixTree._split

    def broken(self: RadixTree, node: TreeNode, offset: int) -> TreeNode:
        upper = split(self, node, offset)
        node.last_used = upper.last_used = self._uses + 1
        return upper

    patch.setattr(RadixTree, "_split", broken)


@fault
def split_forgets_the_locks_of_the_upper_half(patch: Patch) -> None:
    def spoil(upper: TreeNode, lower: TreeNode, offset: int) -> None:
        upper.lock_ref = 0

    after_split(patch, spoil)


@fault
def split_cuts_the_edge_a_page_too_late(patch: Patch) -> None:
    split = RadixTree._split

    def broken(self: RadixTree, node: TreeNode, offset: int) -> TreeNode:
        return split(self, node, min(offset + self.page_size, len(node) - self.page_size))

    patch.setattr(RadixTree, "_split", broken)


@fault
def split_does_not_change_the_version(patch: Patch) -> None:
    split = RadixTree._split

    def broken(self: RadixTree, node: TreeNode, offset: int) -> TreeNode:
        version = self.version
        upper = split(self, node, offset)
        self.version = version
        return upper

    patch.setattr(RadixTree, "_split", broken)


def broken_unlock(patch: Patch, skip: Callable[[TreeNode, TreeNode], bool]) -> None:
    """dec_lock_ref that passes over the nodes for which skip(node, end) is true."""

    def broken(self: RadixTree, node: TreeNode) -> None:
        self._touch(node)
        at: TreeNode | None = node
        while at is not None:
            if not skip(at, node):
                at.lock_ref -= 1
                if at.lock_ref == 0:
                    self.protected_size -= len(at)
                    self.evictable_size += len(at)
                    self._settle(at)
            at = at.parent

    patch.setattr(RadixTree, "dec_lock_ref", broken)


@fault
def unlock_skips_the_parent(patch: Patch) -> None:
    broken_unlock(patch, lambda at, end: at is end.parent and not isinstance(at, RootNode))


@fault
def unlock_stops_below_the_root(patch: Patch) -> None:
    broken_unlock(patch, lambda at, _end: isinstance(at, RootNode))


@fault
def unlock_skips_the_end(patch: Patch) -> None:
    broken_unlock(patch, lambda at, end: at is end and not isinstance(at, RootNode))


@fault
def unlock_does_not_offer_the_leaf_for_eviction(patch: Patch) -> None:
    settle = RadixTree._settle

    def broken(self: RadixTree, node: TreeNode) -> None:
        if isinstance(node, RootNode):
            settle(self, node)

    patch.setattr(RadixTree, "_settle", broken)


@fault
def unlock_does_not_touch(patch: Patch) -> None:
    dec = RadixTree.dec_lock_ref

    def broken(self: RadixTree, node: TreeNode) -> None:
        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(RadixTree, "_touch", lambda _tree, _node: None)
            dec(self, node)

    patch.setattr(RadixTree, "dec_lock_ref", broken)


@fault
def lock_misses_the_root(patch: Patch) -> None:
    lock = RadixTree._lock

    def broken(self: RadixTree, node: TreeNode, held: TreeNode | None) -> None:
        lock(self, node, held)
        at = node
        while at.parent is not None:
            at = at.parent
        if held is None:
            at.lock_ref -= 1

    patch.setattr(RadixTree, "_lock", broken)


@fault
def commit_does_not_move_the_lock(patch: Patch) -> None:
    patch.setattr(RadixTree, "move_lock", lambda _tree, _held, _deeper: None)


@fault
def extend_evicts_although_there_is_no_room(patch: Patch) -> None:
    take = RadixCache.take_private

    def broken(self: RadixCache, n_slots: int):
        if n_slots > self.available:
            self.flush()
        return take(self, n_slots)

    patch.setattr(RadixCache, "take_private", broken)


@fault
def lock_takes_the_end_only(patch: Patch) -> None:
    def broken(self: RadixTree, node: TreeNode, held: TreeNode | None) -> None:
        if node is not held:
            if node.lock_ref == 0:
                self.evictable_size -= len(node)
                self.protected_size += len(node)
            node.lock_ref += 1

    patch.setattr(RadixTree, "_lock", broken)


@fault
def trim_frees_the_head_instead_of_the_tail(patch: Patch) -> None:
    trim = RadixTree._trim

    def broken(self: RadixTree, leaf: TreeNode, n_tokens: int) -> np.ndarray:
        slots = leaf.slots
        freed = trim(self, leaf, n_tokens)
        if freed.size < slots.size:
            leaf.set_edge(leaf.edge, slots[freed.size :].copy())
        return slots[: freed.size]

    patch.setattr(RadixTree, "_trim", broken)


@fault
def trim_takes_whole_leaves(patch: Patch) -> None:
    trim = RadixTree._trim
    patch.setattr(RadixTree, "_trim", lambda self, leaf, _n: trim(self, leaf, len(leaf)))


@fault
def eviction_takes_the_youngest_leaf(patch: Patch) -> None:
    patch.setattr(eviction_module.LeastRecentlyUsed, "key", lambda _, node: -node.last_used)


@fault
def eviction_takes_locked_leaves(patch: Patch) -> None:
    def pop(self: eviction_module.EvictionOrder) -> TreeNode | None:
        entries = sorted(self._heap)
        for entry in entries:
            if not entry[2].children:
                self._heap.remove(entry)
                entry[2].queued = False
                return entry[2]
        return None

    patch.setattr(eviction_module.EvictionOrder, "pop", pop)


@fault
def insert_grows_a_leaf_that_another_lease_holds(patch: Patch) -> None:
    insert = RadixTree.insert

    def broken(self: RadixTree, key, slots, namespace=None, start=None):
        locks = None
        if start is not None and start.lock_ref > 1 and start.parent and not start.children:
            locks, start.lock_ref = start.lock_ref, 1
        inserted = insert(self, key, slots, namespace, start)
        if locks is not None:
            start.lock_ref = locks
        return inserted

    patch.setattr(RadixTree, "insert", broken)


@fault
def insert_prefers_the_new_slots(patch: Patch) -> None:
    insert = RadixTree.insert

    def broken(self: RadixTree, key, slots, namespace=None, start=None):
        inserted = insert(self, key, slots, namespace, start)
        node = inserted.node
        node.set_edge(node.edge, np.asarray(slots, np.int32)[node.start : node.end].copy())
        return inserted

    patch.setattr(RadixTree, "insert", broken)


@fault
def match_goes_one_page_too_far(patch: Patch) -> None:
    descend = RadixTree._descend

    def broken(self: RadixTree, node: TreeNode, key: memoryview, stop: int):
        at, offset = descend(self, node, key, stop)
        return at, max(offset, min(offset + self.page_size, len(at), stop - at.start))

    patch.setattr(RadixTree, "_descend", broken)


@fault
def namespaces_share_one_root(patch: Patch) -> None:
    match = RadixCache.match

    def broken(self: RadixCache, key, namespace=None, *, max_match=None):
        return match(self, key, None, max_match=max_match)

    patch.setattr(RadixCache, "match", broken)


@fault
def commit_frees_the_winners_slots(patch: Patch) -> None:
    commit = Lease.commit

    def broken(self: Lease, upto: int):
        start = self.committed
        give_back = self._cache.give_back
        with pytest.MonkeyPatch.context() as inner:

            def wrong(slots: np.ndarray) -> None:
                path = np.concatenate([node.slots for node in _path(self.node)] or [NO_SLOTS])
                give_back(path[start : start + slots.size])

            inner.setattr(self._cache, "give_back", wrong)
            return commit(self, upto)

    patch.setattr(Lease, "commit", broken)


@fault
def commit_keeps_the_duplicates(patch: Patch) -> None:
    commit = Lease.commit

    def broken(self: Lease, upto: int):
        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(self._cache, "give_back", lambda _slots: None)
            return commit(self, upto)

    patch.setattr(Lease, "commit", broken)


@fault
def commit_does_not_tell_the_remap(patch: Patch) -> None:
    commit = Lease.commit
    patch.setattr(Lease, "commit", lambda self, upto: commit(self, upto) and None)


@fault
def commit_keeps_the_old_segments(patch: Patch) -> None:
    """What `segments()` once did: a commit that changes no node left them as they were."""
    commit = Lease.commit

    def broken(self: Lease, upto: int):
        path = self._path
        remap = commit(self, upto)
        self._path = path
        return remap

    patch.setattr(Lease, "commit", broken)


@fault
def allocator_joins_one_page_too_many(patch: Patch) -> None:
    join = SlotAllocator._join

    def broken(self: SlotAllocator, start: int, stop: int) -> None:
        join(self, start, min(stop + 1, self.capacity // self.page_size))

    patch.setattr(SlotAllocator, "_join", broken)


@fault
def allocator_does_not_join_what_follows(patch: Patch) -> None:
    """Not wrong about who owns what, but the runs are no longer maximal."""

    def broken(self: SlotAllocator, start: int, stop: int) -> None:
        self._starts.append(start)
        self._stops.append(stop)

    patch.setattr(SlotAllocator, "_join", broken)


@fault
def allocator_hands_out_a_page_twice(patch: Patch) -> None:
    take = SlotAllocator._take

    def broken(self: SlotAllocator, index: int, n_pages: int) -> tuple[int, int]:
        start, stop = take(self, index, n_pages)
        if start > 0 and n_pages > 1:
            return start - 1, stop - 1
        return start, stop

    patch.setattr(SlotAllocator, "_take", broken)


@fault
def release_forgets_the_reserved_slots(patch: Patch) -> None:
    def broken(self: Lease) -> np.ndarray:
        return self._slots[self.committed : self.length].copy()

    patch.setattr(Lease, "private_slots", broken)


def _path(node: TreeNode | None) -> list[TreeNode]:
    path = []
    while node is not None:
        path.append(node)
        node = node.parent
    return path[::-1]


def first_catch(seeds: int = 2) -> tuple[str, int] | None:
    """Run the stress until something is noticed: (what, after how many operations)."""
    spent = 0
    for seed in range(seeds):
        for page_size, pages in SETUPS:
            stress = Stress(seed, page_size, pages=pages)
            try:
                stress.run(OPERATIONS, check_every=1)
            except (InvariantError, Mismatch) as error:
                spent += stress.checked.counts["operations"]
                return f"{type(error).__name__}: {error}", spent
            spent += OPERATIONS
    return None


@pytest.mark.parametrize("name", FAULTS)
def test_fault_is_caught(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    FAULTS[name](monkeypatch)
    caught = first_catch()
    with capsys.disabled():
        what, spent = caught or ("NOT CAUGHT", 0)
        print(f"\n{name:<48} {spent:>6} ops  {what[:90]}", end="")
    assert caught is not None


def test_nothing_is_caught_without_a_fault() -> None:
    assert first_catch(seeds=1) is None


def test_there_are_enough_faults() -> None:
    assert len(FAULTS) >= 8
