"""What was evicted is remembered for a while: it explains misses, and is where KV is put back."""

from __future__ import annotations

from collections import OrderedDict

from radixlm.cache.node import TreeNode


class Ghosts:
    """Nodes with evicted tokens, longest evicted first, within a budget of tokens (4 bytes each).

    It only counts and orders: the tree decides what happens to a node that is over the budget.
    """

    def __init__(self, budget: int) -> None:
        self.budget = budget
        self.size = 0
        self._nodes: OrderedDict[TreeNode, int] = OrderedDict()

    def update(self, node: TreeNode, *, fresh: bool = False) -> None:
        """Follow a node whose edge or residency changed. fresh: it was evicted just now."""
        known = self._nodes.get(node, 0)
        ghosts = node.ghosts
        self.size += ghosts - known
        if not ghosts:
            if known:
                del self._nodes[node]
            return
        self._nodes[node] = ghosts
        if fresh:
            self._nodes.move_to_end(node)

    def forget(self, node: TreeNode) -> None:
        """A node is gone."""
        self.size -= self._nodes.pop(node, 0)

    def over_budget(self) -> TreeNode | None:
        """The node to give up next, or None while all fit."""
        return next(iter(self._nodes)) if self.size > self.budget else None
