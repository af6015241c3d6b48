"""The one place that knows which leaf goes first."""

from __future__ import annotations

from heapq import heappop, heappush
from typing import Protocol

from radixlm.cache.node import TreeNode


class EvictionPolicy(Protocol):
    """The leaf with the smallest key goes first."""

    def key(self, node: TreeNode) -> int: ...


class LeastRecentlyUsed:
    def key(self, node: TreeNode) -> int:
        return node.last_used


class EvictionOrder:
    """Unlocked leaves, first to go first. O(log n) per leaf offered or taken.

    A node has at most one entry. Entries are not searched for when a node is used again: an
    entry whose key has grown since is put back when it comes up, one whose node is locked or has
    children is dropped (it is offered again when that ends). So a policy's key may only grow.
    """

    def __init__(self, policy: EvictionPolicy) -> None:
        self._policy = policy
        self._heap: list[tuple[int, int, TreeNode]] = []

    def offer(self, node: TreeNode) -> None:
        """Enter an unlocked leaf; one that is entered already stays where it is."""
        if not node.queued:
            node.queued = True
            heappush(self._heap, (self._policy.key(node), node.id, node))

    def pop(self) -> TreeNode | None:
        """Take the unlocked leaf that goes first, or None when there is none."""
        while self._heap:
            key, _, node = heappop(self._heap)
            node.queued = False
            if node.lock_ref or node.children:
                continue
            if key == self._policy.key(node):
                return node
            self.offer(node)
        return None
