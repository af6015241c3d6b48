"""Pictures of a whole tree at once, and what changed since the last."""

from __future__ import annotations

from sys import maxsize

from radixlm.cache import RadixTree
from radixlm.cache.tree_stats import Changes
from radixlm.core.reports import TreeQuery, TreeSnapshot
from radixlm.observe.picture import Picture


def tree_snapshot(tree: RadixTree, query: TreeQuery | None = None) -> TreeSnapshot:
    """What a query shows now, the whole tree by default."""
    picture = Picture(tree, query or TreeQuery())
    picture.develop(maxsize)
    return picture.snapshot()


def watched(tree: RadixTree, query: TreeQuery) -> Picture:
    """A picture of a tree that records its changes from now on."""
    tree.changes = Changes()
    return Picture(tree, query)


def take_changes(tree: RadixTree) -> Changes | None:
    """What has changed since the last call, None for nothing."""
    changes = tree.changes or None
    if changes is not None:
        tree.changes = Changes()
    return changes
