"""The one place that knows which leaf goes first."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from heapq import heapify, heappop, heappush
from pkgutil import resolve_name
from types import MappingProxyType
from typing import Protocol

from radixlm.cache.node import TreeNode
from radixlm.core.errors import ConfigError

_SPARE_ENTRIES = 1_024


class EvictionPolicy(Protocol):
    """The leaf with the smallest key goes first. A key is a tuple of ints, made from the node."""

    def key(self, node: TreeNode) -> tuple[int, ...]: ...


class LeastRecentlyUsed:
    """The default."""

    def key(self, node: TreeNode) -> tuple[int, ...]:
        return (node.last_used,)


class LeastFrequentlyUsed:
    """Fewest hits first, among equals the one that was not used for longest."""

    def key(self, node: TreeNode) -> tuple[int, ...]:
        return (node.hits, node.last_used)


class FirstInFirstOut:
    def key(self, node: TreeNode) -> tuple[int, ...]:
        return (node.created,)


class MostRecentlyUsed:
    """For scans longer than the pool, where the oldest is what comes again first."""

    def key(self, node: TreeNode) -> tuple[int, ...]:
        return (-node.last_used,)


class FirstInLastOut:
    def key(self, node: TreeNode) -> tuple[int, ...]:
        return (-node.created,)


class SegmentedLRU:
    """What was found at least twice is protected: all that was not goes before it."""

    def key(self, node: TreeNode) -> tuple[int, ...]:
        return (int(node.hits >= 2), node.last_used)


class PriorityLRU:
    """Lowest priority first, the highest of the requests that used it."""

    def key(self, node: TreeNode) -> tuple[int, ...]:
        return (node.priority, node.last_used)


POLICIES: Mapping[str, type[EvictionPolicy]] = MappingProxyType(
    {
        "lru": LeastRecentlyUsed,
        "lfu": LeastFrequentlyUsed,
        "fifo": FirstInFirstOut,
        "mru": MostRecentlyUsed,
        "filo": FirstInLastOut,
        "slru": SegmentedLRU,
        "priority": PriorityLRU,
    }
)


def make_policy(name: str) -> EvictionPolicy:
    """A policy by its name, or one of the user's own as `package.module:Class`.

    Raises ConfigError that lists the names, or says what could not be imported.
    """
    if name in POLICIES:
        return POLICIES[name]()
    if ":" not in name:
        raise ConfigError(
            f"--eviction-policy {name!r} is none of {', '.join(POLICIES)}, "
            "nor of the form package.module:Class"
        )
    try:
        made: EvictionPolicy = resolve_name(name)()
    except (ImportError, AttributeError, TypeError, ValueError) as error:
        raise ConfigError(f"--eviction-policy {name!r} can not be made: {error}") from error
    if not callable(getattr(made, "key", None)):
        raise ConfigError(f"--eviction-policy {name!r} has no method key(node)")
    return made


class EvictionOrder:
    """Unlocked leaves, first to go first. O(log n) per leaf offered or taken.

    Entries are not searched for when a node is used again. An entry whose node is locked, or has
    resident children, is dropped when it comes up (the node is offered again when that ends); one
    whose key has grown since goes back to its new place; when a key has become smaller, the offer
    makes a second entry and the first one no longer counts.
    """

    def __init__(self, policy: EvictionPolicy) -> None:
        self._policy = policy
        self._heap: list[tuple[tuple[int, ...], int, TreeNode]] = []

    def offer(self, node: TreeNode) -> None:
        """Enter an unlocked leaf; one that is entered already keeps its place until it comes up."""
        key = self._policy.key(node)
        if node.queued_key is None or key < node.queued_key:
            node.queued_key = key
            heappush(self._heap, (key, node.id, node))

    def pop(self) -> TreeNode | None:
        """Take the unlocked leaf that goes first, or None when there is none."""
        while self._heap:
            key, _, node = heappop(self._heap)
            if key != node.queued_key:
                continue
            node.queued_key = None
            if node.lock_ref or node.live or not node.resident or node.parent is None:
                continue
            if self._policy.key(node) == key:
                return node
            self.offer(node)
        return None

    def rebuild(self, nodes: Iterable[TreeNode], policy: EvictionPolicy | None = None) -> None:
        """Enter exactly these leaves, by a new policy where one is given. O(nodes)."""
        self._policy = policy or self._policy
        self._heap.clear()
        for node in nodes:
            leaf = not (node.lock_ref or node.live or not node.resident)
            node.queued_key = self._policy.key(node) if leaf else None
            if node.queued_key is not None:
                self._heap.append((node.queued_key, node.id, node))
        heapify(self._heap)

    def is_bloated(self, node_count: int) -> bool:
        """Whether most entries no longer count, so that a rebuild pays."""
        return len(self._heap) > 2 * node_count + _SPARE_ENTRIES
