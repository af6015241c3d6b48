"""The orders in which leaves are evicted, and evicted tokens forgotten."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from heapq import heapify, heappop, heappush
from typing import Generic, Protocol, TypeVar, cast

from radixlm.cache.radix.node import TreeNode
from radixlm.cache.radix.observer import TreeObserver
from radixlm.core.errors import CacheError

_SPARE_ENTRIES = 1_024
KEY_BITS = 64
LOW_BITS = (1 << KEY_BITS) - 1


class EvictionPolicy(Protocol):
    """The leaf with the smallest key goes first. A key is one int (`pair` makes one of two) that
    depends on the node alone: not on the time of day, not on chance.
    """

    def key(self, node: TreeNode) -> int: ...


class ByKey:
    """A policy that is one function of a node."""

    def __init__(self, name: str, key: Callable[[TreeNode], int]) -> None:
        self.name, self.key = name, key


def last_used(node: TreeNode) -> int:
    """The key of the default policy, lru."""
    return node.last_used


def pair(first: int, second: int) -> int:
    """One int that orders by `first`, then by `second` (from 0 to 2**64 - 1).

    >>> pair(1, 9) < pair(2, 0)
    True
    """
    return (first << KEY_BITS) + second


class Chooser(TreeObserver, ABC):
    """An EvictionPolicy that also hears of the tree, and names the leaf that goes first itself as
    long as `chooses`; by `key` otherwise. ghosts: evicted tokens that it wants remembered, in
    pools.
    """

    ghosts: int

    @abstractmethod
    def key(self, node: TreeNode) -> int: ...

    @property
    @abstractmethod
    def chooses(self) -> bool: ...

    @abstractmethod
    def choose(self, entries: list[int], by_id: Mapping[int, TreeNode]) -> TreeNode | None:
        """A leaf out of the entries of an EvictionOrder, or None. It takes out of them what it
        names, and may take out what no longer counts.
        """

    @abstractmethod
    def most(self, leaf: TreeNode, n_tokens: int) -> int:
        """How many of `n_tokens` are to go from a leaf's end."""

    @abstractmethod
    def judge(self, found: int, under_lru: int, stored: int, asked: int, capacity: int) -> None:
        """Judge a prompt of `asked` tokens, of which `found` were resident and `stored` can be read
        back; `under_lru` would have been resident by LRU, in a pool of `capacity`.
        """

    @abstractmethod
    def hinted(self, node: TreeNode, hint: int, use: int) -> None:
        """A hint, by its place in Hint, comes for a node without locks."""


class Leaf(Protocol):
    """A leaf that can be evicted of a place: `resident` tokens, unless something there is locked or
    lives below. queued_key: of the order that it is in.
    """

    queued_key: int | None

    @property
    def id(self) -> int: ...
    @property
    def lock_ref(self) -> int: ...
    @property
    def live(self) -> int: ...
    @property
    def resident(self) -> int: ...


LeafT = TypeVar("LeafT", bound=Leaf)
RankedT = TypeVar("RankedT", contravariant=True)


class Ranks(Protocol[RankedT]):
    """An EvictionPolicy of nodes, or one of their parts."""

    def key(self, node: RankedT, /) -> int: ...


class EvictionOrder(Generic[LeafT]):
    """Unlocked leaves, first to go first. O(log n) per leaf offered or taken.

        heap     [ key << 64 | node id, ... ]     one int an entry: cheap to compare

    Entries are not searched for when a node is used again. An entry whose node is locked, or has
    resident children, is dropped when it comes up (the node is offered again when that ends); one
    whose key has grown since goes back to its new place; when a key has become smaller, the offer
    makes a second entry and the first one no longer counts.

    While a Chooser decides, the entries are in no order; they are put in order when it no longer
    does. When most entries no longer count, all are made anew.

    chooser: the policy, if it is one.
    by_id: every node of the tree, as the tree keeps them. len: entries, dead ones included.
    """

    def __init__(self, policy: Ranks[LeafT], by_id: Mapping[int, LeafT]) -> None:
        self._by_id = by_id
        self._follow(policy)
        self._heap: list[int] = []
        self._sorted = True

    def __len__(self) -> int:
        return len(self._heap)

    def offer(self, node: LeafT) -> None:
        """Enter an unlocked leaf, or again by a smaller key, which leaves a dead entry."""
        key, queued = self.policy.key(node), node.queued_key
        if queued is not None and key >= queued:
            return
        node.queued_key = key
        if self._sorted:
            heappush(self._heap, (key << KEY_BITS) + node.id)
        else:
            self._heap.append((key << KEY_BITS) + node.id)
        if len(self._heap) > 2 * len(self._by_id) + _SPARE_ENTRIES:
            self.rebuild(self._by_id.values())

    def pop(self) -> LeafT | None:
        """Take the unlocked leaf that goes first, or None when there is none."""
        chooser = self.chooser
        if chooser is not None and chooser.chooses:
            self._sorted = False
            chosen = chooser.choose(self._heap, cast("Mapping[int, TreeNode]", self._by_id))
            if chosen is not None:
                return cast("LeafT", chosen)
        self._sort()
        while self._heap:
            entry = heappop(self._heap)
            key, node = entry >> KEY_BITS, self._by_id.get(entry & LOW_BITS)
            if node is None or key != node.queued_key:
                continue
            node.queued_key = None
            if node.lock_ref or node.live or not node.resident:
                continue
            if self.policy.key(node) == key:
                return node
            self.offer(node)
        return None

    def most(self, leaf: LeafT, n_tokens: int) -> int:
        """How many of `n_tokens` are to go from the end of a leaf that goes first."""
        if self.chooser is None:
            return n_tokens
        return self.chooser.most(cast("TreeNode", leaf), n_tokens)

    def first(self, most: int) -> Iterator[LeafT]:
        """The entries that count among the first `most`, in order, left where they are; an entry
        whose key has grown since is in its old place. O(most log most).
        """
        self._sort()
        heap = self._heap
        ahead = [(heap[0], 0)] if heap else []
        for _ in range(min(most, len(heap))):
            entry, place = heappop(ahead)
            for below in range(2 * place + 1, min(2 * place + 3, len(heap))):
                heappush(ahead, (heap[below], below))
            node = self._by_id.get(entry & LOW_BITS)
            if node is None or entry >> KEY_BITS != node.queued_key:
                continue
            if not node.lock_ref and not node.live and node.resident:
                yield node

    def rebuild(self, nodes: Iterable[LeafT], policy: Ranks[LeafT] | None = None) -> None:
        """Enter exactly these leaves, by a new policy where one is given. O(nodes)."""
        policy = policy or self.policy
        # All keys first: when a user's policy raises, nothing has changed.
        keys = [
            (node, None if node.lock_ref or node.live or not node.resident else policy.key(node))
            for node in nodes
        ]
        self._follow(policy)
        self._heap = [pair(key, node.id) for node, key in keys if key is not None]
        for node, key in keys:
            node.queued_key = key
        self._sorted = False
        self._sort()

    def _follow(self, policy: Ranks[LeafT]) -> None:
        self.policy = policy
        self.chooser = policy if isinstance(policy, Chooser) else None

    def _sort(self) -> None:
        if not self._sorted:
            heapify(self._heap)
            self._sorted = True


class Ghosts:
    """Nodes with evicted tokens, longest evicted first, in a budget of tokens of 4 bytes each."""

    def __init__(self, budget: int) -> None:
        if budget < 0:
            raise CacheError(f"a ghost budget is not negative, got {budget}")
        self.budget = budget
        self.size = 0
        self._nodes: OrderedDict[TreeNode, int] = OrderedDict()

    def update(self, node: TreeNode, *, fresh: bool = False) -> None:
        """Follow a node whose edge or residency changed. fresh: it was evicted just now."""
        known = self._nodes.get(node, 0)
        ghosts = node.ghosts
        self.size += ghosts - known
        if not ghosts:
            if known:
                del self._nodes[node]
            return
        self._nodes[node] = ghosts
        if fresh:
            self._nodes.move_to_end(node)

    def forget(self, node: TreeNode) -> None:
        """A node has left the tree."""
        self.size -= self._nodes.pop(node, 0)

    def over(self, budget: int) -> TreeNode | None:
        """The node whose ghosts are forgotten next, or None when all fit into `budget`."""
        return next(iter(self._nodes)) if self.size > budget else None
