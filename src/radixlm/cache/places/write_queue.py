"""A queue of what is to be written to a place next."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice

from radixlm.cache.components.states import StateSlots
from radixlm.cache.components.window_slots import WindowSlots
from radixlm.cache.places.stored_parts import Blocks, StoredParts, path_tokens
from radixlm.cache.radix.node import TreeNode, path_slots, upward
from radixlm.cache.radix.observer import TreeObserver
from radixlm.cache.radix.tree import RadixTree
from radixlm.core.config import DiskWritePolicy

# `evict` writes while more of the pool than this is in the tree.
FULL = 3 / 4
# How the longest path of late fades with each that ends.
FADES = 0.99
# Tokens that are read, or have the room that they take, in the time or for the good of one that is
# computed.
TOKENS_TO_READ = 16
# Paths that one call looks at, and paths that are remembered; the oldest is given up.
_LOOKED_AT = 64
_MOST_PATHS = 16_384


class WriteQueue(TreeObserver):
    """Nodes in which paths ended that were committed or found, oldest first, and how many tokens of
    each were used a second time: found in the pool, or computed again though they had been known,
    evicted or on disk. A node's hits would not say: it may grow, and passes them on to what it is
    joined with. The tree is never walked for what is new.
    """

    def __init__(
        self,
        tree: RadixTree,
        parts: StoredParts,
        pool_tokens: int,
        capacity: int,
        windows: WindowSlots | None,
        window_blocks: int,
        states: StateSlots | None = None,
    ) -> None:
        """capacity: tokens that the place has room for. window_blocks: how many blocks the last
        window takes.
        """
        self._states = states
        self._windows = windows
        self._window_blocks = window_blocks
        self._tree = tree
        self._parts, self._capacity = parts, capacity
        self._pool_tokens = pool_tokens
        self._longest = 0.0  # of late, in tokens
        self._nodes: dict[TreeNode, int] = {}
        self._ends: dict[TreeNode, None] = {}  # that may have checkpoints to be stored
        tree.watch(self)

    def note(self, node: TreeNode, found: int = 0) -> None:
        """A path ends in `node`, committed or found; its first `found` tokens were known before."""
        self._longest = max(node.end, FADES * self._longest)
        self._nodes[node] = max(found, self._nodes.get(node, 0))
        if self._states is not None:
            self._ends[node] = None
        for nodes in (self._nodes, self._ends):
            if len(nodes) > _MOST_PATHS:
                del nodes[next(iter(nodes))]

    def take(self, policy: DiskWritePolicy, n_tokens: int) -> list[Blocks]:
        """Up to `n_tokens` tokens of blocks that a policy wants there: resident, not stored, or the
        last ones of one path without their windows; the front of each path first, no block twice.
        What is in flight is not known here: ask again when what was returned is stored or given up.
        """
        if policy == "off":
            return []
        found = list[Blocks]()
        if policy != "evict":
            looked_at = list(islice(self._nodes, _LOOKED_AT))
            found_only = policy == "selective"
            found = self._blocks(self._used_up(looked_at), n_tokens, found_only=found_only)
        if not found and self.takes_what_goes(policy, n_tokens):
            found = self._blocks(self._going(), n_tokens)
        return found

    def takes_what_goes(self, policy: DiskWritePolicy, n_tokens: int = 1) -> bool:
        """Whether a policy wants what is evicted next; a selective one as long as there is room for
        n_tokens, since room that is not used is of no use.
        """
        unused = self._capacity - self._parts.blocks * self._parts.block_tokens
        return policy == "evict" or (policy == "selective" and n_tokens <= unused)

    def rest(self, n_tokens: int) -> list[Blocks]:
        """The same of all that is resident, what would be evicted last first. O(nodes)."""
        if self._states is not None:
            return self._blocks(list(self._states.at)[::-1], n_tokens)
        leaves = [node for node in self._tree.nodes() if node.resident and not node.live]
        leaves.sort(key=self._tree.order.policy.key, reverse=True)
        return self._blocks(leaves, n_tokens)

    def _going(self) -> Iterator[TreeNode]:
        """The nodes that are evicted next, where little room is left, or less than a request that
        is as long as others of late evicts before it runs.
        """
        tree, states = self._tree, self._states
        full = min(FULL * self._pool_tokens, self._pool_tokens - self._longest)
        if tree.evictable_size + tree.protected_size > full:
            yield from tree.order.first(_LOOKED_AT)
        if states is not None and states.usage().free <= (1 - FULL) * states.capacity:
            for node in list(islice(self._ends, _LOOKED_AT)):
                if self.lacks(node):
                    yield node
                else:
                    del self._ends[node]

    def lacks(self, node: TreeNode) -> bool:
        """Whether the place is to have the checkpoint at a node's end and has not. O(nodes)."""
        states, known = self._states, self._tree.by_id.get(node.id) is node
        if states is None or not known or node not in states.at or node in self._parts.checkpoints:
            return False
        return self._last_lasting(states, list(upward(node)), node.end) is node

    def _used_up(self, nodes: Iterable[TreeNode]) -> Iterator[TreeNode]:
        """The nodes; each leaves the queue when the next one is wanted."""
        for node in nodes:
            if self._tree.by_id.get(node.id) is node:
                yield node
            del self._nodes[node]

    def _blocks(
        self, nodes: Iterable[TreeNode], n_tokens: int, *, found_only: bool = False
    ) -> list[Blocks]:
        if self._states is not None:
            return self._checkpoints(self._states, nodes, n_tokens, found_only=found_only)
        floor, found = self._parts.floor, []
        ends: dict[TreeNode, int] = {}  # how far what was found reaches, at each node it touches
        for node in nodes:
            reach = self._nodes[node] if found_only else node.end
            path = list(upward(node))
            while not path[0].is_root and (path[0].start >= reach or not path[0].resident):
                del path[0]
            top = path[0]
            end = floor(min(top.start + top.resident, reach))
            start = stored = max(floor(self._parts.end(at)) for at in path)
            if self._windows is not None:
                start = self._without_windows(path, min(start, end), end)
            written = max(floor(min(ends.get(at, 0), at.end)) for at in path)
            start, stored = max(start, written), max(stored, written)
            if start >= end:
                continue
            stop = min(end, stored + floor(max(n_tokens, 0)))
            if start < stop:
                found.append(Blocks(top.namespace, path_tokens(top)[:stop], start))
                n_tokens -= stop - start
                ends.update((at, stop) for at in path)
            if stop < end or n_tokens < 0:
                break  # the node is still the queue's first
        return found

    def _checkpoints(
        self, states: StateSlots, nodes: Iterable[TreeNode], n_tokens: int, *, found_only: bool
    ) -> list[Blocks]:
        """The same, up to the last checkpoint of each path that is worth it, since matches end
        nowhere else: all that it needs, since a part is of no use. At least one, if n_tokens is not
        0.
        """
        parts, found = self._parts, list[Blocks]()
        ends: dict[TreeNode, int] = {}
        taken = set[TreeNode]()
        for node in nodes:
            if n_tokens < 1:
                break  # the node is still the queue's first
            path = list(upward(node))
            last = self._last_lasting(states, path, self._nodes[node] if found_only else node.end)
            if last is None or last in parts.checkpoints or last in taken:
                continue
            path = path[path.index(last) :]
            start = parts.floor(max(max(parts.end(at), ends.get(at, 0)) for at in path))
            name = parts.sizes.path(path_tokens(last))
            found.append(Blocks(last.namespace, name, start))
            n_tokens -= name.size - start
            ends.update((at, at.end) for at in path)
            taken.add(last)
        return found

    def _last_lasting(
        self, states: StateSlots, path: list[TreeNode], reach: int
    ) -> TreeNode | None:
        """The last checkpoint of a path, of its first `reach` tokens, that is stored or is to be:
        one that lasts, for which there is room, and that saves more than it takes to read it back,
        so that a prompt and its short answer are stored once. path: from its end.
        """
        parts, last, end = self._parts, None, 0
        for at in reversed(path):
            stored = at in parts.checkpoints
            if stored or (at in states.at and at.end <= reach and states.lasts(at)):
                room = parts.sizes.own(at.end)
                fits = at.end - at.end % parts.block_tokens + room <= self._capacity
                if stored or (fits and at.end - end >= room // TOKENS_TO_READ):
                    last, end = at, at.end
        return last

    def _without_windows(self, path: list[TreeNode], start: int, end: int) -> int:
        """The beginning of what is to be written before `end` of a path that is stored up to
        `start`: a block of the last window that is stored without it, if then all have it.
        """
        size, last = self._parts.block_tokens, end // self._parts.block_tokens
        first = max(last - self._window_blocks, 0)
        stored = self._parts.windows(path)
        lacking = [block for block in range(first, start // size) if not stored >> block & 1]
        if not lacking or self._windows is None:
            return start
        slots = path_slots(path[0], first * size, end)
        there = [part.all() for part in self._windows.resident(slots).reshape(-1, size)]
        whole = all(there[block - first] or stored >> block & 1 for block in range(first, last))
        return lacking[0] * size if whole else start

    def merged(self, node: TreeNode, child: TreeNode) -> None:
        found = self._nodes.pop(node, None)
        if found is not None:
            self.note(child, found)
