"""The radix cache: the only door to the slots, and the lease that a running request holds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Iterator
from typing import NamedTuple

import numpy as np

from radixlm.cache.allocator import SlotAllocator, split_runs
from radixlm.cache.checks import check_slots, require
from radixlm.cache.node import Match, TreeNode, path_slots
from radixlm.cache.tree import RadixTree
from radixlm.core.batch import Extent, Remap, Segment
from radixlm.core.config import check_page_size
from radixlm.core.errors import CacheError, ConfigError, LeaseClosedError
from radixlm.core.events import EventSink, Inserted, Matched
from radixlm.core.keys import Key, KeyLike, Slots, as_key


class Usage(NamedTuple):
    """Every slot is one of these: free + private + locked + evictable == capacity."""

    free: int
    private: int
    locked: int
    evictable: int


class Lease:
    """A running request's hold on the cache: its locked path and its private slots.

        tokens    0            cached        committed       length      allocated
                  | found at acquire | committed | private ... | reserved  )
                  | <----- in the tree, locked -----> | <- the lease's own -> |

    key: the tokens, prompt first; it may be a longer buffer that the caller fills as tokens come.
    cached: tokens that were found at acquire. committed: tokens whose slots belong to the tree.
    length: tokens that have slots; the rest of the last page is reserved for the next ones.
    """

    def __init__(self, cache: RadixCache, key: Key, node: TreeNode) -> None:
        self.key = key
        self.cached = self.committed = self.length = node.end
        self._cache = cache
        self._node = node
        self._allocated = node.end
        self._slots: Slots = np.empty(cache.round_up(max(key.size, node.end)), dtype=np.int32)
        self._slots[: node.end] = path_slots(node, 0, node.end)
        self._tail: list[Extent] = []
        self._path: tuple[int, tuple[Segment, ...]] = (-1, ())
        self.closed = False

    @property
    def slots(self) -> Slots:
        """(length,) where each token's keys and values lie; a view, valid until the next call."""
        return self._slots[: self.length]

    @property
    def private_size(self) -> int:
        """Slots that only this lease uses, the reserved ones included."""
        return self._allocated - self.committed

    def extend(self, n_tokens: int) -> Slots | None:
        """Give the next `n_tokens` slots, evicting leaf-first only what is needed.

        Returns (n_tokens,) slots, or None when free and evictable slots do not suffice; then
        nothing has changed. Raises LeaseClosedError, CacheError for a count below 1.
        """
        self._check_open()
        if n_tokens < 1:
            raise CacheError(f"a lease is extended by at least one token, got {n_tokens}")
        end = self.length + n_tokens
        missing = self._cache.round_up(end) - self._allocated
        if missing > 0:
            more = self._cache.take_private(missing)
            if more is None:
                return None
            self._append(more)
        start, self.length = self.length, end
        return self._slots[start:end]

    def commit(self, upto: int) -> Remap | None:
        """Put the tokens key[:upto], whose keys and values are computed, into the tree.

        Called between steps. Whole pages only. Where another request committed the same tokens
        first, the tree's slots win: the duplicates return to free, and the Remap says where these
        tokens lie now. O(new tokens). Raises LeaseClosedError, and CacheError for tokens that
        have no slots or are not in the key.
        """
        self._check_open()
        if upto > min(self.length, self.key.size):
            raise CacheError(
                f"commit of {upto} tokens: {self.length} have slots, the key has {self.key.size}"
            )
        upto = self._cache.round_down(upto)
        if upto <= self.committed or not self._cache.enabled:
            return None
        start = self.committed
        there, self._node = self._cache.insert(self, upto)
        self._path = (-1, ())
        self.committed = upto
        remap = None
        if there > start:
            slots = path_slots(self._node, start, there)
            self._cache.give_back(self._slots[start:there].copy())
            self._slots[start:there] = slots
            remap = Remap(start, slots)
        self._tail = list(split_runs(self._slots[upto : self._allocated]))
        return remap

    def release(self) -> None:
        """Unlock the path and free the private slots. Raises LeaseClosedError the second time."""
        self._check_open()
        self.closed = True
        self._cache.drop(self)

    def segments(self) -> tuple[Segment, ...]:
        """The nodes that hold tokens [0, length), then the private tail, in token order."""
        version = self._cache.version
        if self._path[0] != version:
            self._path = (version, tuple(_path_segments(self._node)))
        if self.length == self.committed:
            return self._path[1]
        return (
            *self._path[1],
            Segment(None, self.committed, self.length, self._tail_extents()),
        )

    @property
    def node(self) -> TreeNode:
        """Where the committed tokens end. For the cache and its tests, not for callers."""
        return self._node

    def private_slots(self) -> Slots:
        """(private_size,) the slots that only this lease uses; a copy."""
        return self._slots[self.committed : self._allocated].copy()

    def _append(self, more: Slots) -> None:
        end = self._allocated + more.size
        if end > self._slots.size:
            grown = np.empty(max(end, 2 * self._slots.size), dtype=np.int32)
            grown[: self._allocated] = self._slots[: self._allocated]
            self._slots = grown
        self._slots[self._allocated : end] = more
        self._allocated = end
        for run in split_runs(more):
            if self._tail and self._tail[-1].stop == run.start:
                self._tail[-1] = Extent(self._tail[-1].start, run.stop)
            else:
                self._tail.append(run)

    def _tail_extents(self) -> tuple[Extent, ...]:
        reserved = self._allocated - self.length
        if not reserved:
            return tuple(self._tail)
        last = self._tail[-1]
        return (*self._tail[:-1], Extent(last.start, last.stop - reserved))

    def _check_open(self) -> None:
        if self.closed:
            raise LeaseClosedError("this lease was released before")


class RadixCache:
    """Which slots hold which tokens. Every slot is free, private, locked or evictable:

        FREE -> PRIVATE (a lease's) -> CACHED (the tree's: locked or evictable) -> FREE

    Leases find the longest cached prefix, get slots for the rest and commit what they computed,
    while they run. Used by one thread.

    >>> cache = RadixCache(capacity=100)
    >>> first = cache.acquire([1, 2, 3, 4])
    >>> slots = first.extend(4 - first.cached)      # compute keys and values into these
    >>> first.commit(4)
    >>> first.release()
    >>> second = cache.acquire([1, 2, 3, 9])
    >>> second.cached
    3
    >>> second.release()
    >>> cache.usage()
    Usage(free=96, private=0, locked=0, evictable=4)
    """

    def __init__(
        self,
        capacity: int,
        page_size: int = 1,
        *,
        enabled: bool = True,
        sink: EventSink | None = None,
    ) -> None:
        check_page_size(page_size)
        if capacity < page_size:
            raise ConfigError(f"a pool of {capacity} slots holds no page of {page_size}")
        self.capacity = capacity - capacity % page_size
        self.page_size = page_size
        self.enabled = enabled
        self._tree = RadixTree(page_size, sink=sink)
        self._allocator = SlotAllocator(self.capacity, page_size)
        self._leases: set[Lease] = set()
        self._private = 0
        self._sink = sink

    @property
    def version(self) -> int:
        """Changes whenever the tree does."""
        return self._tree.version

    @property
    def available(self) -> int:
        """Slots that leases can still get: free and evictable ones."""
        return self._allocator.free_size + self._tree.evictable_size

    @property
    def node_count(self) -> int:
        return self._tree.node_count

    def usage(self) -> Usage:
        return Usage(
            self._allocator.free_size,
            self._private,
            self._tree.protected_size,
            self._tree.evictable_size,
        )

    def match(
        self, key: KeyLike, namespace: Hashable = None, *, max_match: int | None = None
    ) -> Match:
        """What `acquire` would find now; leaves no trace."""
        array = as_key(key)
        limit = array.size - 1 if max_match is None else max_match
        if limit < 1 or not self.enabled:
            return Match(0, None, 0, namespace, self._tree.version)
        return self._tree.match_prefix(array[:limit], namespace)

    def available_after(self, match: Match) -> int:
        """Slots that would be left to get once `match` is locked."""
        return self.available - self._tree.unlocked_on_path(match)

    def acquire(
        self, key: KeyLike, namespace: Hashable = None, *, max_match: int | None = None
    ) -> Lease:
        """Take the longest cached prefix of `key` and lock it.

        max_match: tokens that may be matched; by default all but the last, whose logits are
        wanted. Raises InvalidKeyError.
        """
        array = as_key(key)
        match = self.match(array, namespace, max_match=max_match)
        lease = Lease(self, array, self._tree.inc_lock_ref(match))
        self._leases.add(lease)
        if self._sink is not None:
            self._sink(Matched(array.size if max_match is None else max_match, lease.cached))
        return lease

    def depth_first(self, leases: Iterable[Lease]) -> list[Lease]:
        """Order leases by their place in the tree, so that those below a node are neighbours."""
        return sorted(leases, key=_path_ids)

    def flush(self) -> int:
        """Drop everything that no lease uses; returns how many tokens that were."""
        freed = self._tree.evict(self._tree.evictable_size)
        self._allocator.free(freed)
        return freed.size

    def check(self) -> None:
        """Walk every invariant: the tree's, the conservation law, and that each slot has exactly
        one owner. Raises InvariantError. O(capacity).
        """
        self._tree.check()
        self._allocator.check()
        usage = self.usage()
        require(sum(usage) == self.capacity, f"{usage} does not add up to {self.capacity}")
        private = sum(lease.private_size for lease in self._leases)
        require(private == self._private, f"leases hold {private}, books say {self._private}")
        ends: Counter[TreeNode] = Counter(lease.node for lease in self._leases)
        for node in self._tree.nodes():
            held = ends[node] + sum(child.lock_ref for child in node.children.values())
            require(node.lock_ref == held, f"node {node.id}: {node.lock_ref} locks for {held}")
        for lease in self._leases:
            require(lease.committed == lease.node.end, "a lease's path ends elsewhere")
            path = path_slots(lease.node, 0, lease.committed)
            require(np.array_equal(path, lease.slots[: lease.committed]), "a lease's slots differ")
        check_slots(self.capacity, self._owners())

    def round_up(self, n_tokens: int) -> int:
        """The smallest number of whole pages' slots that holds `n_tokens`."""
        return -(-n_tokens // self.page_size) * self.page_size

    def round_down(self, n_tokens: int) -> int:
        """The tokens of `n_tokens` that fill whole pages."""
        return n_tokens - n_tokens % self.page_size

    def _owners(self) -> Iterator[tuple[str, Slots]]:
        for start, stop in self._allocator.runs():
            yield "the free list", np.arange(start, stop, dtype=np.int32)
        for lease in self._leases:
            yield "a lease", lease.private_slots()
        for node in self._tree.nodes():
            yield f"node {node.id}", node.slots

    # What follows is for leases.

    def take_private(self, n_slots: int) -> Slots | None:
        """Slots in whole pages for a lease, or None."""
        if n_slots > self.available:
            return None
        short = n_slots - self._allocator.free_size
        if short > 0:
            self._allocator.free(self._tree.evict(short))
        self._private += n_slots
        return self._allocator.allocate(n_slots // self.page_size)

    def insert(self, lease: Lease, upto: int) -> tuple[int, TreeNode]:
        """Hand a lease's slots up to `upto` to the tree; the new path is locked before the old
        one is let go. Returns how many tokens the tree had before, and where the path ends now.
        """
        held = lease.node
        there, node = self._tree.insert(lease.key[:upto], lease.slots[:upto], start=held)
        self._tree.move_lock(held, node)
        self._private -= upto - there
        if self._sink is not None:
            self._sink(Inserted(node.id, upto - there, there - lease.committed))
        return there, node

    def give_back(self, slots: Slots) -> None:
        """Free a lease's private slots."""
        self._allocator.free(slots)
        self._private -= slots.size

    def drop(self, lease: Lease) -> None:
        """End a lease."""
        self._leases.remove(lease)
        self.give_back(lease.private_slots())
        self._tree.dec_lock_ref(lease.node)


def _path_segments(node: TreeNode) -> list[Segment]:
    segments = []
    at: TreeNode | None = node
    while at is not None and at.end:
        segments.append(Segment(at.id, at.start, at.end, at.extents))
        at = at.parent
    return segments[::-1]


def _path_ids(lease: Lease) -> list[int]:
    ids = []
    at: TreeNode | None = lease.node
    while at is not None:
        ids.append(at.id)
        at = at.parent
    return ids[::-1]
