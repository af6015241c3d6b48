"""Which nodes of a tree are not as they were, for pictures that follow it."""

from __future__ import annotations

from radixlm.cache.node import TreeNode

MAX_CHANGES = 50_000


class Changes:
    """Noted while somebody looks: cheap to write, sorted out when it is read.

    It is enough to note the lowest node of a path that changed: all above it count as changed, too.
    lost: there were too many; what is shown must be looked at afresh.
    """

    def __init__(self) -> None:
        self._touched: set[TreeNode] = set()
        self._removed: list[int] = []
        self.lost = False

    def __bool__(self) -> bool:
        return bool(self._touched or self._removed or self.lost)

    def touch(self, node: TreeNode) -> None:
        self._touched.add(node)
        self._bound()

    def remove(self, node: TreeNode) -> None:
        self._touched.discard(node)
        self._removed.append(node.id)
        self._bound()

    def removed(self) -> list[int]:
        """Ids of nodes that are gone."""
        return self._removed

    def touched(self) -> list[TreeNode]:
        """Every node that may have changed and is still there, parents first; always in the same
        order, since it decides which of them find room in a picture.
        """
        paths: set[TreeNode] = set()
        for node in self._touched:
            at: TreeNode | None = node
            while at is not None and at not in paths:
                paths.add(at)
                at = at.parent
        return sorted(paths, key=_place)

    def _bound(self) -> None:
        if len(self._touched) + len(self._removed) > MAX_CHANGES:
            self._touched.clear()
            self._removed.clear()
            self.lost = True


def _place(node: TreeNode) -> tuple[int, int]:
    return node.end, node.id
