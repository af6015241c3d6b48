"""What must hold between any two calls, walked in full. For tests and for idle moments."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from radixlm.cache.node import NODE_WEIGHT, TOKEN_WEIGHT, TreeNode, page_key
from radixlm.core.errors import InvariantError
from radixlm.core.keys import Slots


class Counts(NamedTuple):
    """What a tree holds: nodes, those without children, and tokens."""

    nodes: int
    leaves: int
    locked: int
    evictable: int
    pinned: int
    ghosts: int


def require(holds: bool, what: str) -> None:
    """Raise InvariantError unless `holds`."""
    if not holds:
        raise InvariantError(what)


def check_nodes(nodes: Iterable[TreeNode], page_size: int) -> Counts:
    """Check every node of a tree against its neighbours and count what they hold.

        root                 no tokens; in use, or it has children
         └─ node             whole pages; its key in the parent is its first page
             ├─ node         lock_ref == held + the sum of its children's
             │   └─ ghost    nothing below a token that is not resident is resident or locked
             └─ leaf         unlocked, nothing resident below: it is in the eviction order

    A node's first `resident` tokens have slots. No node is used later than its parent.
    """
    count = leaves = locked = evictable = pinned = ghosts = 0
    for node in nodes:
        count += 1
        leaves += not node.children
        _check_place(node, page_size)
        _check_children(node, page_size)
        ghosts += node.ghosts
        if node.lock_ref:
            locked += node.resident
        else:
            evictable += node.resident
        if node.pins:
            pinned += node.resident
        queued = node.queued_key is not None
        waits = not node.lock_ref and not node.live and node.resident > 0
        require(queued or not waits, f"unlocked leaf {node.id} is in no eviction order")
    return Counts(count, leaves, locked, evictable, pinned, ghosts)


def _check_place(node: TreeNode, page_size: int) -> None:
    name = f"node {node.id}"
    require(node.slots.size == node.resident, f"{name}: {node.resident} resident, not its slots")
    require(node.resident <= len(node), f"{name}: {len(node)} tokens, {node.resident} resident")
    for length in (len(node), node.resident):
        require(length % page_size == 0, f"{name}: torn page")
    require(node.lock_ref >= node.pins >= 0, f"{name}: lock_ref {node.lock_ref}, {node.pins} pins")
    require(not node.lock_ref or not node.ghosts, f"{name} is locked but not resident")
    if node.parent is None:
        require(node.is_root and not node.edge, f"{name} has no parent")
        require(bool(node.lock_ref or node.children), f"{name}: an empty root was kept")
        return
    require(len(node) > 0, f"{name} is empty")
    require(node.end == node.parent.end + len(node), f"{name}: end {node.end}")
    require(node.namespace == node.parent.namespace, f"{name} is in {node.namespace!r}")
    require(node.last_used <= node.parent.last_used, f"{name} is younger than its parent")
    require(
        node.priority <= node.parent.priority or node.parent.is_root,
        f"{name} has more priority than its parent",
    )


def _check_children(node: TreeNode, page_size: int) -> None:
    children = node.children.values()
    for page, child in node.children.items():
        require(child.parent is node, f"node {child.id} does not know its parent {node.id}")
        fits = page == page_key(child.edge, page_size)
        require(fits, f"node {child.id} is filed under another page")
        require(not child.resident or not node.ghosts, f"node {child.id} outlived its parent")
    below = sum(child.lock_ref for child in children)
    fits = node.lock_ref == below + node.held
    require(fits, f"node {node.id}: {node.lock_ref} locks, {node.held} end here, {below} below it")
    pins = sum(child.pins for child in children)
    require(node.pins >= pins, f"node {node.id}: {node.pins} pins, {pins} below it")
    live = sum(1 for child in children if child.resident)
    weight = len(node) * TOKEN_WEIGHT + NODE_WEIGHT + sum(child.weight for child in children)
    require(node.weight == weight, f"node {node.id}: weight {node.weight:#x}, it has {weight:#x}")
    require(node.live == live, f"node {node.id}: {node.live} live children, it has {live}")


def check_slots(capacity: int, owners: Iterable[tuple[str, Slots]]) -> None:
    """Check that every slot of a pool has exactly one of `owners`."""
    seen = np.zeros(capacity, dtype=np.int64)
    for name, slots in owners:
        inside = bool(slots.size == 0 or (slots.min() >= 0 and slots.max() < capacity))
        require(inside, f"{name} holds slots outside of the pool")
        np.add.at(seen, slots, 1)
        alone = bool((seen[slots] <= 1).all())
        require(alone, f"{name} holds slots that somebody else holds too")
    lost = np.flatnonzero(seen == 0)
    require(not lost.size, f"{lost.size} slots are lost, the first is {lost[:1]}")
