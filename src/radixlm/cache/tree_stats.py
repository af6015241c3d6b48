"""What the tree records as it goes: totals always, changed nodes while somebody watches."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from itertools import takewhile

from radixlm.cache.node import TreeNode, upward
from radixlm.core.misses import MissReason
from radixlm.core.reports import Tally

_BUCKETS = 40
MAX_CHANGES = 50_000


class Histogram:
    """Tally of non-negative integers by powers of two: 0, 1, 2-3, 4-7, 8-15, ...

    >>> ages = Histogram()
    >>> ages.add(0); ages.add(5); ages.add(7)
    >>> ages.buckets()
    ((0, 1), (4, 2))
    """

    __slots__ = ("_counts", "_total")

    def __init__(self) -> None:
        self._counts = [0] * _BUCKETS
        self._total = 0

    def add(self, value: int) -> None:
        bits = value.bit_length()
        self._counts[bits if bits < _BUCKETS else -1] += 1
        self._total += value

    def tally(self) -> Tally:
        """What was counted so far; a copy."""
        return Tally(tuple(self._counts), self._total)

    def buckets(self) -> tuple[tuple[int, int], ...]:
        """(smallest value, count) of every bucket that is not empty."""
        return tuple((1 << bits >> 1, count) for bits, count in enumerate(self._counts) if count)


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


class Changes:
    """Nodes that changed or left the tree: cheap to write, sorted out when it is read.

    It is enough to note the lowest node of a path that changed: all above it count as changed, too.
    lost: there were too many; pictures must be made anew.
    """

    def __init__(self) -> None:
        self._touched: set[TreeNode] = set()
        self._removed: list[int] = []
        self.lost = False

    def __bool__(self) -> bool:
        return bool(self._touched or self._removed or self.lost)

    def touch(self, node: TreeNode) -> None:
        self._touched.add(node)
        self._bound()

    def remove(self, node: TreeNode) -> None:
        self._touched.discard(node)
        self._removed.append(node.id)
        self._bound()

    def removed(self) -> list[int]:
        """Ids of nodes that are gone."""
        return self._removed

    def touched(self) -> list[TreeNode]:
        """Every node that may have changed and is still there, parents first; always in the same
        order, since it decides which of them find room in a picture.
        """
        paths: set[TreeNode] = set()
        for node in self._touched:
            paths.update(takewhile(lambda at: at not in paths, upward(node)))
        return sorted(paths, key=_place)

    def _bound(self) -> None:
        if len(self._touched) + len(self._removed) > MAX_CHANGES:
            self._touched.clear()
            self._removed.clear()
            self.lost = True


def _place(node: TreeNode) -> tuple[int, int]:
    return node.end, node.id
