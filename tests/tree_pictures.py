"""Pictures of a whole tree at once, and what changed since the last."""

from __future__ import annotations

from sys import maxsize

from radixlm.cache import RadixTree
from radixlm.cache.radix.tree_stats import Changes
from radixlm.core.reports import TreeQuery, TreeSnapshot
from radixlm.core.request import Namespace
from radixlm.observe.picture import Picture


def tree_snapshot(tree: RadixTree, query: TreeQuery | None = None) -> TreeSnapshot:
    """What a query shows now, the whole tree by default."""
    picture = Picture(tree, query or TreeQuery())
    picture.develop(maxsize)
    return picture.snapshot()


def watched(tree: RadixTree, query: TreeQuery) -> Picture:
    """A picture of a tree whose changes are recorded from now on."""
    tree.watch(Changes())
    return Picture(tree, query)


def take_changes(tree: RadixTree) -> Changes | None:
    """What has changed since the last call, None for nothing."""
    return recorded(tree).take() or None


def recorded(tree: RadixTree) -> Changes:
    """What records the changes of a tree that is watched."""
    return [each for each in tree.observers if isinstance(each, Changes)][-1]


def resident_prefixes(tree: RadixTree) -> set[tuple[Namespace, tuple[int, ...]]]:
    """Every prefix of which all is resident, node by node."""
    found = set()
    paths: dict[int | None, tuple[int, ...]] = {None: ()}
    for view in tree_snapshot(tree).nodes:
        above = paths[view.parent_id]
        paths[view.id] = above + view.tokens
        there = above + view.tokens[: view.resident]
        assert isinstance(view.namespace, Namespace)
        found |= {(view.namespace, there[:n]) for n in range(len(above) + 1, len(there) + 1)}
    return found
