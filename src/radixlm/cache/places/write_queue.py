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
        self._full = FULL * pool_tokens
        self._nodes: dict[TreeNode, int] = {}
        tree.watch(self)

    def note(self, node: TreeNode, found: int = 0) -> None:
        """A path ends in `node`, committed or found; its first `found` tokens were known before."""
        self._nodes[node] = max(found, self._nodes.get(node, 0))
        if len(self._nodes) > _MOST_PATHS:
            del self._nodes[next(iter(self._nodes))]

    def take(self, policy: DiskWritePolicy, n_tokens: int) -> list[Blocks]:
        """Up to `n_tokens` tokens of blocks that a policy wants there: resident, not stored, or the
        last ones of one path without their windows; the front of each path first, no block twice.
        What is in flight is not known here: ask again when what was returned is stored or given up.
        """
        if policy == "off":
            return []
        if policy == "evict":
            return self._blocks(self._going(), n_tokens)
        looked_at = list(islice(self._nodes, _LOOKED_AT))
        found_only = policy == "selective"
        return self._blocks(self._used_up(looked_at), n_tokens, found_only=found_only)

    def rest(self, n_tokens: int) -> list[Blocks]:
        """The same of all that is resident, what would be evicted last first. O(nodes)."""
        if self._states is not None:
            return self._blocks(list(self._states.at)[::-1], n_tokens)
        leaves = [node for node in self._tree.nodes() if node.resident and not node.live]
        leaves.sort(key=self._tree.order.policy.key, reverse=True)
        return self._blocks(leaves, n_tokens)

    def _going(self) -> Iterator[TreeNode]:
        """The nodes that are evicted next, where little room is left."""
        tree, states = self._tree, self._states
        if tree.evictable_size + tree.protected_size > self._full:
            yield from tree.order.first(_LOOKED_AT)
        if states is not None and states.usage().free <= (1 - FULL) * states.capacity:
            yield from states.first()

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
        """The same, up to the last checkpoint of each path that the place could hold, since matches
        end nowhere else: all that it needs, since a part is of no use. At least one, if n_tokens is
        not 0.
        """
        parts, found = self._parts, list[Blocks]()
        ends: dict[TreeNode, int] = {}
        taken = set[TreeNode]()
        for node in nodes:
            if n_tokens < 1:
                break  # the node is still the queue's first
            reach = self._nodes[node] if found_only else node.end
            ending = (at for at in upward(node) if at in states.at and at.end <= reach)
            fitting = (at for at in ending if at.end + parts.sizes.size(at.end) <= self._capacity)
            last = next(fitting, None)
            if last is None or last in parts.checkpoints or last in taken:
                continue
            path = list(upward(last))
            start = parts.floor(max(max(parts.end(at), ends.get(at, 0)) for at in path))
            name = parts.sizes.path(path_tokens(last))
            found.append(Blocks(last.namespace, name, start))
            n_tokens -= name.size - start
            ends.update((at, at.end) for at in path)
            taken.add(last)
        return found

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
