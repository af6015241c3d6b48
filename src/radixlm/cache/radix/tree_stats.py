"""Records of a tree: totals, when tokens were last used, and which nodes changed."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import takewhile

import numpy as np

from radixlm.cache.radix.node import TOKEN_BYTES, TreeNode, upward
from radixlm.cache.radix.observer import TreeObserver
from radixlm.core.keys import Slots
from radixlm.core.misses import POOL_SCALES, MissReason
from radixlm.core.reports import Tally

_BUCKETS = 40
MAX_CHANGES = 50_000
# Epochs that a pool's worth of tokens is counted in: the resolution of distances.
_EPOCHS_IN_POOL = 64
_MOST_EPOCHS = 1_280


class Histogram:
    """Tally of non-negative integers by powers of two: 0, 1, 2-3, 4-7, 8-15, ..."""

    __slots__ = ("_counts", "_total")

    def __init__(self) -> None:
        self._counts = [0] * _BUCKETS
        self._total = 0

    def add(self, value: int) -> None:
        bits = value.bit_length()
        self._counts[bits if bits < _BUCKETS else -1] += 1
        self._total += value

    def tally(self) -> Tally:
        """The counts so far; a copy."""
        return Tally(tuple(self._counts), self._total)


@dataclass(slots=True)
class TreeStats:
    """Totals since the tree was made, in nodes or tokens; `leaves` as they are now.

    matched_tokens: found when a match was locked. revived_tokens: ghosts that became resident.
    reuse_age: when a prefix was found, how many uses of the tree lay since its last one.
    hits_at_eviction: how often a leaf had been found when tokens of it were evicted.
    match_depth: when a prefix was found, how many nodes it runs through.
    leaves: nodes without children, ghosts and empty roots too.
    endings: why matches ended where they did; leases that were acquired, by reason.
    """

    matches: int = 0
    matched_tokens: int = 0
    inserts: int = 0
    inserted_tokens: int = 0
    revived_tokens: int = 0
    splits: int = 0
    merges: int = 0
    evictions: int = 0
    evicted_tokens: int = 0
    forgotten_tokens: int = 0
    leaves: int = 0
    reuse_age: Histogram = field(default_factory=Histogram)
    hits_at_eviction: Histogram = field(default_factory=Histogram)
    match_depth: Histogram = field(default_factory=Histogram)
    endings: Counter[MissReason] = field(default_factory=Counter)

    def matched(self, n_tokens: int, age: int, depth: int) -> None:
        """A match was locked."""
        self.matches += 1
        if n_tokens:
            self.matched_tokens += n_tokens
            self.reuse_age.add(age)
            self.match_depth.add(depth)

    def evicted(self, n_tokens: int, hits: int) -> None:
        """Tokens were taken off a leaf that had been found so often."""
        self.evictions += 1
        self.evicted_tokens += n_tokens
        self.hits_at_eviction.add(hits)


class Changes(TreeObserver):
    """Nodes that changed or left the tree: cheap to write, sorted out when it is read.

    It is enough to note the lowest node of a path that changed: all above it count as changed, too.
    removed: ids of nodes that are gone. lost: there were too many; pictures must be made anew.
    """

    def __init__(self) -> None:
        self._touched: set[TreeNode] = set()
        self.removed: list[int] = []
        self.lost = False

    def __bool__(self) -> bool:
        return bool(self._touched or self.removed or self.lost)

    def changed(self, node: TreeNode) -> None:
        self._touched.add(node)
        self._bound()

    def left(self, node: TreeNode) -> None:
        self._touched.discard(node)
        self.removed.append(node.id)
        self._bound()

    def matches_changed(self, slots: Slots, nodes: Iterable[TreeNode]) -> None:
        """O(resident tokens)."""
        moved = np.zeros(int(slots.max(initial=0)) + 1, dtype=np.bool_)
        moved[slots] = True
        for node in nodes:
            if node.resident and moved[node.slots[node.slots < moved.size]].any():
                self.changed(node)

    def take(self) -> Changes:
        """Take what was noted until now; it begins anew."""
        taken = Changes()
        taken._touched, taken.removed, taken.lost = self._touched, self.removed, self.lost
        self._touched, self.removed, self.lost = set(), [], False
        return taken

    def touched(self) -> list[TreeNode]:
        """Nodes that may have changed, parents first, in one order: it decides who finds room."""
        paths: set[TreeNode] = set()
        for node in self._touched:
            paths.update(takewhile(lambda at: at not in paths, upward(node)))
        return sorted(paths, key=lambda node: (node.end, node.id))

    def _bound(self) -> None:
        if len(self._touched) + len(self.removed) > MAX_CHANGES:
            self._touched.clear()
            self.removed.clear()
            self.lost = True


class Reuse(TreeObserver):
    """Known tokens that no lock holds, by when they were last used: what other pools would hold.

    Under LRU a pool of n tokens holds the n that were used last. So a token is found in it when
    fewer than n others were used since, which can be counted whatever the real pool's size is, for
    as long as the evicted ones are remembered as ghosts.

        use     0        40           95      120          the tree's counter
                | epoch  | epoch      | epoch | epoch ...  each a small share of the pool
        tokens    310      95           402     57         resident ones and ghosts

    Tokens are the newer the later their epoch; within one, half of the others count as newer. O(log
    epochs) a change. A tenth of the epochs would be enough for the ghosts that are kept; they are
    joined where there are too many.
    """

    def __init__(self, capacity: int, page_size: int = 1) -> None:
        self._sizes = [int(scale * capacity) for scale in POOL_SCALES]
        self._width = max(capacity // _EPOCHS_IN_POOL, 1)
        self._page = page_size
        self._newest = 0
        self.begins = [0]
        self.tokens = [0]

    def asked(self, node: TreeNode, _use: int) -> None:
        self.locking(node)

    def locking(self, node: TreeNode) -> None:
        at: TreeNode | None = node
        while at is not None and not at.lock_ref:
            self.leave(at.last_used, len(at.edge) // TOKEN_BYTES)
            at = at.parent

    def unlocking(self, node: TreeNode, use: int | None, _hint: int) -> None:
        at: TreeNode | None = node
        while at is not None and at.lock_ref == 1:
            self.enter(at.last_used if use is None else use, len(at.edge) // TOKEN_BYTES)
            at = at.parent

    def made(self, leaf: TreeNode) -> None:
        self.grown(leaf, len(leaf))

    def grown(self, leaf: TreeNode, n_tokens: int) -> None:
        if not leaf.lock_ref:
            self.enter(leaf.last_used, n_tokens)

    def forgotten(self, node: TreeNode, n_tokens: int) -> None:
        self.leave(node.last_used, n_tokens)

    def enter(self, use: int, n_tokens: int) -> None:
        """Count tokens that are under no lock now, and were last used at `use`."""
        if use > self._newest:  # an epoch that begins earlier would take over what is in the last
            self._newest = use
            if self.tokens[-1] >= self._width:
                self.begins.append(use)
                self.tokens.append(0)
                if len(self.begins) > _MOST_EPOCHS:
                    self._join()
        self.tokens[self._epoch(use)] += n_tokens

    def leave(self, use: int, n_tokens: int) -> None:
        """Uncount tokens, last used at `use`, that are locked now, or forgotten."""
        self.tokens[self._epoch(use)] -= n_tokens

    def expected(self, node: TreeNode | None, length: int, in_use: int) -> tuple[int, ...]:
        """The tokens of a prompt that a pool of each of POOL_SCALES would hold.

        node, length: where what is known of the prompt ends, ghosts included, and after how many
        tokens. in_use: tokens that running requests hold, which stand before all others.
        O(epochs + nodes on the path).
        """
        sizes = self._sizes
        if (
            node is None
            or not length
            or node.lock_ref
            # All that was used since, itself included, has room in the smallest.
            or sum(self.tokens[self._epoch(node.last_used) :]) <= sizes[0] - in_use
        ):
            return (length - length % self._page,) * len(sizes)
        path = []
        while node is not None and not node.lock_ref and node.parent is not None:
            path.append(node)
            node = node.parent
        # What is locked is there, however small the pool.
        there = 0 if node is None else min(node.end, length)
        held: list[int] = []
        while path and len(held) < len(sizes):
            epoch = self._epoch(path[-1].last_used)
            others, start = self.tokens[epoch], there
            while path and path[-1].last_used >= self.begins[epoch]:
                node = path.pop()
                others -= len(node.edge) // TOKEN_BYTES
                there = min(node.end, length)
            newer = in_use + sum(self.tokens[epoch + 1 :]) + others // 2
            # The sizes ascend: where one holds all of this part, so do those that follow.
            while len(held) < len(sizes) and sizes[len(held)] < newer + there - start:
                held.append(start + max(sizes[len(held)] - newer, 0))
        held += [there] * (len(sizes) - len(held))
        return tuple([tokens - tokens % self._page for tokens in held])

    def _epoch(self, use: int) -> int:
        """The epoch that a use falls into; most fall into the last."""
        begins = self.begins
        return len(begins) - 1 if use >= begins[-1] else bisect_right(begins, use) - 1

    def _join(self) -> None:
        """Join neighbours that are not larger than one epoch may be."""
        begins, tokens = self.begins[:1], self.tokens[:1]
        for begin, count in zip(self.begins[1:], self.tokens[1:], strict=True):
            if tokens[-1] + count <= self._width:
                tokens[-1] += count
            else:
                begins.append(begin)
                tokens.append(count)
        self.begins, self.tokens = begins, tokens
