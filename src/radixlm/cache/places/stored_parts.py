"""The tokens of nodes that are stored in a place, in blocks, and the order in which they go."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator
from functools import reduce
from operator import or_
from typing import NamedTuple

import numpy as np

from radixlm.cache.radix.eviction import EvictionOrder
from radixlm.cache.radix.node import TreeNode, upward
from radixlm.cache.radix.observer import TreeObserver
from radixlm.core.keys import Key
from radixlm.core.moves import Place, StateBlocks

# Added to a node's id, for that of the checkpoint at its end.
_CHECKPOINTS = 1 << 62


class Blocks(NamedTuple):
    """The blocks of a path's tokens [start, tokens.size). start, size: whole blocks."""

    namespace: Hashable
    tokens: Key
    start: int


class StoredPart:
    """The part of a node that a place has, as an EvictionOrder wants it. lock_ref: reads and writes
    in flight whose path runs through here. held: how many of them end here. live: children with
    such a part. windows: bit b is set where block b of the path, one of the node's, is stored with
    the part of layers with a window.
    """

    __slots__ = ("above", "held", "live", "lock_ref", "node", "place", "queued_key", "windows")

    def __init__(self, node: TreeNode, place: Place, lock_ref: int = 0, live: int = 0) -> None:
        self.node = node
        self.place = place
        self.lock_ref = lock_ref
        self.held = 0
        self.live = live
        self.windows = 0
        self.queued_key: int | None = None
        # Once it is gone, the part that holds what ended here.
        self.above: StoredPart | None = None

    @property
    def id(self) -> int:
        return self.node.id

    @property
    def resident(self) -> int:
        return self.node.stored[self.place]


class StoredCheckpoint(StoredPart):
    """The checkpoint of states at a node's end, that a place has: a leaf below the node's part,
    `above`, and as old as the node.
    """

    __slots__ = ()

    @property
    def id(self) -> int:
        return self.node.id + _CHECKPOINTS

    @property
    def resident(self) -> int:
        return 1


class _AsTheTree:
    """The policy that the tree has at the moment."""

    def __init__(self, order: EvictionOrder[TreeNode]) -> None:
        self._order = order

    def key(self, part: StoredPart) -> int:
        return self._order.policy.key(part.node)


class StoredParts(TreeObserver):
    """The parts of all nodes with tokens that are stored in a place, their order, and the sums.

        root ── 0 1 2 3 4 5 ─┬─ 6 7 8 9             a block belongs to the node in which it ends:
                             └─ 9 9 9 9 9 9         of 4 tokens one in each node here, and in the
                                                    last one two, if all are stored

    Blocks are whole: tokens that several blocks share, since paths part within them, are stored
    in each. A node's tokens after the last block that ends in it count as stored while a child's
    are. Only a node that is stored to its end has children with stored tokens.

    A checkpoint of states counts as such a child of the node at whose end it is, which keeps that.
    It is dropped as a whole.

    checkpoints: by their nodes. loose: nodes that may join their children since one went.

    by_id: by the node's id. blocks, locked: how many there are, and those under locks. dropped:
    blocks that are no longer counted, to be deleted there with all that go on from them.
    """

    def __init__(
        self,
        place: Place,
        order: EvictionOrder[TreeNode],
        sizes: StateBlocks,
        changed: Callable[[TreeNode], None],
    ) -> None:
        """order: the tree's, for its policy. changed: called when `stored` of a node is another."""
        self.place = place
        self.sizes = sizes
        self.block_tokens = sizes.block_tokens
        self.checkpoints: dict[TreeNode, StoredCheckpoint] = {}
        self.loose: list[TreeNode] = []
        self.by_id: dict[int, StoredPart] = {}
        self.blocks = self.locked = 0
        self.dropped: list[Blocks] = []
        self.order: EvictionOrder[StoredPart] = EvictionOrder(_AsTheTree(order), self.by_id)
        self._tree_order = order
        self._ordered_by = order.policy
        self._changed = changed

    def floor(self, n_tokens: int) -> int:
        """The tokens of `n_tokens` that fill whole blocks."""
        return n_tokens - n_tokens % self.block_tokens

    def count(self, node: TreeNode) -> int:
        """Stored blocks that end in a node."""
        start, size = node.start, self.block_tokens
        return (start + node.stored[self.place]) // size - start // size

    def end(self, node: TreeNode) -> int:
        """Tokens from the root to the last one of a node that is stored; 0 when none is."""
        stored = node.stored[self.place]
        return node.start + stored if stored else 0

    def cover(self, node: TreeNode, upto: int, windows: int, exact: int = 0) -> None:
        """The path through `node` is stored up to its first `upto` tokens. windows: see StoredPath,
        of blocks that are stored with both parts; others may be, but not those of `exact`.
        """
        for at in reversed(list(upward(node))):
            wanted = min(upto, at.end) - at.start
            if wanted > at.stored[self.place]:
                self._resize(at, wanted)
            if (part := self.by_id.get(at.id)) is not None:
                part.windows = (part.windows & ~exact | windows) & self._blocks(at)

    def usable(self, node: TreeNode, upto: int, window_blocks: int) -> int:
        """Tokens of the longest prefix of a path, of its first `upto` that are stored, of which the
        last window_blocks are stored with both parts, or all that there are. O(nodes + blocks).
        """
        windows = self.windows(upward(node))
        # What stands before the first block is there. Bit b stands for a run that ends with it.
        runs = (windows << window_blocks) | ((1 << window_blocks) - 1)
        runs &= (1 << (upto // self.block_tokens + window_blocks)) - 1
        length = 1
        while length < window_blocks:
            more = min(length, window_blocks - length)
            runs &= runs << more
            length += more
        return (runs.bit_length() - window_blocks) * self.block_tokens

    def windows(self, path: Iterable[TreeNode]) -> int:
        """The bits of all blocks of a path that are stored with both parts."""
        parts = (self.by_id.get(at.id) for at in path)
        return reduce(or_, (part.windows for part in parts if part is not None), 0)

    def _blocks(self, node: TreeNode) -> int:
        """Bits of the stored blocks that end in a node."""
        first = node.start // self.block_tokens
        return ((1 << self.count(node)) - 1) << first

    def add_checkpoint(self, node: TreeNode) -> None:
        """The checkpoint at a node's end is stored, as all its tokens are."""
        part = self.checkpoints[node] = StoredCheckpoint(node, self.place)
        part.above = self.by_id[node.id]
        part.above.live += 1
        self.by_id[part.id] = part
        self.blocks += self._taken_by(node)
        self._settle(part)

    def drop_checkpoint(self, node: TreeNode) -> None:
        """Drop the checkpoint at a node's end."""
        self._name(node, node.end)
        self._lose_checkpoint(node)
        self._tidy(node)

    def _lose_checkpoint(self, node: TreeNode) -> None:
        part = self.checkpoints.pop(node, None)
        if part is None:
            return
        del self.by_id[part.id]
        self.blocks -= self._taken_by(node)
        if part.lock_ref:
            self.locked -= self._taken_by(node)
        self.by_id[node.id].live -= 1
        self.loose.append(node)

    def _name(self, node: TreeNode, position: int) -> bool:
        """Have the first block deleted that ends in a node after `position`, with all that go on
        from it; or a checkpoint's. Whether there is such a block. O(end).
        """
        first = self.floor(position)
        there = first < self.floor(self.end(node))
        if there or node in self.checkpoints:
            first = first if there else self.floor(node.end)
            path = path_tokens(node) if there else self.sizes.path(path_tokens(node))
            self.dropped.append(Blocks(node.namespace, path[: first + self.block_tokens], first))
        return there

    def _taken_by(self, node: TreeNode) -> int:
        """Blocks that a checkpoint at a node's end takes."""
        return self.sizes.own(node.end) // self.block_tokens

    def drop_leaf(self, most: int) -> int:
        """Drop up to `most` blocks off the end of the leaf that goes first, or more: a whole
        checkpoint; returns how many.
        """
        if self._ordered_by is not self._tree_order.policy:
            self._ordered_by = self._tree_order.policy
            self.order.rebuild(self.by_id.values())
        part = self.order.pop()
        if part is None:
            return 0
        node, before = part.node, self.blocks
        if isinstance(part, StoredCheckpoint):
            self.drop_checkpoint(node)
            return before - self.blocks
        end = self.end(node)
        self.drop_after(node, max(end - most * self.block_tokens, node.start))
        return before - self.blocks

    def drop_after(self, node: TreeNode, position: int) -> None:
        """Drop all blocks that end after `position` (in the node, from the root) in it or below."""
        named = set[TreeNode | None]()
        parts = [node, *self._stored_below(node)]
        for at in parts:
            if at.parent in named or self._name(at, max(position, at.start)):
                named.add(at)
        for at in reversed(parts):
            self._lose_checkpoint(at)
            stored = self.floor(max(position, at.start)) - at.start
            self._resize(at, min(max(stored, 0), at.stored[self.place]))
        self._tidy(node)

    def _tidy(self, node: TreeNode) -> None:
        """Drop what is left behind the last block of a node without stored children."""
        for at in upward(node):
            part = self.by_id.get(at.id)
            if at.is_root or (part is not None and part.live):
                return
            self._resize(at, max(self.floor(self.end(at)) - at.start, 0))
            if at.id in self.by_id:
                self._settle(self.by_id[at.id])
                return

    def lock(self, node: TreeNode, *, checkpoint: bool = False) -> StoredPart:
        """Keep the stored tokens of a path, and the checkpoint at its end, from being dropped for
        others.
        """
        for at in upward(node):
            if at.is_root:
                break
            part = self.by_id[at.id]
            if not part.lock_ref:
                self.locked += self.count(at)
            part.lock_ref += 1
        held = self.by_id[node.id]
        held.held += 1
        if not checkpoint:
            return held
        end = self.checkpoints[node]
        if not end.lock_ref:
            self.locked += self._taken_by(node)
        end.lock_ref += 1
        return end

    def unlock(self, held: StoredPart) -> TreeNode | None:
        """Undo `lock`; returns the node where it ends by now, None when all of it is gone."""
        part: StoredPart | None = held
        if isinstance(held, StoredCheckpoint):
            part = held.above
            held.lock_ref -= 1
            if not held.lock_ref and self.by_id.get(held.id) is held:
                self.locked -= self._taken_by(held.node)
                self._settle(held)
        while part is not None and self.by_id.get(part.id) is not part:
            part = part.above
        if part is None:
            return None
        part.held -= 1
        for at in upward(part.node):
            if at.is_root:
                break
            passed = self.by_id[at.id]
            passed.lock_ref -= 1
            if not passed.lock_ref:
                self.locked -= self.count(at)
                self._settle(passed)
        return part.node

    # What the tree says about its shape

    def keeps_end(self, node: TreeNode) -> bool:
        """Whether a lock ends at what is stored of a node, or a checkpoint does."""
        part = self.by_id.get(node.id)
        return part is not None and (part.held > 0 or node in self.checkpoints)

    def split(self, node: TreeNode, upper: TreeNode) -> None:
        part = self.by_id.get(node.id)
        if part is None:
            return
        if node.stored[self.place]:
            above = StoredPart(upper, self.place, part.lock_ref, live=1)
            above.windows = part.windows & self._blocks(upper)
            part.windows &= self._blocks(node)
            self.by_id[upper.id] = above
        else:
            self._move(part, upper)

    def merged(self, node: TreeNode, child: TreeNode) -> None:
        part = self.by_id.get(node.id)
        if part is None:
            return
        if child.id not in self.by_id:
            self._move(part, child)
            return
        del self.by_id[node.id]
        self.by_id[child.id].windows |= part.windows
        self._settle(self.by_id[child.id])

    def _move(self, part: StoredPart, node: TreeNode) -> None:
        del self.by_id[part.id]
        part.node = node
        part.queued_key = None
        self.by_id[node.id] = part
        self._settle(part)

    def _settle(self, part: StoredPart) -> None:
        if not part.lock_ref and not part.live:
            self.order.offer(part)

    def _stored_below(self, node: TreeNode) -> Iterator[TreeNode]:
        """Nodes below with stored tokens, parents first. O(these and their children)."""
        ends = [node]
        while ends:
            at = ends.pop()
            part = self.by_id.get(at.id)
            for child in at.children.values() if part is not None and part.live else ():
                if child.id in self.by_id:
                    yield child
                    ends.append(child)

    def _resize(self, node: TreeNode, stored: int) -> None:
        """Change how much of a node is stored; parents are to be stored first, and go last."""
        parent = node.parent
        if stored == node.stored[self.place] or parent is None:
            return
        above = self.by_id.get(parent.id)
        part = self.by_id.get(node.id)
        if part is None:
            part = self.by_id[node.id] = StoredPart(node, self.place)
            if above is not None:
                above.live += 1
        more = -self.count(node)
        node.set_stored(self.place, stored)
        self._changed(node)
        more += self.count(node)
        part.windows &= self._blocks(node)
        self.blocks += more
        if part.lock_ref:
            self.locked += more
        if stored:
            self._settle(part)
            return
        del self.by_id[node.id]
        part.above = above
        if above is not None:
            above.live -= 1
            above.held += part.held


def path_tokens(node: TreeNode) -> Key:
    """(node.end,) the tokens of the path to a node's end, read-only. O(end)."""
    edges = [at.edge for at in upward(node)]
    return np.frombuffer(b"".join(reversed(edges)), dtype=np.int32)
