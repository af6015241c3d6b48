"""The radix tree: its nodes, the sums kept of them, and all transitions of either."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from itertools import count

import numpy as np

from radixlm.cache.radix.eviction import ByKey, EvictionOrder, EvictionPolicy, Ghosts, last_used
from radixlm.cache.radix.node import (
    NEVER,
    NO_SLOTS,
    SIGN_BYTE,
    TOKEN_BYTES,
    Inserted,
    Match,
    TreeNode,
    add_weight,
    descend,
    is_mergeable,
    joined,
    page_key,
    walk,
)
from radixlm.cache.radix.observer import TreeObserver
from radixlm.cache.radix.paths import absent_path, add_pins, free_after, lock_path
from radixlm.cache.radix.tree_stats import TreeStats
from radixlm.core.clock import Clock, WallClock
from radixlm.core.config import check_page_size
from radixlm.core.errors import CacheError, InvalidKeyError, StaleMatchError
from radixlm.core.keys import Key, KeyLike, Slots, as_key, token_view


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
    what is resident. Each leaves the nodes and the sums consistent; observers hear of each.

    version: grows whenever matches may end elsewhere. uses: the counter that `last_used` is taken
    from. evictable_size, protected_size, pinned_size: resident tokens under no lock, under one or
    more, under a pin. roots: by namespace. order, ghosts: what is evicted, and forgotten, next.

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
    ) -> None:
        check_page_size(page_size)
        self.page_size = page_size
        self.evictable_size = self.protected_size = self.pinned_size = self.version = self.uses = 0
        self.roots: dict[Hashable, TreeNode] = {}
        self.by_id: dict[int, TreeNode] = {}
        self.order = EvictionOrder[TreeNode](policy or ByKey("lru", last_used), self.by_id)
        self.observers: tuple[TreeObserver, ...] = ()
        if self.order.chooser is not None:
            self.watch(self.order.chooser)
        self.ghosts = Ghosts(ghost_budget)
        self.stats = TreeStats()
        self._clock = clock or WallClock()
        self._ids = count(1)

    @property
    def node_count(self) -> int:
        return len(self.by_id)

    def nodes(self) -> Iterator[TreeNode]:
        """Every node, roots included, each before its children."""
        return walk(*self.roots.values())

    def watch(self, observer: TreeObserver) -> None:
        """Let an observer hear of all transitions from now on."""
        self.observers = (*self.observers, observer)

    def unwatch(self, observer: TreeObserver) -> None:
        """Let an observer hear of nothing more."""
        self.observers = tuple([each for each in self.observers if each is not observer])

    def set_policy(self, policy: EvictionPolicy) -> None:
        """Evict by another policy from now on. O(nodes). Changes nothing when the policy raises."""
        before = self.order.chooser
        self.order.rebuild(self.nodes(), policy)
        if before is not None:
            self.unwatch(before)
        if self.order.chooser is not None:
            self.watch(self.order.chooser)

    # Matches and insertion

    def match_prefix(self, key: KeyLike, namespace: Hashable = None) -> Match:
        """Find the longest resident prefix of `key` in whole pages. Changes nothing, not even
        recency. O(matched bytes + nodes on the path). Raises InvalidKeyError.
        """
        tokens = token_view(key)
        if torn := len(tokens) % self.page_size:
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

    def matches_changed(self, slots: Slots) -> None:
        """The same as `changed` of all nodes with tokens in these slots. O(resident tokens)."""
        self.version += 1
        for each in self.observers:
            each.matches_changed(slots, self.by_id.values())

    def place(self, key: Key, namespace: Hashable) -> tuple[TreeNode | None, int]:
        """The end of the longest known prefix of `key`, absent tokens included, and its length."""
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
        return self.add_leaf(node, key[known:].tobytes(), NO_SLOTS, 0, held=False)

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
        where the key ends. A leaf that only the caller holds grows in place, unless something ends
        there. priority: raises that of the path below. O(compared + new bytes). Raises
        InvalidKeyError, CacheError for a start that is not held; nothing has changed then.
        """
        tokens = as_key(key).data if start is None else token_view(key)
        values = np.asarray(slots, dtype=np.int32)
        if values.ndim != 1 or values.size != len(tokens):
            raise InvalidKeyError(f"{len(tokens)} tokens but slots of shape {values.shape}")
        if start is not None and start.held < 1:
            raise CacheError(f"node {start.id} is not locked, so nothing can start there")
        if torn := len(tokens) % self.page_size:
            tokens = tokens[:-torn]
        stop = len(tokens)
        top = self._root(namespace) if start is None else start
        node, known = descend(top, tokens, self.page_size)
        edge = tokens[known:].tobytes()
        if not edge[SIGN_BYTE::TOKEN_BYTES].isascii():  # a sign bit: far cheaper than a minimum
            raise InvalidKeyError(f"token ids must not be negative, got {min(tokens)}")
        if start is None:  # held as long as this takes
            self.lock(top)
        if known < node.end:
            node = self.split(node, known - node.start)
        resident = len(node.edge) == node.resident * TOKEN_BYTES
        there = known if resident else self.revive_path(node, values)
        end = node
        if edge:
            alone = not end.children and end.lock_ref == (end is top) and not end.is_root
            if alone and end.priority <= priority and not self._keeps_end(end):
                self.grow(end, edge, values[known:stop])
            else:
                node = self.add_leaf(end, edge, values[known:stop], priority, held=end is top)
        self.stats.inserts += 1
        self.stats.inserted_tokens += stop - there
        if top is not end:  # touched when it was locked, and again when it is let go
            self.move_lock(top, node, priority)
        if start is None:
            node.held += 1  # so that it stays a node
            self.dec_lock_ref(node)
            node.held -= 1
        return Inserted(there, node)

    # Locks

    def inc_lock_ref(self, match: Match, priority: int = 0) -> TreeNode:
        """Take hold of a match: split where it ends inside an edge, touch and lock its path, raise
        its priority. O(nodes on the path). Raises StaleMatchError when the tree has changed since.
        """
        node = self._end_of(match)
        self.uses = uses = self.uses + 1
        for each in self.observers:
            each.asked(node, uses)
        age, depth, fresh = uses - node.last_used, -1, 0  # the root holds nothing
        at: TreeNode | None = node
        while at is not None:  # one walk for all that is due: it is what most requests cost
            if not at.lock_ref:
                fresh += at.resident
            at.lock_ref += 1
            at.hits += 1
            at.last_used = uses
            if at.priority < priority:
                at.priority = priority
            depth += 1
            at = at.parent
        self._protect(node, fresh)
        self.stats.matched(match.length, age, depth)
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
        self.uses += used
        for each in self.observers:
            each.unlocking(node, self.uses if used else None, hint)
        freed = 0
        at: TreeNode | None = node
        while at is not None:
            parent = at.parent
            if used:
                at.last_used = self.uses
            at.lock_ref = locks = at.lock_ref - 1
            if not locks:
                freed += at.resident
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
        self.pinned_size += add_pins(node, 1)
        return node

    def unpin(self, node: TreeNode) -> None:
        """Undo `pin`. Raises CacheError if the node is not pinned."""
        if node.pins < 1:
            raise CacheError(f"node {node.id} is not pinned")
        self.pinned_size += add_pins(node, -1)
        self.dec_lock_ref(node)

    def lock(self, node: TreeNode, top: TreeNode | None = None, priority: int = 0) -> None:
        """Add a lock to a node and all above it, up to below `top`, and raise their priority."""
        for each in self.observers:
            each.locking(node)
        self._protect(node, lock_path(node, top, priority))

    def move_lock(self, held: TreeNode, deeper: TreeNode, priority: int) -> None:
        """Turn a lock on `held` into one on its descendant: only what is new gets locked."""
        self.lock(deeper, held, priority)
        held.held -= 1
        if len(held.children) == 1:
            self.merge(held)

    def _protect(self, node: TreeNode, n_tokens: int) -> None:
        """A lock ends at a node now; `n_tokens` of its path had none before."""
        node.held += 1
        self.evictable_size -= n_tokens
        self.protected_size += n_tokens

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
        freed = []
        while n_tokens > 0:
            leaf = self.order.pop()
            if leaf is None:
                raise CacheError(f"{n_tokens} tokens to evict, but no unlocked leaf is left")
            freed.append(self.trim(leaf, self.order.most(leaf, n_tokens)))
            n_tokens -= freed[-1].size
        return joined(freed)

    def discard(self, match: Match, keep: int) -> Slots:
        """Evict what a match found after its first `keep` tokens (whole pages), and all below, as
        far as no lock holds it; returns the slots. O(nodes below).
        """
        return joined([self.trim(node, n_tokens) for node, n_tokens in free_after(match, keep)])

    def forget_ghosts(self, budget: int = 0) -> None:
        """Forget the longest evicted ghosts until the rest is within a budget of tokens."""
        while (node := self.ghosts.over(budget)) is not None:
            self.forget(node)

    def settle(self, node: TreeNode) -> None:
        """Put a free node in its place: a leaf into the eviction order, an empty root out."""
        if node.lock_ref or node.live:
            return
        if node.resident:
            self.order.offer(node)
        elif node.is_root and not node.children:
            del self.roots[node.namespace]
            self._leave(node)

    # Transitions

    def split(self, node: TreeNode, offset: int) -> TreeNode:
        """Cut `node` after `offset` tokens; return the upper part. The lower one keeps its
        identity, its age and its place in the eviction order.
        """
        if not 0 < offset < len(node):
            raise CacheError(f"node {node.id} of {len(node)} tokens can not be cut at {offset}")
        upper = self._enter(node.cut(offset, next(self._ids), self.page_size))
        for each in self.observers:
            each.split(node, upper)
        self.ghosts.update(node)
        self.ghosts.update(upper)
        self.settle(upper)
        self.stats.splits += 1
        return upper

    def merge(self, node: TreeNode) -> None:
        """Join `node` with its only child when nothing tells them apart: no lease, no pin and
        nothing that an observer knows ends between them, last used together, the same priority, no
        resident token after a ghost. The child keeps its identity, since that is what leases below
        hold.
        """
        if not is_mergeable(node) or self._keeps_end(node):
            return
        [child] = node.children.values()
        child.join(node, self.page_size)
        del self.by_id[node.id]
        self.version += 1
        self.ghosts.forget(node)
        self.ghosts.update(child)
        for each in self.observers:
            each.merged(node, child)
        self.settle(child)
        self.stats.merges += 1

    def _keeps_end(self, node: TreeNode) -> bool:
        """Whether an observer knows of something that ends where `node` does."""
        return bool(self.observers) and any(each.keeps_end(node) for each in self.observers)

    def add_leaf(
        self, parent: TreeNode, edge: bytes, slots: Slots, priority: int, *, held: bool
    ) -> TreeNode:
        """Hang a new leaf below a resident end; or, without slots, below any end one of which
        nothing is resident, nor was: it is stored, or will be. held: the caller's lock moves down.
        """
        leaf = self._enter(TreeNode(next(self._ids), edge, slots.copy(), parent))
        add_weight(parent, leaf.weight)
        leaf.last_used, leaf.priority = parent.last_used, priority
        if held:
            parent.held -= 1
            leaf.held = leaf.lock_ref = 1
        if leaf.resident:
            parent.live += 1
            self._gain(leaf, leaf.resident)
        else:
            leaf.evicted_at = NEVER
            self.ghosts.update(leaf)
        for each in self.observers:
            each.made(leaf)
        return leaf

    def stored_changed(self, node: TreeNode) -> None:
        """Note that more or less of a node is stored now. For StoredParts."""
        self.ghosts.update(node, fresh=True)
        for each in self.observers:
            each.changed(node)

    def grow(self, leaf: TreeNode, edge: bytes, slots: Slots) -> None:
        """Add resident tokens to the end of a resident node without children."""
        leaf.grow(edge, slots)
        self._gain(leaf, slots.size)
        self.version += 1
        for each in self.observers:
            each.grown(leaf, slots.size)

    def revive(self, node: TreeNode, slots: Slots) -> None:
        """Give slots to all ghost tokens of a node whose parent is resident to its end."""
        parent = node.parent
        if parent is None or node.lock_ref:
            raise CacheError(f"node {node.id} can hold no ghosts")
        if not node.resident:
            parent.live += 1
        node.set_slots(np.concatenate((node.slots, slots)))
        self.evictable_size += slots.size
        self.stats.revived_tokens += slots.size
        self.version += 1
        for each in self.observers:
            each.revived(node, slots.size, self.uses)
        self.ghosts.update(node)

    def revive_path(self, node: TreeNode, slots: Slots) -> int:
        """Give all tokens down to `node` their `slots`; return how many were resident before."""
        chain = absent_path(node)
        there = chain[0].start + chain[0].resident
        for ghost in chain:
            self.revive(ghost, slots[ghost.start + ghost.resident : ghost.end].copy())
        return there

    def trim(self, leaf: TreeNode, n_tokens: int) -> Slots:
        """Evict up to `n_tokens`, in pages, off the end of a free leaf, as ghosts; return slots."""
        keep = max(leaf.resident - n_tokens, 0) // self.page_size * self.page_size
        freed = leaf.keep(keep)
        leaf.evicted_at = self._clock.now()
        self.evictable_size -= freed.size
        self.changed(leaf)
        self.stats.evicted(freed.size, leaf.hits)
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
        kept, lost = node.kept, node.ghosts
        self.changed(node if kept else parent)
        if kept:
            self._forgotten(node, lost)
            node.forget(lost)
            self.ghosts.update(node)
            return
        add_weight(node, -node.weight)
        del parent.children[page_key(node.edge, self.page_size)]
        self.stats.leaves += not parent.children
        self._drop(node)
        self.settle(parent)
        self.merge(parent)

    def _drop(self, ghost: TreeNode) -> None:
        """Take a node out of which nothing is resident or stored."""
        self._forgotten(ghost, len(ghost))
        self.ghosts.forget(ghost)
        ghost.parent = None
        self._leave(ghost)

    def _forgotten(self, node: TreeNode, n_tokens: int) -> None:
        """A node's last tokens are about to be known no longer."""
        self.stats.forgotten_tokens += n_tokens
        for each in self.observers:
            each.forgotten(node, n_tokens)

    # Books

    def _root(self, namespace: Hashable) -> TreeNode:
        """The root of a namespace, made where there is none."""
        root = self.roots.get(namespace)
        if root is None:
            root = self._enter(TreeNode(next(self._ids), b"", NO_SLOTS, None, namespace))
            self.roots[namespace] = root
            for each in self.observers:
                each.made(root)
        return root

    def _enter(self, node: TreeNode) -> TreeNode:
        """A new node; its parent has it in place of a child that begins with the same page."""
        self.by_id[node.id] = node
        self.version += 1
        parent = node.parent
        if not node.children and (parent is None or parent.children):
            self.stats.leaves += 1  # else its parent was one
        if parent is not None:
            parent.children[page_key(node.edge, self.page_size)] = node
        return node

    def _leave(self, node: TreeNode) -> None:
        self.stats.leaves -= not node.children
        del self.by_id[node.id]
        self.version += 1
        for each in self.observers:
            each.left(node)

    def changed(self, node: TreeNode) -> None:
        """Note that another part of a node is resident, or known, or that what a match needs of
        its path, not known here, is there or gone: matches may end elsewhere.
        """
        self.version += 1
        for each in self.observers:
            each.changed(node)

    def _gain(self, node: TreeNode, n_tokens: int) -> None:
        """Count tokens that are new in a node."""
        if node.lock_ref:
            self.protected_size += n_tokens
        else:
            self.evictable_size += n_tokens
