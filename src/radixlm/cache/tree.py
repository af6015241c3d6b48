"""The radix tree: longest match, insert, path locks and pins, leaf-first eviction, ghosts."""

from __future__ import annotations

from collections.abc import Hashable, Iterator

import numpy as np

from radixlm.cache.checks import check_books
from radixlm.cache.eviction import EvictionPolicy, LeastRecentlyUsed
from radixlm.cache.ghosts import Ghosts
from radixlm.cache.node import (
    NO_SLOTS,
    SIGN_BYTE,
    TOKEN_BYTES,
    Inserted,
    Match,
    TreeNode,
    count_free,
    descend,
    walk,
)
from radixlm.cache.reuse import Reuse
from radixlm.cache.structure import Structure
from radixlm.cache.tree_stats import TreeStats
from radixlm.core.clock import Clock, WallClock
from radixlm.core.config import check_page_size
from radixlm.core.errors import CacheError, InvalidKeyError, StaleMatchError
from radixlm.core.events import EventSink
from radixlm.core.keys import Key, KeyLike, Slots, token_view


class RadixTree:
    """Token sequences, each token with a slot, every shared prefix stored once.

        insert [1 2 3 4] -> slots 10..13, then [1 2 9] -> slots 10 11 20:

        root ── [1 2] 10 11 ─┬─ [3 4] 12 13
                             └─ [9]   20

    It knows neither requests nor tensors nor who owns the slots. A node's children are found by
    their first page; a whole edge is compared by one memcmp, without copying the key.

    Locks run from a node up to its root: lock_ref(node) = locks that end there + its children's.
    So an unlocked node has only unlocked descendants, and `evict` can always work leaf-first.
    A pin is a lock that is counted apart.

    Evicted tokens stay as ghosts, within `ghost_budget`: not matched, but they explain misses, and
    KV that is computed again returns to the same node.

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
        ghost_budget: int = 0,
        clock: Clock | None = None,
        sink: EventSink | None = None,
        reuse: Reuse | None = None,
    ) -> None:
        check_page_size(page_size)
        if ghost_budget < 0:
            raise CacheError(f"a ghost budget is not negative, got {ghost_budget}")
        self.page_size = page_size
        self._ghosts = Ghosts(ghost_budget)
        policy, clock = policy or LeastRecentlyUsed(), clock or WallClock()
        self._shape = Structure(page_size, policy, self._ghosts, clock, sink, reuse)
        self._order = self._shape.order
        self._roots = self._shape.roots
        self._uses = 0

    @property
    def version(self) -> int:
        """Changes whenever a node, or what is resident of it, does."""
        return self._shape.version

    @property
    def shape(self) -> Structure:
        """Its nodes, for those who look at them."""
        return self._shape

    @property
    def uses(self) -> int:
        """The counter that `last_used` is taken from."""
        return self._uses

    @property
    def evictable_size(self) -> int:
        """Resident tokens that no lock holds."""
        return self._shape.evictable

    @property
    def protected_size(self) -> int:
        """Resident tokens under a lock."""
        return self._shape.protected

    @property
    def pinned_size(self) -> int:
        """Resident tokens under a pin; they are protected, too."""
        return self._shape.pinned

    @property
    def ghost_size(self) -> int:
        """Tokens that are remembered but not resident."""
        return self._ghosts.size

    @property
    def node_count(self) -> int:
        return self._shape.node_count

    @property
    def stats(self) -> TreeStats:
        """Totals so far; live, not a copy."""
        return self._shape.stats

    def match_prefix(self, key: KeyLike, namespace: Hashable = None) -> Match:
        """Find the longest resident prefix of `key` in whole pages. Changes nothing, not even
        recency. O(matched bytes + nodes on the path). Raises InvalidKeyError.
        """
        tokens = token_view(key)
        torn = len(tokens) % self.page_size
        if torn:
            tokens = tokens[:-torn]
        root = self._roots.get(namespace)
        if root is None:
            return Match(0, None, 0, namespace, self._shape.version)
        node, length = descend(root, tokens, self.page_size)
        offset = length - node.end + len(node.edge) // TOKEN_BYTES
        if offset > node.resident:
            length -= offset - node.resident
            offset = node.resident
        while not offset and node.parent is not None:
            node = node.parent
            length -= node.ghosts
            offset = node.resident
        return Match(length, node, offset, namespace, self._shape.version)

    def known(self, key: Key, match: Match) -> tuple[TreeNode | None, int]:
        """Where the longest prefix of `key` ends, ghosts included, from where its match ended."""
        node = match.node
        if node is None or match.offset < node.resident:
            return node, match.length
        whole = node.resident * TOKEN_BYTES == len(node.edge)
        top = node if whole or node.parent is None else node.parent
        return descend(top, key.data, self.page_size)

    def insert(
        self,
        key: KeyLike,
        slots: Slots | list[int],
        namespace: Hashable = None,
        start: TreeNode | None = None,
        priority: int = 0,
    ) -> Inserted:
        """Put the whole pages of `key` into the tree; what is resident keeps its own slots, what is
        a ghost becomes resident again.

        slots: one per token of the whole key. start: a node on the key's path that the caller
        holds; nothing above it is compared again, and the caller's lock moves from it down to
        where the key ends. A leaf that nobody but the caller holds grows in place.
        priority: raises that of the path, or of what gets locked. O(compared + new bytes).
        Raises InvalidKeyError, CacheError for a start that is not held; nothing has changed then.
        """
        tokens = token_view(key)
        values = np.asarray(slots, dtype=np.int32)
        if values.ndim != 1 or values.size != len(tokens):
            raise InvalidKeyError(f"{len(tokens)} tokens but slots of shape {values.shape}")
        if start is not None and start.held < 1:
            raise CacheError(f"node {start.id} is not locked, so nothing can start there")
        shape = self._shape
        torn = len(tokens) % self.page_size
        if torn:
            tokens = tokens[:-torn]
        stop = len(tokens)
        top = self._root(namespace) if start is None else start
        node, known = descend(top, tokens, self.page_size)
        edge = tokens[known:].tobytes()
        if not edge[SIGN_BYTE::TOKEN_BYTES].isascii():  # a sign bit: far cheaper than a minimum
            shape.settle(top)
            raise InvalidKeyError(f"token ids must not be negative, got {min(tokens)}")
        if known < node.end:
            node = shape.split(node, known - node.start)
        resident = len(node.edge) == node.resident * TOKEN_BYTES
        there = known if resident else shape.revive_path(node, values)
        end = node
        if edge:
            node = self._extend(end, end is start, edge, values[known:stop], priority)
        stats = shape.stats
        stats.inserts += 1
        stats.inserted_tokens += stop - there
        if start is None:
            self._touch(node, priority)
            if not node.lock_ref:
                shape.settle(node)
        elif start is not end:  # touched when it was locked, and again when it is let go
            self._move_lock(start, node, priority)
        return Inserted(there, node)

    def inc_lock_ref(self, match: Match, priority: int = 0) -> TreeNode:
        """Take hold of a match: split where it ends inside an edge, touch and lock its path.

        priority: raises that of the whole path. O(nodes on the path). Raises StaleMatchError when
        the tree has changed since.
        """
        node = self._end_of(match)
        shape = self._shape
        self._uses = uses = self._uses + 1
        age, depth = uses - node.last_used, -1  # the root holds nothing
        reuse, fresh = shape.reuse, 0
        at: TreeNode | None = node
        while at is not None:  # one walk for all that is due: it is what most requests cost
            if not at.lock_ref:
                fresh += at.resident
                if reuse is not None and at.resident:
                    reuse.leave(at.last_used, at.resident)
            at.lock_ref += 1
            at.hits += 1
            at.last_used = uses
            if at.priority < priority:
                at.priority = priority
            depth += 1
            at = at.parent
        shape.protect(node, fresh)
        stats = shape.stats
        stats.matches += 1
        if match.length:
            stats.matched_tokens += match.length
            stats.reuse_age.add(age)
            stats.match_depth.add(depth)
        return node

    def dec_lock_ref(self, node: TreeNode) -> None:
        """Let go of a path. O(nodes on the path). Raises CacheError if no lock ends there."""
        if node.held < 1:
            raise CacheError(f"node {node.id} is not locked")
        node.held -= 1
        shape = self._shape
        shape.touch(node)
        self._uses = uses = self._uses + 1
        freed = 0
        at: TreeNode | None = node
        while at is not None:
            parent = at.parent
            at.last_used = uses
            at.lock_ref = locks = at.lock_ref - 1
            if not locks:
                freed += at.resident
                if not at.live:
                    shape.settle(at)
            if parent is not None and len(at.children) == 1:
                shape.merge(at)
            at = parent
        shape.unprotect(freed, uses)

    def pin(self, match: Match) -> TreeNode:
        """Lock a match's path as a pin; no use and no hit is counted until it is unpinned."""
        node = self._end_of(match)
        self._shape.lock(node)
        at: TreeNode | None = node
        while at is not None:
            if not at.pins:
                self._shape.pinned += at.resident
            at.pins += 1
            at = at.parent
        return node

    def unpin(self, node: TreeNode) -> None:
        """Undo `pin`. Raises CacheError if the node is not pinned."""
        if node.pins < 1:
            raise CacheError(f"node {node.id} is not pinned")
        at: TreeNode | None = node
        while at is not None:
            at.pins -= 1
            if not at.pins:
                self._shape.pinned -= at.resident
            at = at.parent
        self.dec_lock_ref(node)

    def unpinned_on_path(self, match: Match) -> int:
        """How many of the matched tokens no pin holds yet."""
        return count_free(match, pins=True)

    def unlocked_on_path(self, match: Match) -> int:
        """How many of the matched tokens are evictable: locking the match takes them away."""
        return count_free(match, pins=False)

    def evict(self, n_tokens: int) -> Slots:
        """Evict at least `n_tokens` from unlocked leaves, in whole pages, and return their slots.

        The end of a leaf goes first; a parent left without resident children and locks is next in
        line by its own key. O(log leaves) per leaf. Raises CacheError, and changes nothing, when
        fewer are evictable.
        """
        if n_tokens > self._shape.evictable:
            raise CacheError(f"{n_tokens} tokens to evict, {self._shape.evictable} are evictable")
        freed = []
        while n_tokens > 0:
            leaf = self._order.pop()
            if leaf is None:
                raise CacheError(f"{n_tokens} tokens to evict, but no unlocked leaf is left")
            freed.append(self._shape.trim(leaf, n_tokens))
            n_tokens -= freed[-1].size
        if len(freed) == 1:
            return freed[0]
        return np.concatenate(freed) if freed else NO_SLOTS

    def set_policy(self, policy: EvictionPolicy) -> None:
        """Evict by another policy from now on. O(nodes), once."""
        self._order.rebuild(self.nodes(), policy)

    def forget_ghosts(self) -> None:
        """Drop every ghost. O(ghost nodes)."""
        budget, self._ghosts.budget = self._ghosts.budget, 0
        self._shape.forget_excess()
        self._ghosts.budget = budget

    def check(self) -> None:
        """Walk every invariant; raises InvariantError. O(nodes)."""
        check_books(self._shape)

    def nodes(self) -> Iterator[TreeNode]:
        """Every node, roots included, each before its children."""
        return self._shape.nodes()

    def roots(self) -> dict[Hashable, TreeNode]:
        """The root of every namespace; a copy of the dictionary."""
        return dict(self._roots)

    def usage_by_namespace(self) -> dict[Hashable, tuple[int, int]]:
        """(resident, ghost) tokens of each namespace. O(nodes)."""
        return {
            name: (sum(n.resident for n in walk(root)), sum(n.ghosts for n in walk(root)))
            for name, root in self._roots.items()
        }

    def _end_of(self, match: Match) -> TreeNode:
        """The node at whose end a match ends; made by a split where there is none."""
        shape = self._shape
        if match.version != shape.version:
            raise StaleMatchError(f"match of version {match.version}, tree is at {shape.version}")
        node = self._root(match.namespace) if match.node is None else match.node
        if match.offset < len(node.edge) // TOKEN_BYTES:
            node = shape.split(node, match.offset)
        return node

    def _extend(
        self, node: TreeNode, held: bool, edge: bytes, slots: Slots, priority: int
    ) -> TreeNode:
        """Add tokens below `node`, in place where nobody but the caller can be holding its end,
        unless the node has more priority than what is added. held: whether the caller does.
        """
        alone = not node.children and node.lock_ref == held
        if alone and node.priority <= priority and not node.is_root:
            self._shape.grow(node, edge, slots)
            return node
        return self._shape.add_leaf(node, edge, slots, priority, held=held)

    def _move_lock(self, held: TreeNode, deeper: TreeNode, priority: int) -> None:
        """Turn a lock on `held` into one on its descendant: only what is new gets locked."""
        self._shape.lock(deeper, held)
        at: TreeNode | None = deeper
        while at is not held and at is not None:
            if at.priority < priority:
                at.priority = priority
            at = at.parent
        held.held -= 1
        if len(held.children) == 1:
            self._shape.merge(held)

    def _touch(self, node: TreeNode, priority: int) -> None:
        self._uses = uses = self._uses + 1
        self._shape.touch(node)
        at: TreeNode | None = node
        while at is not None:
            parent = at.parent
            self._shape.use(at, uses)
            if at.priority < priority:
                at.priority = priority
            if at is not node and len(at.children) == 1:
                self._shape.merge(at)
            at = parent

    def _root(self, namespace: Hashable) -> TreeNode:
        return self._roots.get(namespace) or self._shape.add_root(namespace)
