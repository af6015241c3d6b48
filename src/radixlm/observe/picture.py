"""A picture of the tree, whole or pruned: made bit by bit, then kept up to date."""

from __future__ import annotations

from collections.abc import Container, Iterable
from heapq import heappop, heappush
from itertools import islice
from sys import maxsize

import numpy as np

from radixlm.cache import RadixTree, TreeNode
from radixlm.cache.radix.allocator import split_runs
from radixlm.cache.radix.node import NO_SLOTS, nodes_in, tokens_in, upward
from radixlm.cache.radix.tree_stats import Changes
from radixlm.core.errors import NodeGoneError
from radixlm.core.keys import Slots
from radixlm.core.reports import NodeView, TreeChange, TreeQuery, TreeSnapshot

_LOOKS_PER_NODE = 2


class _Shown:
    """A node in the picture. covered: the weights of its children that are in the picture."""

    __slots__ = ("covered", "depth", "node", "parent", "weight")

    def __init__(self, node: TreeNode, depth: int) -> None:
        self.node = node
        self.depth = depth
        self.parent: _Shown | None = None
        self.weight = 0
        self.covered = 0

    def count_below(self, parent: _Shown | None) -> None:
        """Let the parent, which may be another one now, count this node as it is now."""
        if self.parent is not None:
            self.parent.covered -= self.weight
        self.parent, self.weight = parent, self.node.weight
        if parent is not None:
            parent.covered += self.weight

    def view(self, windows: Slots | None, checkpoints: Container[TreeNode]) -> NodeView:
        return _view(self.node, self.node.weight - self.covered, windows, checkpoints)


class Picture:
    """The part of a tree that a query shows.

        develop, develop, ...    takes nodes in, the heaviest first, some at a time; when the tree
                                 has changed in between, `update` comes first
        snapshot                 once it is complete: all of it, as it is now
        update                   what has changed since

    So no step waits for a walk of the whole tree, and yet all that is shown is of one moment. A
    node's weight says what is below it without a walk. New nodes are shown below nodes that are
    shown, while there are fewer than max_nodes.

    Raises NodeGoneError when the one node that was asked for is not (any more) in the tree.
    """

    def __init__(
        self,
        tree: RadixTree,
        query: TreeQuery,
        windows: Slots | None = None,
        checkpoints: Container[TreeNode] = (),
    ) -> None:
        """windows: by slot its window slot, -1 for none, where there are such; see WindowSlots.
        checkpoints: nodes that have one of a state; see StateSlots.
        """
        self._tree = tree
        self._beside = windows, checkpoints
        self._by_id = tree.by_id
        self._query = query
        self._most = maxsize if query.max_nodes is None else query.max_nodes
        self._looks = _LOOKS_PER_NODE * self._most
        self._shown: dict[int, _Shown] = {}
        self._to_weigh: list[int] = []
        self._heaviest: list[tuple[int, int]] = []  # (-weight, id)
        self._growing = True
        self._to_view: list[int] = []
        self._views: dict[int, NodeView] = {}
        self._in_order = True
        self._look_at(self._tops())

    @property
    def complete(self) -> bool:
        return not (self._growing or self._to_view)

    @property
    def overgrown(self) -> bool:
        """Whether splits have brought in far more than max_nodes, so that it must be made anew."""
        return len(self._shown) > _LOOKS_PER_NODE * self._most

    def develop(self, n_nodes: int) -> None:
        """Go on by `n_nodes`: all are taken in before any is viewed. O(log nodes) each."""
        while n_nodes > 0 and not self.complete:
            n_nodes -= 1
            if self._to_weigh:
                self._weigh(self._to_weigh.pop())
            elif self._heaviest:
                self._take_heaviest()
            elif self._growing:
                self._growing = False
                self._to_view = list(self._shown)
            else:
                self._view(self._to_view.pop())

    def snapshot(self) -> TreeSnapshot:
        """All that is shown, once it is complete. The views are not kept."""
        nodes = [self._views[name] for name in self._shown]
        self._views = {}
        if not self._in_order:
            nodes.sort(key=lambda view: view.start + len(view.ids))
        tree = self._tree
        return TreeSnapshot(tree.version, tree.page_size, tuple(nodes), tree.uses, self._path())

    def update(self, changes: Changes) -> TreeChange:
        """Follow the tree; what has changed of what is shown. O(changed nodes)."""
        if self._query.node is not None and self._query.node not in self._by_id:
            raise NodeGoneError(f"node {self._query.node} is gone")
        removed = [name for name in changes.removed if self._drop(name)]
        touched = [node for node in changes.touched() if self._by_id.get(node.id) is node]
        needed = self._needed(touched)
        for node in touched:
            shown = self._shown.get(node.id)
            if shown is None:
                if self._belongs(node) and (node.id in needed or self._fits(node)):
                    self._take_in(node)
            elif self._belongs(node):
                shown.count_below(self._parent_of(node))
            else:
                self._drop(node.id)
                removed.append(node.id)
        self._in_order = self._in_order and not needed
        seen = [self._shown[node.id] for node in touched if node.id in self._shown]
        views = () if self._growing else tuple(shown.view(*self._beside) for shown in seen)
        if not self.complete:
            self._views |= {view.id: view for view in views}
        return TreeChange(self._tree.version, self._tree.uses, tuple(removed), views)

    def deepest_shown(self, node: TreeNode) -> int | None:
        """The id of the last node on the path to `node` that is in the picture."""
        return next((at.id for at in upward(node) if at.id in self._shown), None)

    def _tops(self) -> Iterable[TreeNode]:
        query = self._query
        if query.node is None:
            roots = reversed(self._tree.roots.values())
            return (root for root in roots if query.admits(root.namespace))
        top = self._by_id.get(query.node)
        if top is None or not query.admits(top.namespace):
            raise NodeGoneError(f"there is no node {query.node}")
        return (top,)

    def _is_top(self, node: TreeNode) -> bool:
        if self._query.node is not None:
            return node.id == self._query.node
        return node.is_root and self._query.admits(node.namespace)

    def _look_at(self, nodes: Iterable[TreeNode]) -> None:
        """Nodes that may be taken in, as many as may still be looked at."""
        found = [node.id for node in islice(nodes, min(self._looks, maxsize))]
        self._looks -= len(found)
        self._to_weigh += found

    def _weigh(self, node_id: int) -> None:
        node = self._by_id.get(node_id)
        if node is not None and self._belongs(node):
            heappush(self._heaviest, (-node.weight, node_id))

    def _take_heaviest(self) -> None:
        node = self._by_id.get(heappop(self._heaviest)[1])
        if node is None or node.id in self._shown or not self._belongs(node):
            return
        if self._fits(node):
            self._take_in(node)

    def _take_in(self, node: TreeNode) -> None:
        parent = self._parent_of(node)
        shown = _Shown(node, 0 if parent is None else parent.depth + 1)
        shown.count_below(parent)
        self._shown[node.id] = shown
        if self._growing and shown.depth != self._query.max_depth:
            self._look_at(reversed(node.children.values()))

    def _view(self, node_id: int) -> None:
        shown = self._shown.get(node_id)
        if shown is not None and node_id not in self._views:
            self._views[node_id] = shown.view(*self._beside)

    def _drop(self, node_id: int) -> bool:
        shown = self._shown.pop(node_id, None)
        if shown is None:
            return False
        if shown.parent is not None:
            shown.parent.covered -= shown.weight
        self._views.pop(node_id, None)
        return True

    def _belongs(self, node: TreeNode) -> bool:
        """Whether its parent is shown, or it is a top, and it is heavy enough."""
        if self._is_top(node):
            return True
        heavy = tokens_in(node.weight) >= self._query.min_tokens
        return heavy and self._parent_of(node) is not None

    def _fits(self, node: TreeNode) -> bool:
        """Whether there is room for it, and it is not too deep."""
        parent, most = self._parent_of(node), self._query.max_depth
        shallow = parent is None or most is None or parent.depth < most
        return shallow and len(self._shown) < self._most

    def _parent_of(self, node: TreeNode) -> _Shown | None:
        if node.parent is None or self._is_top(node):
            return None
        return self._shown.get(node.parent.id)

    def _needed(self, touched: Iterable[TreeNode]) -> set[int]:
        """Nodes that are not shown but above one that is: splits have put them there."""
        needed: set[int] = set()
        for node in touched:
            at = node.parent
            if node.id in self._shown and not self._is_top(node):
                while at is not None and at.id not in self._shown:
                    needed.add(at.id)
                    at = at.parent
        return needed

    def _path(self) -> tuple[NodeView, ...]:
        if self._query.node is None:
            return ()
        top = self._by_id[self._query.node]
        path = [_view(node, node.weight, *self._beside) for node in upward(top)]
        return tuple(path[:0:-1])


def _view(
    node: TreeNode, uncovered: int, windows: Slots | None, checkpoints: Container[TreeNode]
) -> NodeView:
    """uncovered: its weight, less that of the children that are shown. The others: see Picture."""
    gone = NO_SLOTS
    if windows is not None and node.resident:
        gone = np.flatnonzero(windows[node.slots] < 0).astype(np.int32)
    return NodeView(
        id=node.id,
        parent_id=node.parent.id if node.parent else None,
        namespace=node.namespace,
        start=node.start,
        edge=node.edge,
        resident=node.resident,
        stored=node.stored,
        lock_ref=node.lock_ref,
        pins=node.pins,
        hits=node.hits,
        priority=node.priority,
        last_used=node.last_used,
        slots=node.slots,
        hidden=nodes_in(uncovered) - 1,
        hidden_tokens=tokens_in(uncovered) - len(node),
        tombstones=split_runs(gone),
        checkpoint=node in checkpoints,
    )
