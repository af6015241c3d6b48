"""The radix tree: longest match, insert with split, path locks, leaf-first eviction."""

from __future__ import annotations

from collections.abc import Hashable, Iterator

import numpy as np

from radixlm.cache.checks import Counts, check_nodes, require
from radixlm.cache.eviction import EvictionOrder, EvictionPolicy, LeastRecentlyUsed
from radixlm.cache.node import (
    NO_SLOTS,
    TOKEN_BYTES,
    Inserted,
    Match,
    RootNode,
    TreeNode,
)
from radixlm.core.config import check_page_size
from radixlm.core.errors import CacheError, InvalidKeyError, StaleMatchError
from radixlm.core.events import Event, EventSink, Evicted, Split
from radixlm.core.keys import Key, KeyLike, Slots, as_key


class RadixTree:
    """Token sequences, each token with a slot, every shared prefix stored once.

        insert [1 2 3 4] -> slots 10..13, then [1 2 9] -> slots 10 11 20:

        root ── [1 2] 10 11 ─┬─ [3 4] 12 13
                             └─ [9]   20

    It knows neither requests nor tensors nor who owns the slots. A node's children are found by
    their first page; a whole edge is compared by one memcmp, without copying the key.

    Locks run from a node up to its root: lock_ref(node) = locks that end there + its children's.
    So an unlocked node has only unlocked descendants, and `evict` can always work leaf-first.

    >>> tree = RadixTree()
    >>> _ = tree.insert([1, 2, 3, 4], [10, 11, 12, 13])
    >>> tree.insert([1, 2, 9], [90, 91, 92]).already_there
    2
    >>> tree.match_prefix([1, 2, 9, 9]).slots().tolist()
    [10, 11, 92]
    """

    def __init__(
        self,
        page_size: int = 1,
        *,
        policy: EvictionPolicy | None = None,
        sink: EventSink | None = None,
    ) -> None:
        check_page_size(page_size)
        self.page_size = page_size
        self.version = 0
        self.evictable_size = 0
        self.protected_size = 0
        self.node_count = 0
        self._page_bytes = page_size * TOKEN_BYTES
        self._roots: dict[Hashable, RootNode] = {}
        self._order = EvictionOrder(policy or LeastRecentlyUsed())
        self._sink = sink
        self._next_id = 0
        self._uses = 0

    def match_prefix(self, key: KeyLike, namespace: Hashable = None) -> Match:
        """Find the longest prefix of `key` in whole pages. Changes nothing, not even recency.

        O(matched bytes + nodes on the path). Raises InvalidKeyError.
        """
        key = as_key(key)
        root = self._roots.get(namespace)
        if root is None:
            return Match(0, None, 0, namespace, self.version)
        node, offset = self._descend(root, key.data.cast("B"), self._floor(key.size))
        return Match(node.end - len(node) + offset, node, offset, namespace, self.version)

    def insert(
        self,
        key: KeyLike,
        slots: Slots | list[int],
        namespace: Hashable = None,
        start: TreeNode | None = None,
    ) -> Inserted:
        """Put the whole pages of `key` into the tree; what is there keeps its own slots.

        slots: one per token of the whole key. start: a node on the key's path that the caller
        holds locked; nothing above it is compared again. A leaf that nobody but the caller holds
        grows in place. O(compared + new bytes). Raises InvalidKeyError.
        """
        key = as_key(key)
        values = np.asarray(slots, dtype=np.int32)
        if values.shape != key.shape:
            raise InvalidKeyError(f"{key.size} tokens but slots of shape {values.shape}")
        stop = self._floor(key.size)
        top = start or self._roots.get(namespace) or self._add_root(namespace)
        node, offset = self._descend(top, key.data.cast("B"), stop)
        if offset < len(node):
            node = self._split(node, offset)
        there = node.end
        if there < stop:
            new_edge, new_slots = key[there:stop].tobytes(), values[there:stop].copy()
            holders = 1 if node is start else 0
            if node.parent and not node.children and node.lock_ref == holders:
                self._grow(node, new_edge, new_slots)
            else:
                node = self._add_leaf(node, new_edge, new_slots)
        self._touch(node)
        if isinstance(node, RootNode):
            self._settle(node)
        return Inserted(there, node)

    def inc_lock_ref(self, match: Match) -> TreeNode:
        """Take hold of a match: split where it ends inside an edge, touch and lock its path.

        O(nodes on the path). Raises StaleMatchError when the tree has changed since.
        """
        if match.version != self.version:
            raise StaleMatchError(f"match of version {match.version}, tree is at {self.version}")
        node = match.node or self._roots.get(match.namespace) or self._add_root(match.namespace)
        if match.offset < len(node):
            node = self._split(node, match.offset)
        self._lock(node, None)
        at: TreeNode | None = node
        while at is not None:
            at.hits += 1
            at = at.parent
        self._touch(node)
        return node

    def move_lock(self, held: TreeNode, deeper: TreeNode) -> None:
        """Turn a lock on `held` into one on its descendant `deeper`. O(nodes between)."""
        self._lock(deeper, held)

    def dec_lock_ref(self, node: TreeNode) -> None:
        """Let go of a path. O(nodes on the path). Raises CacheError if it is not locked."""
        if node.lock_ref < 1:
            raise CacheError(f"node {node.id} is not locked")
        self._touch(node)
        at: TreeNode | None = node
        while at is not None:
            at.lock_ref -= 1
            if at.lock_ref == 0:
                self.protected_size -= len(at)
                self.evictable_size += len(at)
                self._settle(at)
            at = at.parent

    def evict(self, n_tokens: int) -> Slots:
        """Cut at least `n_tokens` from unlocked leaves, in whole pages, and return their slots.

        The end of a leaf goes first; a parent left without children and locks is next in line by
        its own age. O(log leaves) per leaf. Raises CacheError, and changes nothing, when fewer
        are evictable.
        """
        if n_tokens > self.evictable_size:
            raise CacheError(f"{n_tokens} tokens to evict, {self.evictable_size} are evictable")
        freed = []
        while n_tokens > 0:
            leaf = self._order.pop()
            if leaf is None:
                raise CacheError(f"{n_tokens} tokens to evict, but no unlocked leaf is left")
            freed.append(self._trim(leaf, n_tokens))
            n_tokens -= freed[-1].size
        return np.concatenate(freed) if freed else NO_SLOTS

    def unlocked_on_path(self, match: Match) -> int:
        """How many of the matched tokens are evictable: locking the match takes them away."""
        if match.node is None or match.node.lock_ref:
            return 0
        unlocked, at = match.offset, match.node.parent
        while at is not None and not at.lock_ref:
            unlocked += len(at)
            at = at.parent
        return unlocked

    def check(self) -> None:
        """Walk every invariant; raises InvariantError. O(nodes)."""
        counts = check_nodes(self.nodes(), self.page_size)
        kept = Counts(self.node_count, self.protected_size, self.evictable_size)
        require(counts == kept, f"the tree holds {counts}, its books say {kept}")

    def nodes(self) -> Iterator[TreeNode]:
        """Every node, roots included, each before its children."""
        stack: list[TreeNode] = list(self._roots.values())
        while stack:
            node = stack.pop()
            yield node
            stack.extend(node.children.values())

    def _descend(self, node: TreeNode, key: memoryview, stop: int) -> tuple[TreeNode, int]:
        """Walk down from `node` while the key agrees; return the last node and the tokens of it
        that match (all of them, unless it ends inside that node's edge).
        """
        at, end, width = node.end * TOKEN_BYTES, stop * TOKEN_BYTES, self._page_bytes
        while at < end:
            child = node.children.get(bytes(key[at : at + width]))
            if child is None:
                break
            edge = child.edge
            span = min(len(edge), end - at)
            if not edge.startswith(key[at : at + span]):
                same = _first_difference(edge, key[at : at + span])
                return child, self._floor(same)
            if span < len(edge):
                return child, span // TOKEN_BYTES
            node = child
            at += span
        return node, len(node)

    def _split(self, node: TreeNode, offset: int) -> TreeNode:
        """Cut `node` after `offset` tokens; return the new upper part. The lower one keeps its
        identity, its age and its place in the eviction order.
        """
        parent = node.parent
        if parent is None or not 0 < offset < len(node):
            raise CacheError(f"node {node.id} of {len(node)} tokens can not be cut at {offset}")
        cut = offset * TOKEN_BYTES
        upper = self._new_node(node.edge[:cut], node.slots[:offset].copy(), parent)
        upper.lock_ref, upper.last_used, upper.hits = node.lock_ref, node.last_used, node.hits
        parent.children[self._page(node.edge)] = upper
        node.set_edge(node.edge[cut:], node.slots[offset:].copy())
        node.parent = upper
        upper.children[self._page(node.edge)] = node
        self._emit(Split(node.id, upper.id, offset))
        return upper

    def _add_leaf(self, parent: TreeNode, edge: bytes, slots: Slots) -> TreeNode:
        leaf = self._new_node(edge, slots, parent)
        parent.children[self._page(edge)] = leaf
        self.evictable_size += len(leaf)
        self._settle(leaf)
        return leaf

    def _grow(self, leaf: TreeNode, edge: bytes, slots: Slots) -> None:
        leaf.set_edge(leaf.edge + edge, np.concatenate((leaf.slots, slots)))
        leaf.end += slots.size
        self.version += 1
        if leaf.lock_ref:
            self.protected_size += slots.size
        else:
            self.evictable_size += slots.size

    def _trim(self, leaf: TreeNode, n_tokens: int) -> Slots:
        """Cut up to `n_tokens`, rounded up to a page, from the end of an unlocked leaf."""
        pages = -(-n_tokens // self.page_size)
        keep = max(len(leaf) - pages * self.page_size, 0)
        freed = leaf.slots[keep:]
        self.evictable_size -= freed.size
        self.version += 1
        leaf.end -= freed.size
        if keep:
            leaf.set_edge(leaf.edge[: keep * TOKEN_BYTES], leaf.slots[:keep].copy())
            self._settle(leaf)
        else:
            self._remove(leaf)
        self._emit(Evicted(leaf.id, freed.size, gone=not keep))
        return freed

    def _remove(self, leaf: TreeNode) -> None:
        parent = leaf.parent
        if parent is None:
            raise CacheError(f"node {leaf.id} is a root")
        del parent.children[self._page(leaf.edge)]
        leaf.parent = None
        self.node_count -= 1
        self._settle(parent)

    def _settle(self, node: TreeNode) -> None:
        """What becomes of a node that nobody holds and that has no children: a leaf waits for
        eviction, an empty root goes, so that namespaces do not pile up.
        """
        if node.lock_ref or node.children:
            return
        if isinstance(node, RootNode):
            del self._roots[node.namespace]
            self.node_count -= 1
            self.version += 1
        else:
            self._order.offer(node)

    def _lock(self, node: TreeNode, held: TreeNode | None) -> None:
        """Add a lock to `node` and everything above it, up to but without `held`."""
        at: TreeNode | None = node
        while at is not held and at is not None:
            if at.lock_ref == 0:
                self.evictable_size -= len(at)
                self.protected_size += len(at)
            at.lock_ref += 1
            at = at.parent

    def _touch(self, node: TreeNode) -> None:
        self._uses += 1
        at: TreeNode | None = node
        while at is not None:
            at.last_used = self._uses
            at = at.parent

    def _add_root(self, namespace: Hashable) -> RootNode:
        root = RootNode(self._take_id(), namespace)
        self._roots[namespace] = root
        return root

    def _new_node(self, edge: bytes, slots: Slots, parent: TreeNode) -> TreeNode:
        return TreeNode(self._take_id(), edge, slots, parent)

    def _take_id(self) -> int:
        self._next_id += 1
        self.version += 1
        self.node_count += 1
        return self._next_id

    def _floor(self, n_tokens: int) -> int:
        return n_tokens - n_tokens % self.page_size

    def _page(self, edge: bytes) -> bytes:
        return edge[: self._page_bytes]

    def _emit(self, event: Event) -> None:
        if self._sink is not None:
            self._sink(event)


def _first_difference(edge: bytes, key: memoryview) -> int:
    """Tokens that `edge` and `key` share, when they are known to differ."""
    ours: Key = np.frombuffer(edge, dtype=np.int32, count=len(key) // TOKEN_BYTES)
    return int(np.argmax(ours != np.frombuffer(key, dtype=np.int32)))
