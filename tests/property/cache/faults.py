"""Deliberate faults in the tree: split, merge, lock, trim, policies. Each patches one thing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from radixlm.cache import RadixCache, RadixTree, TreeNode
from radixlm.cache.policies import named
from radixlm.cache.radix import eviction, tree
from radixlm.cache.radix.node import page_key

Patch = pytest.MonkeyPatch
FAULTS: dict[str, Callable[[Patch], None]] = {}
# What faults stand around: the method, and what is called in its place.
SEAMS: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {}


def fault(function: Callable[[Patch], None]) -> Callable[[Patch], None]:
    FAULTS[function.__name__] = function
    return function


def around(owner: type, name: str) -> Callable[[Callable[..., Any]], Callable[[Patch], None]]:
    """Replace owner.name by broken(original, self, *args), which takes what owner.name takes."""

    def decorate(broken: Callable[..., Any]) -> Callable[[Patch], None]:
        def apply(patch: Patch) -> None:
            original = getattr(owner, name)

            def replaced(self: Any, *args: Any, **named: Any) -> Any:
                return broken(original, self, *args, **named)

            patch.setattr(owner, name, replaced)

        SEAMS[broken.__name__] = getattr(owner, name), broken
        FAULTS[broken.__name__] = apply
        return apply

    return decorate


# Split


@around(RadixTree, "split")
def split_gives_the_lower_half_the_wrong_slots(split, self, node, offset):
    upper = split(self, node, offset)
    every = np.concatenate((upper.slots, node.slots))
    node.set_slots(every[: node.resident].copy())
    return upper


@around(RadixTree, "split")
def split_swaps_the_slots_of_the_halves(split, self, node, offset):
    upper = split(self, node, offset)
    every = np.concatenate((node.slots, upper.slots))
    cut = upper.resident
    upper.set_slots(every[:cut].copy())
    node.set_slots(every[cut:].copy())
    return upper


@around(RadixTree, "split")
def split_makes_the_lower_half_young(split, self, node, offset):
    upper = split(self, node, offset)
    node.last_used = upper.last_used = upper.parent.last_used
    return upper


@around(RadixTree, "split")
def split_forgets_the_locks_of_the_upper_half(split, self, node, offset):
    upper = split(self, node, offset)
    upper.lock_ref = 0
    return upper


@around(RadixTree, "split")
def split_forgets_the_pins_of_the_upper_half(split, self, node, offset):
    upper = split(self, node, offset)
    upper.pins = 0
    return upper


@around(RadixTree, "split")
def split_forgets_the_priority_of_the_upper_half(split, self, node, offset):
    upper = split(self, node, offset)
    upper.priority = 0
    return upper


@around(RadixTree, "split")
def split_cuts_a_page_too_late(split, self, node, offset):
    return split(self, node, min(offset + self.page_size, len(node) - self.page_size))


@around(RadixTree, "split")
def split_does_not_change_the_version(split, self, node, offset):
    version = self.version
    upper = split(self, node, offset)
    self.version = version
    return upper


# Merge


@around(RadixTree, "merge")
def merge_loses_the_order_of_the_slots(merge, self, node):
    children = list(node.children.values())
    before = [child.slots for child in children]
    merge(self, node)
    if children and children[0].resident > before[0].size > 0:
        children[0].set_slots(np.concatenate((before[0], node.slots)))


def merges_if(patch: Patch, rule: Callable[[TreeNode, TreeNode], bool]) -> None:
    def mergeable(node: TreeNode) -> bool:
        return (
            len(node.children) == 1
            and node.parent is not None
            and rule(node, next(iter(node.children.values())))
        )

    patch.setattr(tree, "is_mergeable", mergeable)


def same_age(node: TreeNode, child: TreeNode) -> bool:
    return child.lock_ref > 0 or child.last_used == node.last_used


@fault
def merge_across_the_end_of_a_lock(patch: Patch) -> None:
    merges_if(patch, lambda node, child: child.priority == node.priority and same_age(node, child))


@fault
def merge_across_the_end_of_a_pin(patch: Patch) -> None:
    merges_if(
        patch,
        lambda node, child: (
            child.priority == node.priority
            and same_age(node, child)
            and child.lock_ref - child.pins == node.lock_ref - node.pins
        ),
    )


@fault
def merge_across_priorities(patch: Patch) -> None:
    merges_if(patch, lambda node, child: child.lock_ref == node.lock_ref and same_age(node, child))


@fault
def merge_across_ages(patch: Patch) -> None:
    """What merge once did: a cold tail became as young as its head."""
    merges_if(patch, lambda node, child: not node.held and child.priority == node.priority)


@around(RadixTree, "merge")
def merge_leaves_the_grandparent_with_the_upper_half(merge, self, node):
    parent = node.parent
    merge(self, node)
    if node.parent is None and parent is not None:
        parent.children[page_key(node.edge, self.page_size)] = node


@around(RadixTree, "merge")
def merge_forgets_who_used_the_upper_half(merge, self, node):
    before = {child: (child.last_used, child.hits) for child in node.children.values()}
    merge(self, node)
    for child, (last_used, hits) in before.items():
        child.last_used, child.hits = last_used, hits


# Lock


@around(RadixTree, "dec_lock_ref")
def unlock_skips_the_parent(dec, self, node, **how):
    if node.parent is not None and not node.parent.is_root:
        node.parent.lock_ref += 1
    dec(self, node, **how)


@around(RadixTree, "dec_lock_ref")
def unlock_stops_below_the_root(dec, self, node, **how):
    root = node
    while root.parent is not None:
        root = root.parent
    root.lock_ref += 1
    dec(self, node, **how)


@around(RadixTree, "dec_lock_ref")
def unlock_skips_the_end(dec, self, node, **how):
    if not node.is_root:
        node.lock_ref += 1
    dec(self, node, **how)


@around(RadixTree, "settle")
def unlock_does_not_offer_the_leaf_for_eviction(settle, self, node):
    if node.is_root:
        settle(self, node)


@around(RadixTree, "dec_lock_ref")
def unlock_does_not_touch(dec, self, node, **how):
    before = {at: at.last_used for at in self.nodes()}
    dec(self, node, **how)
    for at in self.nodes():
        at.last_used = before.get(at, at.last_used)


@around(RadixTree, "inc_lock_ref")
def lock_misses_the_root(inc, self, match, priority=0):
    node = at = inc(self, match, priority)
    while at.parent is not None:
        at = at.parent
    at.lock_ref -= 1
    return node


@around(RadixTree, "inc_lock_ref")
def lock_takes_the_end_only(inc, self, match, priority=0):
    node = inc(self, match, priority)
    at = node.parent
    while at is not None:
        at.lock_ref -= 1
        at = at.parent
    return node


@around(RadixTree, "move_lock")
def commit_does_not_move_the_lock(_move, _self, _held, _deeper, _priority):
    pass


@around(RadixTree, "add_leaf")
def commit_does_not_lock_what_it_adds(add, self, parent, edge, slots, priority, *, held):
    return add(self, parent, edge, slots, priority, held=False)


@around(RadixTree, "move_lock")
def commit_takes_the_priority_of_what_it_hangs_on(move, self, held, deeper, _priority):
    """Found while these tests were written."""
    move(self, held, deeper, held.priority)


@around(RadixTree, "move_lock")
def commit_keeps_the_old_lock_too(move, self, held, deeper, priority):
    move(self, held, deeper, priority)
    at = held
    while at is not None:
        at.lock_ref += 1
        at = at.parent


# Trim and evict


@around(RadixTree, "trim")
def trim_frees_the_head_instead_of_the_tail(trim, self, leaf, n_tokens):
    slots = leaf.slots
    freed = trim(self, leaf, n_tokens)
    if freed.size < slots.size:
        leaf.set_slots(slots[freed.size :].copy())
    return slots[: freed.size]


@around(RadixTree, "trim")
def trim_takes_whole_leaves(trim, self, leaf, _n_tokens):
    return trim(self, leaf, leaf.resident)


def in_order(order: eviction.EvictionOrder) -> list[TreeNode]:
    """The nodes that have an entry, by the key they were entered with."""
    keys = {node: node.queued_key for node in order._by_id.values()}
    entered = [(key, node.id, node) for node, key in keys.items() if key is not None]
    return [node for *_, node in sorted(entered)]


def take(node: TreeNode) -> TreeNode:
    """Take a node out of the order, whatever its entry says."""
    node.queued_key = None
    return node


@around(eviction.EvictionOrder, "pop")
def eviction_takes_locked_leaves(pop, self):
    for node in in_order(self):
        if not node.live and node.resident:
            return take(node)
    return pop(self)


@around(eviction.EvictionOrder, "pop")
def eviction_takes_inner_nodes(pop, self):
    for node in in_order(self):
        if not node.lock_ref and node.resident and node.parent:
            return take(node)
    return pop(self)


@around(eviction.EvictionOrder, "pop")
def eviction_takes_the_one_that_was_first_once(_pop, self):
    """An entry that has become stale is taken as it stands."""
    for node in in_order(self):
        take(node)
        if not (node.lock_ref or node.live or not node.resident or node.parent is None):
            return node
    return None


@around(eviction.EvictionOrder, "rebuild")
def a_new_policy_keeps_the_old_order(rebuild, self, nodes, policy=None):
    if policy is None:
        rebuild(self, nodes)
    else:
        self.policy = policy


def policy_key(name: str, key: Callable[[TreeNode], int]) -> Callable[[Patch], None]:
    return lambda patch: patch.setattr(
        named, "POLICIES", {**named.POLICIES, name: lambda node: key(node)}
    )


FAULTS["policy_lru_takes_the_youngest"] = policy_key("lru", lambda n: -n.last_used)
FAULTS["policy_lfu_ignores_hits"] = policy_key("lfu", lambda n: n.last_used)
FAULTS["policy_fifo_goes_by_use"] = policy_key("fifo", lambda n: n.last_used)
FAULTS["policy_filo_goes_by_use"] = policy_key("filo", lambda n: -n.last_used)
FAULTS["policy_mru_is_lru"] = policy_key("mru", lambda n: n.last_used)
FAULTS["policy_slru_protects_after_one_hit"] = policy_key(
    "slru", lambda n: eviction.pair(int(n.hits >= 1), n.last_used)
)
FAULTS["policy_priority_takes_the_highest"] = policy_key(
    "priority", lambda n: eviction.pair(-n.priority, n.last_used)
)


@around(RadixCache, "__init__")
def extend_evicts_token_by_token(init, self, *args, **named):
    init(self, *args, **named)
    self._quantum = self.page_size


@around(RadixCache, "__init__")
def extend_evicts_too_much(init, self, *args, **named):
    init(self, *args, **named)
    self._quantum *= 2


@around(RadixCache, "take_private")
def extend_evicts_although_there_is_no_room(take, self, lease, n_slots, ahead):
    if n_slots > self.available - lease.reserve:
        self.flush()
    return take(self, lease, n_slots, ahead)
