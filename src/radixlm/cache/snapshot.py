"""A frozen picture of the tree, whole or pruned."""

from __future__ import annotations

from collections.abc import Hashable

from radixlm.cache.node import TreeNode
from radixlm.cache.tree import RadixTree
from radixlm.core.reports import NodeView, TreeSnapshot


def take_snapshot(
    tree: RadixTree, *, max_depth: int | None = None, min_tokens: int = 0
) -> TreeSnapshot:
    """Every node as it is now, each before its children. O(nodes).

    max_depth: nodes below that many edges are left out. min_tokens: so are nodes with fewer tokens
    in them and below; a node says how many below it are hidden.
    """
    weights = _weights(tree) if min_tokens else {}
    views: list[NodeView] = []
    stack: list[tuple[TreeNode, Hashable, int]] = [
        (root, namespace, 0) for namespace, root in tree.roots().items()
    ]
    while stack:
        node, namespace, depth = stack.pop()
        below = list(node.children.values())
        shown = [
            child
            for child in below
            if (max_depth is None or depth < max_depth)
            and (not min_tokens or weights[child.id] >= min_tokens)
        ]
        views.append(_view(node, namespace, _hidden(below, shown)))
        stack.extend((child, namespace, depth + 1) for child in shown)
    return TreeSnapshot(tree.version, tree.page_size, tuple(views))


def _view(node: TreeNode, namespace: Hashable, hidden: int) -> NodeView:
    return NodeView(
        id=node.id,
        parent_id=node.parent.id if node.parent else None,
        namespace=namespace,
        start=node.start,
        edge=node.edge,
        resident=node.resident,
        lock_ref=node.lock_ref,
        pins=node.pins,
        hits=node.hits,
        priority=node.priority,
        last_used=node.last_used,
        hidden=hidden,
    )


def _hidden(below: list[TreeNode], shown: list[TreeNode]) -> int:
    kept = {child.id for child in shown}
    stack = [child for child in below if child.id not in kept]
    count = 0
    while stack:
        node = stack.pop()
        count += 1
        stack.extend(node.children.values())
    return count


def _weights(tree: RadixTree) -> dict[int, int]:
    """Tokens in each node and below it."""
    order = list(tree.nodes())
    weights = {node.id: len(node) for node in order}
    for node in reversed(order):
        if node.parent is not None:
            weights[node.parent.id] += weights[node.id]
    return weights
