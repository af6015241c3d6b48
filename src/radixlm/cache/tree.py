"""The radix tree: its nodes, the sums kept of them, and every way in which either changes."""

from __future__ import annotations

from collections.abc import Hashable, Iterator

import numpy as np

from radixlm.cache.eviction import EvictionOrder, EvictionPolicy, Ghosts, make_policy
from radixlm.cache.node import (
    NEVER,
    NO_SLOTS,
    NODE_WEIGHT,
    SIGN_BYTE,
    TOKEN_BYTES,
    TOKEN_WEIGHT,
    Inserted,
    Match,
    TreeNode,
    add_weight,
    descend,
    is_mergeable,
    joined,
    page_key,
    upward,
    walk,
)
from radixlm.cache.stored_parts import StoredParts
from radixlm.cache.tree_stats import Changes, Reuse, TreeStats
from radixlm.core.clock import Clock, WallClock
from radixlm.core.config import check_page_size
from radixlm.core.errors import CacheError, InvalidKeyError, StaleMatchError
from radixlm.core.keys import Key, KeyLike, Slots, token_view


class RadixTree:
    """Token sequences, each token with a slot, every shared prefix stored once.

        insert [1 2 3 4] -> slots 10..13, then [1 2 9] -> slots 10 11 20:

        root ── [1 2] 10 11 ─┬─ [3 4] 12 13
                             └─ [9]   20

    It knows neither requests nor tensors nor the owners of slots. A node's children are found by
    their first page; a whole edge is compared by one memcmp, without copying the key.

    Locks run from a node up to its root: lock_ref(node) = locks that end there + its children's. So
    an unlocked node has only unlocked descendants, and `evict` can always work leaf-first. A pin is
    a lock that is counted apart. Evicted tokens stay as ghosts, within `ghost_budget`: not matched,
    but they explain misses, and KV that is computed again returns to the same node.

    Only the transitions split, merge, add_leaf, grow, revive, trim and forget change its shape or
    what is resident. Each leaves the nodes and the sums consistent.

    version: grows with every change of shape or residency. uses: the counter that `last_used` is
    taken from. evictable_size, protected_size, pinned_size: resident tokens under no lock, under
    one or more, under a pin. roots: by namespace. order, ghosts: what is evicted, and forgotten,
    next. changes: records which nodes changed, while somebody watches. reuse: counts when tokens
    were last used, where that is wanted. parts: what is stored in host memory, on disk.

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
        reuse: Reuse | None = None,
    ) -> None:
        check_page_size(page_size)
        if ghost_budget < 0:
            raise CacheError(f"a ghost budget is not negative, got {ghost_budget}")
        self.page_size = page_size
        self.evictable_size = self.protected_size = self.pinned_size = self.version = self.uses = 0
        self.roots: dict[Hashable, TreeNode] = {}
        self.by_id: dict[int, TreeNode] = {}
        self.order: EvictionOrder[TreeNode] = EvictionOrder(
            policy or make_policy("lru"), self.by_id
        )
        self.ghosts = Ghosts(ghost_budget)
        self.stats = TreeStats()
        self.changes: Changes | None = None
        self.reuse = reuse
        self.parts: list[StoredParts] = []
        self.window_slots: Slots | None = None  # of WindowSlots, see there
        self._clock = clock or WallClock()
        self._next_id = 0

    @property
    def node_count(self) -> int:
        return len(self.by_id)

    @property
    def ghost_size(self) -> int:
        """Tokens that are remembered but not resident."""
        return self.ghosts.size

    def nodes(self) -> Iterator[TreeNode]:
        """Every node, roots included, each before its children."""
        return walk(*self.roots.values())

    # Matches

    def match_prefix(self, key: KeyLike, namespace: Hashable = None) -> Match:
        """Find the longest resident prefix of `key` in whole pages. Changes nothing, not even
        recency. O(matched bytes + nodes on the path). Raises InvalidKeyError.
        """
        tokens = token_view(key)
        torn = len(tokens) % self.page_size
        if torn:
            tokens = tokens[:-torn]
        root = self.roots.get(namespace)
        if root is None:
            return Match(0, None, 0, namespace, self.version)
        node, length = descend(root, tokens, self.page_size)
        offset = length - node.end + len(node.edge) // TOKEN_BYTES
        if offset > node.resident:
            length -= offset - node.resident
            offset = node.resident
        while not offset and node.parent is not None:
            node = node.parent
            length -= node.absent
            offset = node.resident
        return Match(length, node, offset, namespace, self.version)

    def known(self, key: Key, match: Match) -> tuple[TreeNode | None, int]:
        """Where the longest prefix of `key` ends, ghosts included, from where its match ended."""
        node = match.node
        if node is None or match.offset < node.resident:
            return node, match.length
        whole = node.resident * TOKEN_BYTES == len(node.edge)
        top = node if whole or node.parent is None else node.parent
        return descend(top, key.data, self.page_size)

    # Insertion

    def place(self, key: Key, namespace: Hashable) -> tuple[TreeNode | None, int]:
        """Where the longest known prefix of `key` ends, absent tokens included, and its length."""
        root = self.roots.get(namespace)
        return (None, 0) if root is None else descend(root, key.data, self.page_size)

    def node_of(self, key: Key, namespace: Hashable) -> TreeNode:
        """The node in which `key` (whole pages, not empty) ends. What the tree does not know of it
        is added as tokens that are not resident. O(nodes + new bytes).
        """
        node, known = descend(self._root(namespace), key.data, self.page_size)
        if known == key.size:
            return node
        if known < node.end:
            node = self.split(node, known - node.start)
        return self.add_absent(node, key[known:].tobytes())

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
        where the key ends. A leaf that only the caller holds grows in place.
        priority: raises that of the path, or of what gets locked. O(compared + new bytes).
        Raises InvalidKeyError, CacheError for a start that is not held; nothing has changed then.
        """
        tokens = token_view(key)
        values = np.asarray(slots, dtype=np.int32)
        if values.ndim != 1 or values.size != len(tokens):
            raise InvalidKeyError(f"{len(tokens)} tokens but slots of shape {values.shape}")
        if start is not None and start.held < 1:
            raise CacheError(f"node {start.id} is not locked, so nothing can start there")
        torn = len(tokens) % self.page_size
        if torn:
            tokens = tokens[:-torn]
        stop = len(tokens)
        top = self._root(namespace) if start is None else start
        node, known = descend(top, tokens, self.page_size)
        edge = tokens[known:].tobytes()
        if not edge[SIGN_BYTE::TOKEN_BYTES].isascii():  # a sign bit: far cheaper than a minimum
            self.settle(top)
            raise InvalidKeyError(f"token ids must not be negative, got {min(tokens)}")
        if known < node.end:
            node = self.split(node, known - node.start)
        resident = len(node.edge) == node.resident * TOKEN_BYTES
        there = known if resident else self.revive_path(node, values)
        end = node
        if edge:
            node = self._add(end, end is start, edge, values[known:stop], priority)
        self.stats.inserts += 1
        self.stats.inserted_tokens += stop - there
        if start is None:
            self._touch(node, priority)
            if not node.lock_ref:
                self.settle(node)
        elif start is not end:  # touched when it was locked, and again when it is let go
            self.move_lock(start, node, priority)
        return Inserted(there, node)

    def _add(
        self, node: TreeNode, held: bool, edge: bytes, slots: Slots, priority: int
    ) -> TreeNode:
        """Add tokens below `node`, in place if nobody else holds its end and priority allows it."""
        alone = not node.children and node.lock_ref == held
        if alone and node.priority <= priority and not node.is_root:
            self.grow(node, edge, slots)
            return node
        return self.add_leaf(node, edge, slots, priority, held=held)

    # Locks

    def inc_lock_ref(self, match: Match, priority: int = 0) -> TreeNode:
        """Take hold of a match: split where it ends inside an edge, touch and lock its path, raise
        its priority. O(nodes on the path). Raises StaleMatchError when the tree has changed since.
        """
        node = self._end_of(match)
        self.uses = uses = self.uses + 1
        age, depth = uses - node.last_used, -1  # the root holds nothing
        reuse, fresh, learned = self.reuse, 0, self.order.learned
        if learned is not None:
            learned.now = uses
            learned.found(node)
        at: TreeNode | None = node
        while at is not None:  # one walk for all that is due: it is what most requests cost
            if not at.lock_ref:
                fresh += at.resident
                if reuse is not None and at.resident:
                    reuse.leave(at.last_used, at.resident)
            if learned is not None:
                learned.asked(at, 0 if at.lock_ref else at.resident)
            at.lock_ref += 1
            at.hits += 1
            at.last_used = uses
            if at.priority < priority:
                at.priority = priority
            depth += 1
            at = at.parent
        self._protect(node, fresh)
        stats = self.stats
        stats.matches += 1
        if match.length:
            stats.matched_tokens += match.length
            stats.reuse_age.add(age)
            stats.match_depth.add(depth)
        return node

    def hold(self, match: Match) -> TreeNode:
        """Lock a match's path without counting a use. Raises StaleMatchError."""
        node = self._end_of(match)
        self.lock(node)
        return node

    def dec_lock_ref(self, node: TreeNode, *, used: bool = True, hint: int = 0) -> None:
        """Let go of a path, `used` until now or not. O(nodes). Raises CacheError if not held."""
        if node.held < 1:
            raise CacheError(f"node {node.id} is not locked")
        node.held -= 1
        if self.changes is not None:
            self.changes.touch(node)
        self.uses += used
        freed, learned, length = 0, self.order.learned if used else None, node.end
        at: TreeNode | None = node
        while at is not None:
            parent = at.parent
            at.last_used = self.uses if used else at.last_used
            at.lock_ref = locks = at.lock_ref - 1
            if not locks:
                freed += at.resident
                if learned is not None:
                    learned.released(at, length, hint)
                if self.reuse is not None:
                    self.reuse.enter(at.last_used, at.resident)
                if not at.live:
                    self.settle(at)
            if parent is not None and len(at.children) == 1:
                self.merge(at)
            at = parent
        self.protected_size -= freed
        self.evictable_size += freed

    def pin(self, match: Match) -> TreeNode:
        """Lock a match's path; no use is counted until it is unpinned. Raises StaleMatchError."""
        node = self.hold(match)
        for at in upward(node):
            if not at.pins:
                self.pinned_size += at.resident
            at.pins += 1
        return node

    def unpin(self, node: TreeNode) -> None:
        """Undo `pin`. Raises CacheError if the node is not pinned."""
        if node.pins < 1:
            raise CacheError(f"node {node.id} is not pinned")
        for at in upward(node):
            at.pins -= 1
            if not at.pins:
                self.pinned_size -= at.resident
        self.dec_lock_ref(node)

    def lock(self, node: TreeNode, top: TreeNode | None = None) -> None:
        """Add a lock to a node and all above it, up to below `top`."""
        fresh = 0
        at: TreeNode | None = node
        while at is not top and at is not None:
            if not at.lock_ref:
                fresh += at.resident
                if self.reuse is not None:
                    self.reuse.leave(at.last_used, at.resident)
            at.lock_ref += 1
            at = at.parent
        self._protect(node, fresh)

    def move_lock(self, held: TreeNode, deeper: TreeNode, priority: int) -> None:
        """Turn a lock on `held` into one on its descendant: only what is new gets locked."""
        self.lock(deeper, held)
        for at in upward(deeper):
            if at is held:
                break
            at.priority = max(at.priority, priority)
        held.held -= 1
        if len(held.children) == 1:
            self.merge(held)

    def _protect(self, node: TreeNode, n_tokens: int) -> None:
        """A lock ends at a node now; `n_tokens` of its path had none before."""
        node.held += 1
        self.evictable_size -= n_tokens
        self.protected_size += n_tokens
        if self.changes is not None:
            self.changes.touch(node)

    def _touch(self, node: TreeNode, priority: int) -> None:
        """Count a use of a path that is not locked by it."""
        self.uses = uses = self.uses + 1
        if self.changes is not None:
            self.changes.touch(node)
        at: TreeNode | None = node
        while at is not None:
            parent = at.parent
            if self.reuse is not None and not at.lock_ref:
                self.reuse.leave(at.last_used, len(at))
                self.reuse.enter(uses, len(at))
            at.last_used = uses
            if at.priority < priority:
                at.priority = priority
            if at is not node and len(at.children) == 1:
                self.merge(at)
            at = parent

    def _end_of(self, match: Match) -> TreeNode:
        """The node at whose end a match ends; made by a split where there is none."""
        if match.version != self.version:
            raise StaleMatchError(f"match of version {match.version}, tree is at {self.version}")
        node = self._root(match.namespace) if match.node is None else match.node
        if match.offset < len(node.edge) // TOKEN_BYTES:
            node = self.split(node, match.offset)
        return node

    # Eviction

    def evict(self, n_tokens: int) -> Slots:
        """Evict at least `n_tokens` from unlocked leaves, in whole pages, and return their slots.

        The end of a leaf goes first; a parent left without resident children and locks is next by
        its own key. O(log leaves) per leaf. Raises CacheError, changes nothing, when fewer are
        evictable.
        """
        if n_tokens > self.evictable_size:
            raise CacheError(f"{n_tokens} tokens to evict, {self.evictable_size} are evictable")
        freed, learned = [], self.order.learned
        while n_tokens > 0:
            leaf = self.order.pop()
            if leaf is None:
                raise CacheError(f"{n_tokens} tokens to evict, but no unlocked leaf is left")
            freed.append(self.trim(leaf, learned.most(leaf, n_tokens) if learned else n_tokens))
            n_tokens -= freed[-1].size
        return joined(freed)

    def discard(self, match: Match, keep: int) -> Slots:
        """Evict what a match found after its first `keep` tokens (whole pages), and all below, as
        far as no lock holds it; returns the slots. O(nodes below).
        """
        if match.node is None or match.length <= keep:
            return NO_SLOTS
        top = match.node
        while top.parent is not None and top.start > keep:
            top = top.parent
        freed = []
        below: list[TreeNode] = list(walk(top))
        for node in reversed(below):  # children first
            spared = max(keep - node.start, 0)
            if node.resident > spared and not node.live and not node.lock_ref:
                freed.append(self.trim(node, node.resident - spared))
        return joined(freed)

    def forget_ghosts(self, budget: int = 0) -> None:
        """Forget the longest evicted ghosts until the rest is within a budget of tokens."""
        while (node := self.ghosts.over(budget)) is not None:
            self.forget(node)

    def settle(self, node: TreeNode) -> None:
        """Put a free node in its place: a leaf into the eviction order, an empty root out."""
        if node.lock_ref or node.live:
            return
        if node.resident:
            if self.order.offer(node):
                self._tidy_order()
        elif node.is_root and not node.children:
            del self.roots[node.namespace]
            self.stats.leaves -= 1
            self._leave(node)

    def _tidy_order(self) -> None:
        """Drop the entries that smaller keys and joined nodes have left, when they are many."""
        if self.order.is_bloated(self.node_count):
            self.order.rebuild(self.nodes())

    # Transitions

    def split(self, node: TreeNode, offset: int) -> TreeNode:
        """Cut `node` after `offset` tokens; return the upper part. The lower one keeps its
        identity, its age and its place in the eviction order.
        """
        parent = node.parent
        if parent is None or not 0 < offset < len(node):
            raise CacheError(f"node {node.id} of {len(node)} tokens can not be cut at {offset}")
        upper = self._enter(node.cut(offset, self._new_id(), self.page_size))
        add_weight(parent, NODE_WEIGHT)
        for parts in self.parts:
            parts.split(node, upper)
        self._changed(node)
        self.ghosts.update(node)
        self.ghosts.update(upper)
        self.settle(upper)
        self.stats.splits += 1
        return upper

    def merge(self, node: TreeNode) -> None:
        """Join `node` with its only child when nothing tells them apart: no lease and no pin ends
        between them, last used together, the same priority, no resident token after a ghost. The
        child keeps its identity, since that is what leases below hold.
        """
        parent = node.parent
        if parent is None or not is_mergeable(node):
            return
        if any(parts.holds(node) for parts in self.parts):
            return
        [child] = node.children.values()
        child.join(node)
        parent.children[page_key(child.edge, self.page_size)] = child
        add_weight(parent, -NODE_WEIGHT)
        self._leave(node)
        self._changed(child)
        self.ghosts.forget(node)
        self.ghosts.update(child)
        for parts in self.parts:
            parts.merged(node, child)
        self.settle(child)
        self._tidy_order()
        self.stats.merges += 1

    def add_leaf(
        self, parent: TreeNode, edge: bytes, slots: Slots, priority: int, *, held: bool
    ) -> TreeNode:
        """Hang a new leaf below a resident end. held: the caller's lock moves down to it."""
        if parent.children:
            self.stats.leaves += 1
        leaf = self._enter(TreeNode(self._new_id(), edge, slots.copy(), parent))
        parent.live += 1
        leaf.last_used = parent.last_used
        leaf.priority = priority
        if self.order.learned is not None:
            self.order.learned.made(leaf, parent)
        add_weight(parent, leaf.weight)
        if held:
            parent.held -= 1
            leaf.held = leaf.lock_ref = 1
        self._gain(leaf, leaf.resident)
        return leaf

    def add_absent(self, parent: TreeNode, edge: bytes) -> TreeNode:
        """Hang a new leaf below of which nothing is resident, nor was: it is stored, or will be."""
        if parent.children:
            self.stats.leaves += 1
        leaf = self._enter(TreeNode(self._new_id(), edge, NO_SLOTS, parent))
        leaf.last_used = parent.last_used
        leaf.evicted_at = NEVER
        add_weight(parent, leaf.weight)
        if self.reuse is not None:
            self.reuse.enter(leaf.last_used, len(leaf))
        self.ghosts.update(leaf)
        return leaf

    def stored_changed(self, node: TreeNode) -> None:
        """More or less of a node is stored now. For StoredParts."""
        self.ghosts.update(node, fresh=True)
        if self.changes is not None:
            self.changes.touch(node)

    def grow(self, leaf: TreeNode, edge: bytes, slots: Slots) -> None:
        """Add resident tokens to the end of a resident node without children."""
        leaf.set_edge(leaf.edge + edge, np.concatenate((leaf.slots, slots)))
        leaf.end += slots.size
        add_weight(leaf, slots.size * TOKEN_WEIGHT)
        self._gain(leaf, slots.size)
        self._changed(leaf)

    def revive(self, node: TreeNode, slots: Slots) -> None:
        """Give slots to all ghost tokens of a node whose parent is resident to its end."""
        parent = node.parent
        if parent is None or node.lock_ref:
            raise CacheError(f"node {node.id} can hold no ghosts")
        if not node.resident:
            parent.live += 1
        if self.order.learned is not None:
            self.order.learned.now = self.uses
            self.order.learned.asked(node, slots.size)
        node.set_slots(np.concatenate((node.slots, slots)))
        self.evictable_size += slots.size
        self.stats.revived_tokens += slots.size
        self._changed(node)
        self.ghosts.update(node)

    def revive_path(self, node: TreeNode, slots: Slots) -> int:
        """Give all tokens down to `node` their `slots`; return how many were resident before."""
        chain = [node]
        while (parent := chain[-1].parent) is not None and parent.absent:
            chain.append(parent)
        there = chain[-1].start + chain[-1].resident
        for ghost in reversed(chain):
            self.revive(ghost, slots[ghost.start + ghost.resident : ghost.end].copy())
        return there

    def trim(self, leaf: TreeNode, n_tokens: int) -> Slots:
        """Evict up to `n_tokens`, in pages, off the end of a free leaf, as ghosts; return slots."""
        pages = -(-n_tokens // self.page_size)
        keep = max(leaf.resident - pages * self.page_size, 0)
        freed = leaf.slots[keep:]
        leaf.set_slots(leaf.slots[:keep].copy() if keep else NO_SLOTS)
        leaf.evicted_at = self._clock.now()
        self.evictable_size -= freed.size
        self._changed(leaf)
        self.stats.evictions += 1
        self.stats.evicted_tokens += freed.size
        self.stats.hits_at_eviction.add(leaf.hits)
        if keep:
            self.settle(leaf)
        elif leaf.parent is not None:
            leaf.parent.live -= 1
            self.settle(leaf.parent)
        self.ghosts.update(leaf, fresh=True)
        self.forget_ghosts(self.ghosts.budget)
        return freed

    def forget(self, node: TreeNode) -> None:
        """Give up a node's ghost tokens and everything below: ghosts as well."""
        parent = node.parent
        if parent is None:
            raise CacheError(f"node {node.id} is not in the tree")
        below = list(node.children.values())
        node.children.clear()
        self.stats.leaves += bool(below)
        for ghost in walk(*below):
            self._drop(ghost)
        kept = node.kept
        self._changed(node if kept else parent)
        left = kept * TOKEN_WEIGHT + NODE_WEIGHT if kept else 0
        add_weight(node, left - node.weight)
        if kept:
            self.stats.forgotten_tokens += node.ghosts
            if self.order.learned is not None:
                self.order.learned.forgotten(node, node.ghosts)
            if self.reuse is not None:
                self.reuse.leave(node.last_used, node.ghosts)
            node.end -= node.ghosts
            node.edge = node.edge[: kept * TOKEN_BYTES]
            self.ghosts.update(node)
            return
        del parent.children[page_key(node.edge, self.page_size)]
        self.stats.leaves += not parent.children
        self._drop(node)
        self.settle(parent)
        self.merge(parent)

    def _drop(self, ghost: TreeNode) -> None:
        """Take a node out of which nothing is resident or stored."""
        self.stats.forgotten_tokens += len(ghost)
        if self.order.learned is not None:
            self.order.learned.forgotten(ghost, len(ghost))
        self.stats.leaves -= not ghost.children
        if self.reuse is not None:
            self.reuse.leave(ghost.last_used, len(ghost))
        self.ghosts.forget(ghost)
        ghost.parent = None
        self._leave(ghost)

    # Books

    def _root(self, namespace: Hashable) -> TreeNode:
        """The root of a namespace, made where there is none."""
        root = self.roots.get(namespace)
        if root is None:
            root = self._enter(TreeNode(self._new_id(), b"", NO_SLOTS, None, namespace))
            self.roots[namespace] = root
            self.stats.leaves += 1
        return root

    def _new_id(self) -> int:
        self._next_id += 1
        return self._next_id

    def _enter(self, node: TreeNode) -> TreeNode:
        """A new node; its parent has it in place of a child that begins with the same page."""
        self.by_id[node.id] = node
        if node.parent is not None:
            node.parent.children[page_key(node.edge, self.page_size)] = node
        self._changed(node)
        return node

    def _leave(self, node: TreeNode) -> None:
        del self.by_id[node.id]
        self.version += 1
        if self.changes is not None:
            self.changes.remove(node)

    def _changed(self, node: TreeNode) -> None:
        """The shape of a node, or what of it is resident, has changed."""
        self.version += 1
        if self.changes is not None:
            self.changes.touch(node)

    def _gain(self, node: TreeNode, n_tokens: int) -> None:
        """Count tokens that are new in a node."""
        if node.lock_ref:
            self.protected_size += n_tokens
            return
        self.evictable_size += n_tokens
        if self.reuse is not None:
            self.reuse.enter(node.last_used, n_tokens)
