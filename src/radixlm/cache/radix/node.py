"""A node of the radix tree, the match that ends in one, and walks from node to node."""

from __future__ import annotations

import struct
import sys
from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from itertools import takewhile
from math import inf

import numpy as np

from radixlm.cache.radix.allocator import split_runs
from radixlm.core.batch import Extent
from radixlm.core.keys import Slots, first_difference
from radixlm.core.moves import NOWHERE, ByPlace, Place

TOKEN_BYTES = 4
# When what was not evicted by this process was evicted.
NEVER = -inf
NO_SLOTS: Slots = np.empty(0, dtype=np.int32)
PageKey = int | bytes

# A weight counts tokens and nodes in one number, so that one walk up a path keeps both.
NODE_WEIGHT = 1
TOKEN_WEIGHT = 1 << 32

# Where an int32's sign bit lies, as a byte of the buffer.
SIGN_BYTE = TOKEN_BYTES - 1 if sys.byteorder == "little" else 0

_first_token = struct.Struct("=i").unpack_from


def page_key(edge: bytes, page_size: int) -> PageKey:
    """The key of a child in its parent: its first page, or with pages of one token the token
    itself, which is looked up in half the time. (Pages stay bytes, whose hash can not be foreseen.)
    """
    if page_size == 1:
        token: int = _first_token(edge)[0]
        return token
    return edge[: page_size * TOKEN_BYTES]


class TreeNode:
    """The tokens on the edge into it, the slots of those that are resident, and how it is used.

        edge   [ t0 t1 t2 t3 t4 t5 ]        tokens, all of them known
        slots  [ 17 18 19 40 )              the first `resident` have keys and values,
                             t4 t5          the rest is a ghost: known, but evicted

    What is evicted lies below what is resident: a node that is not resident to its end has no
    resident children, since eviction works from the leaves up.

    stored: how many tokens, from the front as well, are in host memory, and on disk; by Place, see
    StoredParts. What is neither resident nor stored is a ghost.

    namespace: what must match besides tokens. Its root is a TreeNode, too, without tokens: Python
    walks a path much faster where all nodes are of one class. edge: the tokens' int32 bytes, a copy
    (a view would keep whole prompts alive). end: tokens from the root to its own end. live:
    children with resident tokens; 0 makes it a leaf for eviction.
    lock_ref: leases and pins whose path runs through here; 0 means that it may be evicted. held:
    how many of them end here. pins: those that are pins. hits: leases that found it. priority: the
    highest of those. last_used: the tree's counter when the path was last locked, unlocked or
    inserted. created: a number that grows from node to node.
    weight: tokens (ghosts too) and nodes, in it and below; see `tokens_in` and `nodes_in`.
    queued_key: its place in the eviction order, None while it has none. evicted_at: seconds, by the
    tree's clock, when it last lost tokens. kind, tail: what Learned knows it
    by, and how many of its last tokens are a request's tail.
    """

    __slots__ = (
        "_extents", "children", "created", "edge", "end", "evicted_at", "held", "hits", "id",
        "kind", "last_used", "live", "lock_ref", "namespace", "parent", "pins", "priority",
        "queued_key", "resident", "slots", "stored", "tail", "weight",
    )  # fmt: skip

    def __init__(
        self,
        node_id: int,
        edge: bytes,
        slots: Slots,
        parent: TreeNode | None,
        namespace: Hashable = None,
    ) -> None:
        """namespace: of a root; others have their parent's."""
        self.id = node_id
        self.edge = edge
        self.slots = slots
        self.resident: int = slots.size
        self.stored: ByPlace = NOWHERE
        self.parent = parent
        size = len(edge) // TOKEN_BYTES
        self.end: int = size if parent is None else parent.end + size
        self.namespace: Hashable = namespace if parent is None else parent.namespace
        self.children: dict[PageKey, TreeNode] = {}
        self.live = 0
        self.lock_ref = 0
        self.held = 0
        self.last_used = 0
        self.created = node_id
        self.hits = 0
        self.priority = 0
        self.pins = 0
        self.weight = size * TOKEN_WEIGHT + NODE_WEIGHT
        self.queued_key: int | None = None
        self.evicted_at = 0.0
        self.kind = self.tail = 0
        self._extents: tuple[Extent, ...] | None = None

    def __len__(self) -> int:
        return len(self.edge) // TOKEN_BYTES

    def __bool__(self) -> bool:
        return True

    @property
    def is_root(self) -> bool:
        return not self.end

    @property
    def start(self) -> int:
        """Tokens from the root to the beginning of this node."""
        return self.end - len(self)

    @property
    def absent(self) -> int:
        """Tokens that are known but not resident."""
        return len(self) - self.resident

    @property
    def kept(self) -> int:
        """Tokens that are resident or stored, so that nobody forgets them."""
        return max(self.resident, *self.stored)

    @property
    def ghosts(self) -> int:
        """Tokens that are known, but neither resident nor stored."""
        return len(self) - self.kept

    @property
    def extents(self) -> tuple[Extent, ...]:
        """The runs that its slots form; computed once for as long as they stay."""
        if self._extents is None:
            self._extents = split_runs(self.slots)
        return self._extents

    def set_edge(self, edge: bytes, slots: Slots) -> None:
        """Replace tokens and slots together, so that they can not part."""
        self.edge = edge
        self.set_slots(slots)

    def set_stored(self, place: Place, n_tokens: int) -> None:
        """The first tokens are stored in a place now, and no others."""
        host, disk = self.stored
        self.stored = (n_tokens, disk) if place is Place.HOST else (host, n_tokens)

    def set_slots(self, slots: Slots) -> None:
        """Make the first len(slots) tokens resident."""
        self.slots = slots
        self.resident = slots.size
        self._extents = None

    def grow(self, edge: bytes, slots: Slots) -> None:
        """Add resident tokens to a resident end without children."""
        self.set_edge(self.edge + edge, np.concatenate((self.slots, slots)))
        self.end += slots.size
        add_weight(self, slots.size * TOKEN_WEIGHT)

    def keep(self, n_tokens: int) -> Slots:
        """Leave only the first tokens resident; returns the slots of the others."""
        freed = self.slots[n_tokens:]
        self.set_slots(self.slots[:n_tokens].copy() if n_tokens else NO_SLOTS)
        return freed

    def forget(self, n_tokens: int) -> None:
        """Take the last tokens, ghosts, off a node without children."""
        self.edge = self.edge[: (len(self) - n_tokens) * TOKEN_BYTES]
        self.end -= n_tokens
        add_weight(self, len(self) * TOKEN_WEIGHT + NODE_WEIGHT - self.weight)

    def tokens(self) -> Slots:
        """(len,) int32 token ids of the edge, read-only."""
        return np.frombuffer(self.edge, dtype=np.int32)

    def cut(self, offset: int, upper_id: int, page_size: int) -> TreeNode:
        """Move the first tokens to a new node above, unknown to the parent yet; return it."""
        edge, slots, stop = self.edge, self.slots, offset * TOKEN_BYTES
        upper = TreeNode(upper_id, edge[:stop], slots[:offset].copy(), self.parent)
        upper.lock_ref, upper.pins, upper.priority = self.lock_ref, self.pins, self.priority
        upper.last_used, upper.hits, upper.created = self.last_used, self.hits, self.created
        upper.evicted_at, upper.kind = self.evicted_at, self.kind
        size = len(edge) // TOKEN_BYTES
        upper.tail = max(self.tail - size + offset, 0)
        self.tail = min(self.tail, size - offset)
        host, disk = self.stored
        upper.stored = min(host, offset), min(disk, offset)
        self.stored = max(host - offset, 0), max(disk - offset, 0)
        self.set_edge(edge[stop:], slots[offset:].copy())
        self.parent = upper
        upper.children[page_key(self.edge, page_size)] = self
        upper.live = 1 if self.resident else 0
        upper.weight = self.weight + NODE_WEIGHT
        self.weight -= offset * TOKEN_WEIGHT
        if upper.parent is not None:
            add_weight(upper.parent, NODE_WEIGHT)
        return upper

    def join(self, upper: TreeNode, page_size: int) -> None:
        """Take over tokens and place of a parent, not a root, without other children."""
        if self.tail == len(self):
            self.tail += upper.tail
        self.set_edge(upper.edge + self.edge, np.concatenate((upper.slots, self.slots)))
        self.stored = self.stored[0] + upper.stored[0], self.stored[1] + upper.stored[1]
        self.parent = parent = upper.parent
        self.last_used = upper.last_used
        self.created = min(upper.created, self.created)
        self.hits = max(upper.hits, self.hits)
        self.evicted_at = max(upper.evicted_at, self.evicted_at)
        self.weight += len(upper) * TOKEN_WEIGHT
        if parent is not None:
            parent.children[page_key(self.edge, page_size)] = self
            add_weight(parent, -NODE_WEIGHT)
        upper.parent = None
        upper.lock_ref = upper.pins = 0


@dataclass(slots=True)
class Match:
    """The end of the longest match of a key: `offset` tokens into `node`. A value, made once and
    not changed: it is no tuple, and not frozen, because both take twice as long to make.

    length: matched tokens, all resident. node: None when the namespace is empty.
    version: the tree's, when the match was made; a later change makes the match stale.
    """

    length: int
    node: TreeNode | None
    offset: int
    namespace: Hashable
    version: int

    @property
    def agreed(self) -> Match:
        """The match as far as the tokens agree, if that is farther: see CutMatch."""
        return self

    def slots(self) -> Slots:
        """(length,) slots of the matched tokens; a copy. O(length)."""
        if self.node is None:
            return NO_SLOTS
        return path_slots(self.node, 0, self.length)

    def unlocked(self) -> int:
        """Matched tokens that no lock holds, so evictable ones. O(unlocked nodes on the path)."""
        free, at, offset = 0, self.node, self.offset
        while at is not None and not at.lock_ref:
            free += offset
            at = at.parent
            offset = at.resident if at is not None else 0
        return free

    def unpinned(self) -> int:
        """How many of the matched tokens no pin holds. O(unpinned nodes on the path)."""
        path = path_sizes(self.node, self.offset)
        return sum(size for _, size in takewhile(lambda step: not step[0].pins, path))


@dataclass(slots=True)
class Inserted:
    """already_there: tokens of the key that were resident before. node: where the key ends."""

    already_there: int
    node: TreeNode


def descend(node: TreeNode, tokens: memoryview, page_size: int) -> tuple[TreeNode, int]:
    """The last node that `tokens` run into from `node` on, ghosts included, and how many agree."""
    at = node.end
    if not node.children:  # a leaf that grows: there is nothing to look up
        return node, at
    stop = len(tokens)
    while at < stop:
        page = tokens[at] if page_size == 1 else tokens[at : at + page_size].tobytes()
        child = node.children.get(page)
        if child is None:
            break
        end = child.end
        wanted = tokens[at:end]
        if not child.edge.startswith(wanted):
            same = first_difference(child.edge, wanted)
            return child, at + same - same % page_size
        if end > stop:
            return child, stop
        node = child
        at = end
    return node, at


def path_sizes(node: TreeNode | None, offset: int) -> Iterator[tuple[TreeNode, int]]:
    """The nodes from `node` up, and how many tokens of each are on the path."""
    while node is not None:
        yield node, offset
        node = node.parent
        offset = node.resident if node is not None else 0


def copy_slots(node: TreeNode, slots: Slots) -> None:
    """Write the slots of the path that ends in `node`, (node.end,), all resident, to `slots`."""
    for at in upward(node):
        slots[at.end - at.resident : at.end] = at.slots


def path_slots(node: TreeNode, start: int, stop: int) -> Slots:
    """Slots of tokens [start, stop) of the path that ends in `node`; a copy. O(stop - start)."""
    parts = []
    for at in upward(node):
        if at.end <= start:
            break
        if at.start < stop:
            parts.append(at.slots[max(start - at.start, 0) : stop - at.start])
    return np.concatenate(parts[::-1]) if parts else NO_SLOTS


def joined(parts: list[Slots]) -> Slots:
    if len(parts) == 1:
        return parts[0]
    return np.concatenate(parts) if parts else NO_SLOTS


def add_weight(node: TreeNode, more: int) -> None:
    """Add to the weight of a node and of all nodes above it."""
    at: TreeNode | None = node
    while at is not None:
        at.weight += more
        at = at.parent


def tokens_in(weight: int) -> int:
    return weight // TOKEN_WEIGHT


def nodes_in(weight: int) -> int:
    return weight % TOKEN_WEIGHT


def upward(node: TreeNode) -> Iterator[TreeNode]:
    """The node and all above it, the root last."""
    at: TreeNode | None = node
    while at is not None:
        yield at
        at = at.parent


def is_mergeable(node: TreeNode) -> bool:
    """Whether nothing tells `node` and its only child apart; a lock sets the age when it ends."""
    if len(node.children) != 1 or node.parent is None:
        return False
    [child] = node.children.values()
    return (
        not node.held
        and (child.last_used == node.last_used or child.lock_ref > 0)
        and child.priority == node.priority
        and child.kind == node.kind
        and (not child.resident or not node.absent)
    )


def walk(*tops: TreeNode) -> Iterator[TreeNode]:
    """Every node from `tops` down, each before its children."""
    stack: list[TreeNode] = list(tops)
    while stack:
        node = stack.pop()
        yield node
        stack.extend(node.children.values())
