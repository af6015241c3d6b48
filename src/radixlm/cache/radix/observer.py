"""The observers of a tree's transitions."""

from __future__ import annotations

from collections.abc import Iterable

from radixlm.cache.radix.node import TreeNode
from radixlm.core.keys import Slots


class TreeObserver:
    """Hears of a tree's transitions, each as it happens. What it does not override it hears of as
    `changed`.

        asked, locking, unlocking               once a walk, before it: locks and ages of the path,
                                                from `node` up to its root, are still as they were
        made, grown, revived, split, merged,    after it: a node's tokens are as they are now
        changed, left, matches_changed
        forgotten                               before it

    It changes nothing of the tree meanwhile. use: the tree's counter `uses`, of a use.
    """

    def changed(self, node: TreeNode) -> None:
        """A node's tokens, what of them is resident or stored, its locks or its age are others."""

    def left(self, node: TreeNode) -> None:
        """A node is out of the tree."""

    def asked(self, node: TreeNode, _use: int) -> None:
        """A match ends in `node`; its path gets one lock more."""
        self.changed(node)

    def locking(self, node: TreeNode) -> None:
        """A path gets one lock more, which is no use. Above its first locked node all are locked
        already, and may keep as many locks as they have.
        """
        self.changed(node)

    def unlocking(self, node: TreeNode, _use: int | None, _hint: int) -> None:
        """A path loses a lock. use: None if it was not used until now. hint: a place in Hint."""
        self.changed(node)

    def made(self, leaf: TreeNode) -> None:
        """A leaf or a root was added, resident to its end or not at all."""
        self.changed(leaf)

    def grown(self, leaf: TreeNode, _n_tokens: int) -> None:
        """A resident leaf got more tokens, also resident."""
        self.changed(leaf)

    def revived(self, node: TreeNode, _n_tokens: int, _use: int) -> None:
        """A node's last tokens, so far ghosts, are resident."""
        self.changed(node)

    def split(self, node: TreeNode, upper: TreeNode) -> None:
        """`upper` was cut off the front of `node`."""
        self.changed(node)
        self.changed(upper)

    def merged(self, node: TreeNode, child: TreeNode) -> None:
        """A child took over its parent `node`, which is out of the tree."""
        self.left(node)
        self.changed(child)

    def forgotten(self, node: TreeNode, n_tokens: int) -> None:
        """A node's last tokens, ghosts, are about to be known no longer."""

    def matches_changed(self, slots: Slots, nodes: Iterable[TreeNode]) -> None:
        """Matches of the tokens in these slots may end elsewhere. nodes: all of the tree."""

    def keeps_end(self, _node: TreeNode) -> bool:
        """Whether something ends where a resident node ends, so that it neither joins its child
        nor grows.
        """
        return False
