"""Deliberate faults in ghosts, pins, leases, `why()` and the allocator. Each patches one thing."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from radixlm.cache import Lease, RadixCache, RadixTree, SlotAllocator, TreeNode
from radixlm.cache import cache as cache_module
from radixlm.cache import endings as explain
from radixlm.cache.pins import PinBoard
from radixlm.cache.radix import tree
from radixlm.cache.radix.eviction import Ghosts
from radixlm.cache.radix.node import Match, page_key, path_slots
from radixlm.cache.radix.paths import known_end
from radixlm.cache.radix.tree_stats import Reuse
from tests.property.cache.faults import FAULTS, Patch, around, fault

__all__ = ["FAULTS"]

# Ghosts


@around(RadixTree, "match_prefix")
def match_counts_ghosts(match, self, key, namespace=None):
    found = match(self, key, namespace)
    beyond = found.node and found.length < len(key) and found.node.ghosts
    more = self.page_size if beyond and found.offset == found.node.resident else 0
    return replace(found, length=found.length + more, offset=found.offset + more)


@fault
def ghosts_are_never_over_budget(patch: Patch) -> None:
    """But a flush drops them."""
    patch.setattr(
        Ghosts,
        "over",
        lambda self, budget: next(iter(self._nodes)) if self.size > budget == 0 else None,
    )


@fault
def ghosts_forget_the_latest_first(patch: Patch) -> None:
    patch.setattr(
        Ghosts,
        "over",
        lambda self, budget: next(reversed(self._nodes)) if self.size > budget else None,
    )


@fault
def ghosts_are_forgotten_within_the_budget(patch: Patch) -> None:
    patch.setattr(
        Ghosts,
        "over",
        lambda self, budget: next(iter(self._nodes)) if 2 * self.size > budget else None,
    )


@around(RadixTree, "forget")
def ghosts_that_are_forgotten_stay_with_their_parent(forget, self, node):
    parent = node.parent
    forget(self, node)
    if node.parent is None:
        parent.children[page_key(node.edge, self.page_size)] = node


@around(RadixTree, "revive")
def revive_puts_kv_into_the_wrong_place(revive, self, node, slots):
    revive(self, node, np.roll(slots, self.page_size))


@around(RadixTree, "revive_path")
def revive_leaves_the_path_above_dead(_revive, self, node, values):
    self.revive(node, values[node.start + node.resident : node.end].copy())
    return node.start


@around(RadixTree, "revive")
def revive_does_not_count(revive, self, node, slots):
    evictable = self.evictable_size
    revive(self, node, slots)
    self.evictable_size = evictable


@around(RadixTree, "forget_ghosts")
def flush_keeps_ghosts(forget, self, budget=0):
    if budget:
        forget(self, budget)


# Pins


@around(RadixTree, "unpin")
def unpin_unlocks_twice(unpin, self, node):
    unpin(self, node)
    if node.lock_ref:
        self.dec_lock_ref(node)


@around(RadixTree, "unpin")
def unpin_keeps_the_lock(unpin, self, node):
    unpin(self, node)
    at = node
    while at is not None:
        at.lock_ref += 1
        at = at.parent


@around(RadixTree, "pin")
def pin_does_not_lock(pin, self, match):
    node = at = pin(self, match)
    while at is not None:
        at.lock_ref -= 1
        at = at.parent
    return node


@fault
def pins_never_expire(patch: Patch) -> None:
    patch.setattr(PinBoard, "expire", lambda _self: None)


@fault
def pins_ignore_the_budget(patch: Patch) -> None:
    patch.setattr(Match, "unpinned", lambda _self: -(10**9))


@fault
def pins_count_shared_tokens_twice(patch: Patch) -> None:
    patch.setattr(Match, "unpinned", lambda self: self.length)


# Insert, match, commit


@around(RadixTree, "insert")
def insert_grows_a_leaf_that_another_lease_holds(insert, self, key, slots, *args, **named):
    start, locks = named.get("start"), None
    if start is not None and start.lock_ref > 1 and start.parent and not start.children:
        locks, start.lock_ref = start.lock_ref, 1
    inserted = insert(self, key, slots, *args, **named)
    if locks is not None:
        start.lock_ref = locks
    return inserted


@around(RadixTree, "insert")
def insert_prefers_the_new_slots(insert, self, key, slots, *args, **named):
    inserted = insert(self, key, slots, *args, **named)
    node = inserted.node
    node.set_slots(np.asarray(slots, np.int32)[node.start : node.end].copy())
    return inserted


@around(RadixTree, "insert")
def insert_takes_negative_ids(insert, self, key, slots, *args, **named):
    array = np.asarray(key, dtype=np.int32)
    return insert(self, np.abs(array) if array.size else key, slots, *args, **named)


@fault
def match_goes_one_page_too_far(patch: Patch) -> None:
    descend = tree.descend

    def further(node: TreeNode, tokens: memoryview, page_size: int) -> tuple[TreeNode, int]:
        at, length = descend(node, tokens, page_size)
        return at, max(length, min(length + page_size, at.end, len(tokens)))

    patch.setattr(tree, "descend", further)


@around(RadixCache, "_match")
def namespaces_share_one_root(match, self, sought, _namespace):
    return match(self, sought, None)


@around(Lease, "commit")
def commit_frees_the_winners_slots(commit, self, upto):
    start, give_back = self.committed, self._keeper.give_back
    with pytest.MonkeyPatch.context() as inner:
        inner.setattr(
            self._keeper,
            "give_back",
            lambda slots: give_back(path_slots(self.node, start, start + slots.size)),
        )
        return commit(self, upto)


@around(Lease, "commit")
def commit_keeps_the_duplicates(commit, self, upto):
    with pytest.MonkeyPatch.context() as inner:
        inner.setattr(self._keeper, "give_back", lambda _slots: None)
        return commit(self, upto)


@around(Lease, "commit")
def commit_does_not_tell_the_remap(commit, self, upto):
    commit(self, upto)


@around(Lease, "commit")
def commit_keeps_the_old_segments(commit, self, upto):
    """What `segments()` once did: a commit that changes no node left them as they were."""
    path = self._path
    remap = commit(self, upto)
    self._path = path
    return remap


@around(Lease, "private_slots")
def release_forgets_the_reserved_slots(_private, self):
    return self._slots[self.committed : self.length].copy()


@around(Lease, "block_table")
def block_table_names_slots(_table, self):
    return self._slots[: self._allocated : self._keeper.page_size]


# When tokens were last used


@around(Reuse, "enter")
def reuse_begins_an_epoch_in_the_past(enter, self, use, n_tokens):
    """What it once did: tokens that were entered later are taken from it, and are not there."""
    self._newest = self.begins[-1]
    enter(self, use, n_tokens)


@around(RadixTree, "lock")
def observers_do_not_hear_of_locks(lock, self, node, top=None, priority=0):
    observers, self.observers = self.observers, ()
    lock(self, node, top, priority)
    self.observers = observers


# why()


@around(Lease, "why")
def why_is_told_from_the_tree_as_it_is_now(why, self):
    if self._ending is None:
        return why(self)
    match = self._keeper.match(self.key, self.node.namespace, max_match=self._ending._limit)
    limit, page_size = self._ending._limit, self._keeper.page_size
    _, known = known_end(match, self.key[:-1], page_size)
    ending = explain.Ending(match, known, self.key, self.wanted, limit, page_size)
    return ending.report(self._keeper.clock.now())


@fault
def why_does_not_know_of_evictions(patch: Patch) -> None:
    beyond = explain._beyond

    def resident_only(*args: Any) -> TreeNode | None:
        node = beyond(*args)
        return node if node is not None and not node.ghosts else None

    patch.setattr(explain, "_beyond", resident_only)


@fault
def why_limits_nothing(patch: Patch) -> None:
    """It tells of what was not asked for."""

    class Unlimited(explain.Ending):
        def __init__(
            self, match: Any, known: int, key: Any, wanted: int, _limit: int, *rest: Any
        ) -> None:
            super().__init__(match, known, key, wanted, key.size, *rest)

    patch.setattr(cache_module, "Ending", Unlimited)


@fault
def why_counts_no_evicted_tokens(patch: Patch) -> None:
    class Blind(explain.Ending):
        def __init__(self, match: Any, _known: int, *rest: Any) -> None:
            super().__init__(match, match.length, *rest)

    patch.setattr(cache_module, "Ending", Blind)


# Allocator


@around(SlotAllocator, "_join")
def allocator_joins_one_page_too_many(join, self, start, stop):
    join(self, start, min(stop + 1, self.capacity // self.page_size))


@around(SlotAllocator, "_join")
def allocator_does_not_join_neighbours(_join, self, start, stop):
    """Not wrong about who owns what, but the runs are no longer maximal."""
    self._starts.append(start)
    self._stops.append(stop)


@around(SlotAllocator, "_take")
def allocator_hands_out_a_page_twice(take, self, index, n_pages):
    start, stop = take(self, index, n_pages)
    if start > 0 and n_pages > 1:
        return start - 1, stop - 1
    return start, stop
