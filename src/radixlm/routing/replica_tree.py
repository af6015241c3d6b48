"""One radix tree over what all replicas hold."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import NamedTuple

from radixlm.core.keys import Key, first_difference

_TOKEN_BYTES = 4


class ReplicaNode:
    """The tokens on the edge into it, and who has all of them.

    holders: bit r is set where replica r holds them. coming: by replica, how many of the requests
    that were sent to it and have not begun to answer bring them.
    """

    __slots__ = ("children", "coming", "edge", "end", "holders", "parent")

    def __init__(self, edge: bytes, parent: ReplicaNode | None) -> None:
        self.edge = edge
        self.parent = parent
        size = len(edge) // _TOKEN_BYTES
        self.end: int = size if parent is None else parent.end + size
        self.children: dict[int, ReplicaNode] = {}
        self.holders = 0
        self.coming: dict[int, int] = {}

    @property
    def start(self) -> int:
        return self.end - len(self.edge) // _TOKEN_BYTES

    @property
    def wanted(self) -> bool:
        return bool(self.holders or self.coming or self.children)


class ReplicaMatches(NamedTuple):
    """How many of a prompt's tokens replicas have, by their numbers.

    levels: how many tokens some hold and no more, and who, one bit each; most tokens first. coming:
    how many those have that are about to compute some. awaited: from where to where requests that
    were sent and have not begun to answer have the same tokens, and how many of them. branch,
    length: the last node that the prompt runs into, and how many tokens agree.
    """

    levels: list[tuple[int, int]]
    coming: dict[int, int]
    awaited: list[tuple[int, int, int]]
    branch: ReplicaNode | None
    length: int

    def held(self, replica: int) -> int:
        for end, holders in self.levels:
            if holders >> replica & 1:
                return end
        return 0

    def cached(self, replica: int) -> int:
        """The tokens that it holds or is about to compute."""
        held = self.held(replica)
        return max(held, self.coming.get(replica, 0)) if self.coming else held

    def own(self, begin: int, size: int) -> float:
        """The prompt's tokens from `begin` on, each divided by the requests that are waiting for
        it, this one with them. size: of the prompt.
        """
        shared = 0.0
        for first, last, requests in self.awaited:
            if last > begin:
                shared += (last - max(first, begin)) * requests / (requests + 1)
        return size - begin - shared

    def most(self) -> int:
        """The tokens that any of them holds or is about to compute."""
        held = self.levels[0][0] if self.levels else 0
        return max(held, *self.coming.values()) if self.coming else held


class ReplicaTree:
    """A tree of who holds which prefix, token by token; a replica is a small number.

        root ── [system prompt]  held by 0 1 2 ─┬─ [question 1]  held by 0
                                                └─ [question 2]  coming to 2

    An edge is split wherever a holding ends, so all tokens of a node have the same holders; who
    holds a node holds all nodes above it. Nodes that nobody holds are gone, and what need not be
    apart is joined. Namespaces never share.
    Every method costs the path; `forget` costs the tree. roots: by namespace. nodes: without these.

    >>> from radixlm.core.keys import as_key
    >>> tree = ReplicaTree()
    >>> tree.hold(0, "", as_key([1, 2, 3, 4]))
    >>> tree.hold(1, "", as_key([1, 2, 9]))
    >>> [tree.find("", as_key([1, 2, 3, 5])).held(replica) for replica in range(3)]
    [3, 2, 0]
    >>> tree.drop(0, "", as_key([1, 2, 3, 4]), kept=1)
    >>> [tree.find("", as_key([1, 2, 3, 5])).held(replica) for replica in range(3)]
    [1, 2, 0]
    """

    def __init__(self) -> None:
        self.roots: dict[Hashable, ReplicaNode] = {}
        self.nodes = 0

    def find(self, namespace: Hashable, key: Key) -> ReplicaMatches:
        """O(matched bytes, nodes on the path and replicas they come to). Changes nothing."""
        found = ReplicaMatches([], {}, [], *self._find_end(namespace, key))
        at, end, seen = found.branch, found.length, 0
        while at is not None:
            above = at.parent
            if fresh := at.holders & ~seen:
                seen |= fresh
                found.levels.append((end, fresh))
            if at.coming:
                for replica in at.coming:
                    found.coming.setdefault(replica, end)
                if above is not None:
                    found.awaited.append((above.end, end, sum(at.coming.values())))
            at = above
            end = 0 if at is None else at.end
        return found

    def hold(self, replica: int, namespace: Hashable, key: Key) -> None:
        """A replica holds these tokens."""
        bit = 1 << replica
        end = self._reach(namespace, key)
        for branch in _path(end):
            if branch.holders & bit:
                break
            branch.holders |= bit
        self._tidy(end, namespace)

    def send(
        self, replica: int, namespace: Hashable, key: Key, found: ReplicaMatches | None = None
    ) -> None:
        """A replica was sent a request that will compute these tokens, until `arrive`. found: of
        this key, if nothing has changed since.
        """
        if found is None or found.branch is None:
            end = self._reach(namespace, key)
        else:
            end = self._grow(found.branch, found.length, key)
        for branch in _path(end):
            branch.coming[replica] = branch.coming.get(replica, 0) + 1
        self._tidy(end, namespace)

    def arrive(self, replica: int, namespace: Hashable, key: Key, *, computed: bool) -> None:
        """Take back a `send`. computed: the replica holds these tokens now."""
        if computed:
            self.hold(replica, namespace, key)
        end, length = self._find_end(namespace, key)
        if end is None or length < key.size:
            return
        for branch in _path(end):
            left = branch.coming.get(replica, 0) - 1
            if left > 0:
                branch.coming[replica] = left
            else:
                branch.coming.pop(replica, None)
        self._tidy(end, namespace)

    def drop(self, replica: int, namespace: Hashable, key: Key, kept: int) -> None:
        """Note that of all that begins with `key` a replica holds no more than the first `kept`
        tokens.
        """
        top, length = self._find_end(namespace, key)
        if top is None or length <= kept:
            return
        while top.parent is not None and top.parent.end > kept:
            top = top.parent
        if kept > top.start:
            self._split(top, kept)
        self._clear(top, namespace, 1 << replica)
        self._tidy(top, namespace)

    def clear(self, replica: int) -> None:
        """A replica holds nothing any more; what was sent to it may still come."""
        for namespace, root in tuple(self.roots.items()):
            self._clear(root, namespace, 1 << replica)

    def forget(self, replica: int) -> None:
        """A replica is gone, and all that was sent to it."""
        for namespace, root in tuple(self.roots.items()):
            branches = list(below(root))
            for branch in branches:
                branch.coming.pop(replica, None)
                branch.holders &= ~(1 << replica)
            for branch in branches:
                self._tidy(branch, namespace)

    def _find_end(self, namespace: Hashable, key: Key) -> tuple[ReplicaNode | None, int]:
        root = self.roots.get(namespace)
        return (None, 0) if root is None else _descend(root, key.data)

    def _reach(self, namespace: Hashable, key: Key) -> ReplicaNode:
        """The node that ends where `key` does, made where there is none."""
        root = self.roots.get(namespace)
        if root is None:
            root = self.roots[namespace] = ReplicaNode(b"", None)
        return self._grow(*_descend(root, key.data), key)

    def _grow(self, branch: ReplicaNode, length: int, key: Key) -> ReplicaNode:
        """The same, from the last node that `key` runs into, which agrees in `length` tokens."""
        if length < branch.end:
            branch = self._split(branch, length)
        if length == key.size:
            return branch
        leaf = ReplicaNode(key[length:].tobytes(), branch)
        branch.children[int(key[length])] = leaf
        self.nodes += 1
        return leaf

    def _split(self, lower: ReplicaNode, at: int) -> ReplicaNode:
        """Cut the edge before the token at depth `at`; the new node above."""
        parent = lower.parent
        assert parent is not None  # noqa: S101 - a root has no tokens
        cut = (at - parent.end) * _TOKEN_BYTES
        upper = ReplicaNode(lower.edge[:cut], parent)
        upper.holders, upper.coming = lower.holders, dict(lower.coming)
        parent.children[_first(upper.edge)] = upper
        lower.edge, lower.parent = lower.edge[cut:], upper
        upper.children[_first(lower.edge)] = lower
        self.nodes += 1
        return upper

    def _clear(self, top: ReplicaNode, namespace: Hashable, bit: int) -> None:
        """Take a holder from a node and all below it."""
        stack, seen = [top], []
        while stack:
            branch = stack.pop()
            if branch.holders & bit or branch.parent is None:
                branch.holders &= ~bit
                seen.append(branch)
                stack.extend(branch.children.values())
        for branch in seen:
            self._tidy(branch, namespace)

    def _tidy(self, branch: ReplicaNode, namespace: Hashable) -> None:
        """Take out what nobody wants, from a node up, the root as well, and join what need not be
        apart; the node itself may be joined with what is below it.
        """
        at: ReplicaNode | None = _only_child(branch) or branch
        while at is not None and (above := at.parent) is not None:
            if not at.wanted:
                del above.children[_first(at.edge)]
                at.parent = None
                self.nodes -= 1
                at = _only_child(above) or above
            elif above.parent is not None and len(above.children) == 1 and _alike(at, above):
                at.edge, at.parent = above.edge + at.edge, above.parent
                at.parent.children[_first(at.edge)] = at
                above.parent = None
                self.nodes -= 1
            else:
                at = above
        if at is not None and not at.children and self.roots.get(namespace) is at:
            del self.roots[namespace]


def _only_child(branch: ReplicaNode) -> ReplicaNode | None:
    return next(iter(branch.children.values())) if len(branch.children) == 1 else None


def _alike(one: ReplicaNode, other: ReplicaNode) -> bool:
    return one.holders == other.holders and one.coming == other.coming


def _first(edge: bytes) -> int:
    return memoryview(edge).cast("i")[0]


def _path(branch: ReplicaNode) -> Iterator[ReplicaNode]:
    """The node and all above it, without the root."""
    at = branch
    while at.parent is not None:
        yield at
        at = at.parent


def below(top: ReplicaNode) -> Iterator[ReplicaNode]:
    stack = [top]
    while stack:
        branch = stack.pop()
        yield branch
        stack.extend(branch.children.values())


def _descend(node: ReplicaNode, tokens: memoryview) -> tuple[ReplicaNode, int]:
    """The last node that `tokens` run into, and how many agree."""
    at, stop = 0, len(tokens)
    while at < stop:
        child = node.children.get(tokens[at])
        if child is None:
            break
        end = child.end
        wanted = tokens[at:end]
        if not child.edge.startswith(wanted):
            return child, at + first_difference(child.edge, wanted)
        if end > stop:
            return child, stop
        node, at = child, end
    return node, at
