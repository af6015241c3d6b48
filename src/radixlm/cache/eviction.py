"""Which leaf is evicted first, and which of the evicted tokens are forgotten first."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from heapq import heapify, heappop, heappush
from pkgutil import resolve_name
from types import MappingProxyType
from typing import Generic, Protocol, TypeVar, cast

from radixlm.cache.learned import LEARNED, Learned
from radixlm.cache.node import NO_SLOTS, TOKEN_BYTES, TreeNode
from radixlm.core.errors import ConfigError

_SPARE_ENTRIES = 1_024
_BITS = 64
_LOW = (1 << _BITS) - 1


class EvictionPolicy(Protocol):
    """The leaf with the smallest key goes first. A key is one int (`pair` makes one of two) that
    depends on the node alone: not on the time of day, not on chance.
    """

    def key(self, node: TreeNode) -> int: ...


def pair(first: int, second: int) -> int:
    """One int that orders by `first`, then by `second` (from 0 to 2**64 - 1).

    >>> pair(1, 9) < pair(2, 0)
    True
    """
    return (first << _BITS) + second


POLICIES: Mapping[str, Callable[[TreeNode], int]] = MappingProxyType(
    {
        "lru": lambda node: node.last_used,
        # Fewest hits first, among equals the one that was not used for longest.
        "lfu": lambda node: pair(node.hits, node.last_used),
        "fifo": lambda node: node.created,
        # For scans longer than the pool, where the oldest is what comes again first.
        "mru": lambda node: -node.last_used,
        "filo": lambda node: -node.created,
        # What was found at least twice is protected: all that was not goes before it.
        "slru": lambda node: pair(int(node.hits >= 2), node.last_used),
        # Lowest priority first, the highest of the requests that used it.
        "priority": lambda node: pair(node.priority, node.last_used),
    }
)

NAMES = (*POLICIES, LEARNED)


class _Named:
    def __init__(self, name: str) -> None:
        self.name = name
        self.key = POLICIES[name]


def make_policy(name: str) -> EvictionPolicy:
    """A policy by its name, one of NAMES, or as `package.module:Class`. Raises ConfigError that
    lists them.
    """
    if name in POLICIES:
        return _Named(name)
    if name == LEARNED:
        return Learned()
    if ":" not in name:
        raise ConfigError(
            f"--eviction-policy {name!r} is not one of {', '.join(NAMES)}, "
            "nor has it the form package.module:Class"
        )
    try:
        made: EvictionPolicy = resolve_name(name)()
        probe = made.key(TreeNode(0, bytes(TOKEN_BYTES), NO_SLOTS, None))
    except Exception as error:  # it is the user's code: whatever it raises is the answer
        raise ConfigError(f"--eviction-policy {name!r} can not be made: {error}") from error
    if not isinstance(probe, int):
        raise ConfigError(f"--eviction-policy {name!r}: key(node) must give an int, got {probe!r}")
    return made


class Leaf(Protocol):
    """What can be evicted of a place: `resident` tokens, unless something there is locked or lives
    below. queued_key: of the order that it is in.
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

    While a policy that learns decides, the entries are in no order, since it draws from them; they
    are put in order when it no longer does.

    learned: the policy, if it is one that learns.
    by_id: every node of the tree, as the tree keeps them. len: entries, dead ones included.
    """

    def __init__(self, policy: Ranks[LeafT], by_id: Mapping[int, LeafT]) -> None:
        self._by_id = by_id
        self._follow(policy)
        self._heap: list[int] = []
        self._sorted = True

    def __len__(self) -> int:
        return len(self._heap)

    def offer(self, node: LeafT) -> bool:
        """Enter an unlocked leaf, or again by a smaller key; whether that leaves a dead entry."""
        key, queued = self.policy.key(node), node.queued_key
        if queued is not None and key >= queued:
            return False
        node.queued_key = key
        if not self._sorted:
            self._heap.append((key << _BITS) + node.id)
            return True
        heappush(self._heap, (key << _BITS) + node.id)
        return queued is not None

    def pop(self) -> LeafT | None:
        """Take the unlocked leaf that goes first, or None when there is none."""
        learned = self.learned
        if learned is not None and learned.chooses:
            self._sorted = False
            chosen = learned.choose(self._heap, cast("Mapping[int, TreeNode]", self._by_id))
            if chosen is not None:
                return cast("LeafT", chosen)
        self._sort()
        while self._heap:
            entry = heappop(self._heap)
            key, node = entry >> _BITS, self._by_id.get(entry & _LOW)
            if node is None or key != node.queued_key:
                continue
            node.queued_key = None
            if node.lock_ref or node.live or not node.resident:
                continue
            if self.policy.key(node) == key:
                return node
            self.offer(node)
        return None

    def first(self, most: int) -> Iterator[LeafT]:
        """Of the first `most` entries those that count, in order, left where they are; an entry
        whose key has grown since is in its old place. O(most log most).
        """
        self._sort()
        heap = self._heap
        ahead = [(heap[0], 0)] if heap else []
        for _ in range(min(most, len(heap))):
            entry, place = heappop(ahead)
            for below in range(2 * place + 1, min(2 * place + 3, len(heap))):
                heappush(ahead, (heap[below], below))
            node = self._by_id.get(entry & _LOW)
            if node is None or entry >> _BITS != node.queued_key:
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
        self.learned = policy if isinstance(policy, Learned) else None

    def _sort(self) -> None:
        if not self._sorted:
            heapify(self._heap)
            self._sorted = True

    def is_bloated(self, node_count: int) -> bool:
        """Whether most entries no longer count, so that a rebuild pays."""
        return len(self._heap) > 2 * node_count + _SPARE_ENTRIES


class Ghosts:
    """Nodes with evicted tokens, longest evicted first, in a budget of tokens of 4 bytes each."""

    def __init__(self, budget: int) -> None:
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
