"""The tree's shape: the only code that adds, cuts, joins and removes nodes, and counts them."""

from __future__ import annotations

from collections.abc import Hashable, Iterator

import numpy as np

from radixlm.cache.changes import Changes
from radixlm.cache.eviction import EvictionOrder, EvictionPolicy
from radixlm.cache.ghosts import Ghosts
from radixlm.cache.node import (
    NO_SLOTS,
    NODE_WEIGHT,
    TOKEN_BYTES,
    TOKEN_WEIGHT,
    TreeNode,
    page_key,
    walk,
)
from radixlm.cache.reuse import Reuse
from radixlm.cache.tree_stats import TreeStats
from radixlm.core.clock import Clock
from radixlm.core.errors import CacheError
from radixlm.core.events import EventSink, Evicted, Merged, Split
from radixlm.core.keys import Slots


class Structure:
    """Nodes and their books. Every method leaves both consistent.

    evictable, protected: resident tokens under no lock, and under one. pinned: under a pin.
    version: grows with every change of shape or residency. by_id: every node.
    changes: where it is noted which nodes changed, None while nobody wants to know.
    reuse: where it is counted when tokens were last used, None where nobody predicts.
    """

    def __init__(
        self,
        page_size: int,
        policy: EvictionPolicy,
        ghosts: Ghosts,
        clock: Clock,
        sink: EventSink | None,
        reuse: Reuse | None,
    ) -> None:
        self.page_size = page_size
        self.roots: dict[Hashable, TreeNode] = {}
        self.by_id: dict[int, TreeNode] = {}
        self.order = EvictionOrder(policy, self.by_id)
        self.ghosts = ghosts
        self.stats = TreeStats()
        self.version = 0
        self.changes: Changes | None = None
        self.evictable = 0
        self.protected = 0
        self.pinned = 0
        self.reuse = reuse
        self._clock = clock
        self._sink = sink
        self._next_id = 0

    @property
    def node_count(self) -> int:
        return len(self.by_id)

    def touch(self, node: TreeNode) -> None:
        """Note that something of a node, or of the path to it, is not as it was."""
        if self.changes is not None:
            self.changes.touch(node)

    def lock(self, node: TreeNode, top: TreeNode | None = None) -> None:
        """Take hold of a node: one lock more on it and all above it, up to below `top`."""
        fresh = 0
        at: TreeNode | None = node
        while at is not top and at is not None:
            if not at.lock_ref:
                fresh += at.resident
                if self.reuse is not None:
                    self.reuse.leave(at.last_used, at.resident)
            at.lock_ref += 1
            at = at.parent
        self.protect(node, fresh)

    def protect(self, node: TreeNode, n_tokens: int) -> None:
        """A lock ends at a node now; so many tokens of the path had none, and `reuse` knows."""
        node.held += 1
        self.evictable -= n_tokens
        self.protected += n_tokens
        if self.changes is not None:
            self.changes.touch(node)

    def unprotect(self, n_tokens: int, use: int) -> None:
        """So many tokens lose their last lock, used last at `use`."""
        self.protected -= n_tokens
        self.evictable += n_tokens
        if self.reuse is not None:
            self.reuse.enter(use, n_tokens)

    def use(self, node: TreeNode, use: int) -> None:
        """A node is used, whether there is a lock on it or not."""
        if self.reuse is not None and not node.lock_ref:
            self.reuse.leave(node.last_used, len(node))
            self.reuse.enter(use, len(node))
        node.last_used = use

    def nodes(self) -> Iterator[TreeNode]:
        """Every node, roots included, each before its children."""
        return walk(*self.roots.values())

    def add_root(self, namespace: Hashable) -> TreeNode:
        root = self.roots[namespace] = self._new_node(b"", NO_SLOTS, None, namespace)
        self.stats.leaves += 1
        return root

    def add_leaf(
        self, parent: TreeNode, edge: bytes, slots: Slots, priority: int, *, held: bool
    ) -> TreeNode:
        """Hang a new resident leaf, with a copy of the slots, below one resident to its end. held:
        the caller holds the parent, and its lock moves down to the leaf.
        """
        if parent.children:
            self.stats.leaves += 1
        leaf = self._new_node(edge, slots.copy(), parent)
        parent.live += 1
        leaf.last_used = parent.last_used
        leaf.priority = priority
        _weigh(parent, leaf.weight)
        if held:
            parent.held -= 1
            leaf.held = leaf.lock_ref = 1
            self.protected += leaf.resident
        else:
            self.evictable += leaf.resident
            if self.reuse is not None:
                self.reuse.enter(leaf.last_used, leaf.resident)
        return leaf

    def grow(self, leaf: TreeNode, edge: bytes, slots: Slots) -> None:
        """Add resident tokens to the end of a resident node without children."""
        leaf.set_edge(leaf.edge + edge, np.concatenate((leaf.slots, slots)))
        leaf.end += slots.size
        _weigh(leaf, slots.size * TOKEN_WEIGHT)
        self.version += 1
        self.touch(leaf)
        if leaf.lock_ref:
            self.protected += slots.size
        else:
            self.evictable += slots.size
            if self.reuse is not None:
                self.reuse.enter(leaf.last_used, slots.size)

    def revive(self, node: TreeNode, slots: Slots) -> None:
        """Give slots to all ghost tokens of a node whose parent is resident to its end."""
        parent = node.parent
        if parent is None or node.lock_ref:
            raise CacheError(f"node {node.id} can hold no ghosts")
        if not node.resident:
            parent.live += 1
        node.set_slots(np.concatenate((node.slots, slots)))
        self.evictable += slots.size
        self.stats.revived_tokens += slots.size
        self.version += 1
        self.touch(node)
        self.ghosts.update(node)

    def revive_path(self, node: TreeNode, slots: Slots) -> int:
        """Make the path down to `node` resident, with `slots` for all of its tokens; return how
        many of them were before.
        """
        chain = [node]
        while (parent := chain[-1].parent) is not None and parent.ghosts:
            chain.append(parent)
        there = chain[-1].start + chain[-1].resident
        for ghost in reversed(chain):
            self.revive(ghost, slots[ghost.start + ghost.resident : ghost.end].copy())
        return there

    def split(self, node: TreeNode, offset: int) -> TreeNode:
        """Cut `node` after `offset` tokens; return the new upper part. The lower one keeps its
        identity, its age and its place in the eviction order.
        """
        parent = node.parent
        if parent is None or not 0 < offset < len(node):
            raise CacheError(f"node {node.id} of {len(node)} tokens can not be cut at {offset}")
        cut = offset * TOKEN_BYTES
        edge, slots = node.edge, node.slots
        upper = self._new_node(edge[:cut], slots[:offset].copy(), parent)
        upper.lock_ref, upper.pins, upper.priority = node.lock_ref, node.pins, node.priority
        upper.last_used, upper.hits, upper.created = node.last_used, node.hits, node.created
        upper.evicted_at = node.evicted_at
        node.set_edge(edge[cut:], slots[offset:].copy())
        node.parent = upper
        upper.children[page_key(node.edge, self.page_size)] = node
        upper.live = 1 if node.resident else 0
        upper.weight = node.weight + NODE_WEIGHT
        node.weight -= offset * TOKEN_WEIGHT
        _weigh(parent, NODE_WEIGHT)
        self.touch(node)
        self.ghosts.update(node)
        self.ghosts.update(upper)
        self.settle(upper)
        self.stats.splits += 1
        if self._sink is not None:
            self._sink(Split(node.id, upper.id, offset))
        return upper

    def merge(self, node: TreeNode) -> None:
        """Join `node` with its only child when nothing tells them apart: no lease and no pin ends
        between them, last used together, the same priority, no resident token after a ghost. The
        child keeps its identity, since that is what leases below hold.
        """
        parent = node.parent
        if parent is None or not is_mergeable(node):
            return
        [child] = node.children.values()
        child.set_edge(node.edge + child.edge, np.concatenate((node.slots, child.slots)))
        child.parent = parent
        parent.children[page_key(node.edge, self.page_size)] = child
        child.last_used = node.last_used
        child.created = min(node.created, child.created)
        child.hits = max(node.hits, child.hits)
        child.evicted_at = max(node.evicted_at, child.evicted_at)
        child.weight += len(node) * TOKEN_WEIGHT
        _weigh(parent, -NODE_WEIGHT)
        node.parent = None
        node.lock_ref = node.pins = 0
        self._leave(node)
        self.touch(child)
        self.version += 1
        self.ghosts.forget(node)
        self.ghosts.update(child)
        self.settle(child)
        self._tidy_order()
        self.stats.merges += 1
        if self._sink is not None:
            self._sink(Merged(child.id, node.id, len(child)))

    def trim(self, leaf: TreeNode, n_tokens: int) -> Slots:
        """Evict up to `n_tokens`, rounded up to a page, from the end of an unlocked leaf. Their
        keys stay as ghosts, within the budget. Returns the slots.
        """
        pages = -(-n_tokens // self.page_size)
        keep = max(leaf.resident - pages * self.page_size, 0)
        freed = leaf.slots[keep:]
        leaf.set_slots(leaf.slots[:keep].copy() if keep else NO_SLOTS)
        leaf.evicted_at = self._clock.now()
        self.evictable -= freed.size
        self.version += 1
        self.touch(leaf)
        self.stats.evictions += 1
        self.stats.evicted_tokens += freed.size
        self.stats.hits_at_eviction.add(leaf.hits)
        if self._sink is not None:
            self._sink(Evicted(leaf.id, freed.size, gone=not keep))
        if keep:
            self.settle(leaf)
        elif leaf.parent is not None:
            leaf.parent.live -= 1
            self.settle(leaf.parent)
        self.ghosts.update(leaf, fresh=True)
        self.forget_excess()
        return freed

    def forget_excess(self) -> None:
        """Drop the longest evicted ghosts until the rest is within the budget."""
        while (node := self.ghosts.over_budget()) is not None:
            self._forget(node)

    def settle(self, node: TreeNode) -> None:
        """What becomes of a node that nobody holds and under which nothing is resident: a resident
        one waits for eviction, an empty root goes, so that namespaces do not pile up.
        """
        if node.lock_ref or node.live:
            return
        if node.resident:
            if self.order.offer(node):
                self._tidy_order()
        elif node.is_root and not node.children:
            del self.roots[node.namespace]
            self.stats.leaves -= 1
            self._leave(node)
            self.version += 1

    def _tidy_order(self) -> None:
        """Entries that no longer count come of smaller keys and of nodes that were joined."""
        if self.order.is_bloated(self.node_count):
            self.order.rebuild(self.nodes())

    def _forget(self, node: TreeNode) -> None:
        """Give up a node's ghost tokens and everything below: ghosts as well."""
        below = list(node.children.values())
        node.children.clear()
        self.stats.leaves += bool(below)
        while below:
            ghost = below.pop()
            below.extend(ghost.children.values())
            self._drop(ghost)
        self.version += 1
        parent = node.parent
        if parent is None:
            raise CacheError(f"node {node.id} is not in the tree")
        self.touch(node if node.resident else parent)
        left = node.resident * TOKEN_WEIGHT + NODE_WEIGHT if node.resident else 0
        _weigh(node, left - node.weight)
        if node.resident:
            self.stats.forgotten_tokens += node.ghosts
            if self.reuse is not None:
                self.reuse.leave(node.last_used, node.ghosts)
            node.end -= node.ghosts
            node.edge = node.edge[: node.resident * TOKEN_BYTES]
            self.ghosts.update(node)
            return
        del parent.children[page_key(node.edge, self.page_size)]
        self.stats.leaves += not parent.children
        self._drop(node)
        self.settle(parent)
        self.merge(parent)

    def _drop(self, ghost: TreeNode) -> None:
        self.stats.forgotten_tokens += len(ghost)
        self.stats.leaves -= not ghost.children
        if self.reuse is not None:
            self.reuse.leave(ghost.last_used, len(ghost))
        self.ghosts.forget(ghost)
        ghost.parent = None
        self._leave(ghost)

    def _new_node(
        self, edge: bytes, slots: Slots, parent: TreeNode | None, namespace: Hashable = None
    ) -> TreeNode:
        """A node that its parent has, too, in the place of whoever begins with the same page."""
        self._next_id += 1
        self.version += 1
        node = self.by_id[self._next_id] = TreeNode(self._next_id, edge, slots, parent, namespace)
        if parent is not None:
            parent.children[page_key(edge, self.page_size)] = node
        if self.changes is not None:
            self.changes.touch(node)
        return node

    def _leave(self, node: TreeNode) -> None:
        del self.by_id[node.id]
        if self.changes is not None:
            self.changes.remove(node)


def _weigh(node: TreeNode, more: int) -> None:
    """Add to the weight of a node, and so of all above it."""
    at: TreeNode | None = node
    while at is not None:
        at.weight += more
        at = at.parent


def is_mergeable(node: TreeNode) -> bool:
    """Whether nothing tells `node` and its only child apart. While they are locked their age does
    not: it is set when the lock ends.
    """
    if len(node.children) != 1 or node.parent is None:
        return False
    [child] = node.children.values()
    return (
        not node.held
        and (child.last_used == node.last_used or child.lock_ref > 0)
        and child.priority == node.priority
        and (not child.resident or not node.ghosts)
    )
