"""A running request's hold on the cache."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable
from itertools import takewhile
from typing import Any, Protocol

import numpy as np

from radixlm.cache.components.component import Component, ComponentHold
from radixlm.cache.endings import Ending
from radixlm.cache.radix.allocator import split_runs
from radixlm.cache.radix.node import (
    NO_SLOTS,
    Inserted,
    Match,
    TreeNode,
    copy_slots,
    path_sizes,
    path_slots,
    upward,
)
from radixlm.cache.radix.tree import RadixTree
from radixlm.core.batch import Extent, Remap, Segment
from radixlm.core.clock import Clock
from radixlm.core.errors import CacheError, LeaseClosedError
from radixlm.core.keys import Key, Slots
from radixlm.core.misses import MissReason, MissReport
from radixlm.core.request import Hint


class Keeper(Protocol):
    """The cache, as a lease sees it."""

    page_size: int
    enabled: bool
    laid_aside: int
    tree: RadixTree
    clock: Clock
    components: tuple[Component, ...]

    def round_up(self, n_tokens: int) -> int: ...
    def round_down(self, n_tokens: int) -> int: ...
    def take_private(self, lease: Lease, n_slots: int, ahead: int) -> Slots | None: ...
    def take_free(self, lease: Lease, n_slots: int) -> Slots | None: ...
    def insert(self, lease: Lease, upto: int) -> Inserted: ...
    def give_back(self, slots: Slots) -> None: ...
    def drop(self, lease: Lease, *, used: bool) -> None: ...


class Lease:
    """A running request's hold on the cache: its locked path and its private slots.

        tokens    0            cached        committed       length      allocated
                  | found at acquire | committed | private ... | reserved  )
                  | <----- in the tree, locked -----> | <- the lease's own -> |

    key: the tokens, prompt first; it may be a longer buffer that the caller fills as tokens come.
    node: where the committed tokens end. reserve: slots in whole pages, for the next tokens, so
    that they lie in long runs; it can be taken back. known: tokens that had been computed before it
    was acquired, wherever they were by then. expected: tokens that pools of POOL_SCALES
    times the size would have had cached, or host memory and the disk. hint: what is known
    of what comes after it; set by its owner. holds: what it has of each of the cache's components,
    in their order; set by the cache.
    """

    def __init__(
        self,
        keeper: Keeper,
        key: Key,
        node: TreeNode,
        ending: Ending | None,
        wanted: int,
        priority: int = 0,
        known: int = 0,
        expected: tuple[int, ...] = (),
    ) -> None:
        self.key = key
        self.wanted = wanted
        self.priority = priority
        self.known = known
        self.expected = expected
        self.cached = self.committed = self.length = node.end
        self._keeper = keeper
        self._ending = ending
        self._acquired_at = keeper.clock.now()
        self.node = node
        self._allocated = node.end
        self.reserve = self._lent = 0
        self._slots: Slots = np.empty(keeper.round_up(max(key.size, node.end)), dtype=np.int32)
        copy_slots(node, self._slots)
        self._tail: list[Extent] = []
        self._path: tuple[int, tuple[Segment, ...]] = (-1, ())
        self.closed = False
        self.hint = Hint.NONE
        self.holds: tuple[ComponentHold, ...] = ()
        self._marks: list[int] = []

    @property
    def slots(self) -> Slots:
        """(length,) where each token's keys and values lie; a view, valid until the next call."""
        return self._slots[: self.length]

    def why(self) -> MissReport:
        """Explain why no more was found when the lease was acquired; the tree as it was then."""
        if self._ending is None:
            return MissReport(self.wanted, 0, MissReason.DISABLED, 0)
        return self._ending.report(self._acquired_at)

    def slots_needed(self, n_tokens: int) -> int:
        """How many more slots `n_tokens` more tokens take, what is reserved left out."""
        keeper = self._keeper
        return keeper.round_up(self.length + n_tokens) - keeper.round_up(self.length)

    def block_table(self) -> Slots:
        """(pages,) the page of every page_size tokens, as a paged attention kernel wants it."""
        size = self._keeper.page_size
        return self._slots[: self.length : size] // size

    @property
    def private_size(self) -> int:
        """Slots that only this lease uses, the reserved ones included."""
        return self._allocated - self.committed

    def takes(self, component: int, n_tokens: int) -> int:
        """Slots of the cache's n-th component that `n_tokens` more tokens take."""
        first, stop = (self._keeper.round_up(self.length + more) for more in (0, n_tokens))
        return self.holds[component].takes(first, stop)

    def private_of(self, component: int) -> int:
        """Slots of the n-th component that only this lease uses."""
        return self.holds[component].private(self._keeper.round_up(self.length), self.committed)

    def locks_of(self, component: int) -> Slots:
        """The slots that it locks of the n-th component, see Component.needs."""
        return self.holds[component].locks(self.committed, self._slots)

    def still_takes(self, component: int, total: int) -> int:
        """Slots of the n-th component that it takes until it has `total` tokens."""
        whole = self._keeper.round_up(self.length)
        return self.holds[component].still_takes(total, whole, self.cached)

    @property
    def own_size(self) -> int:
        """The slots that its release gives back: private slots, and nodes that it alone locks.
        O(path).
        """
        alone = takewhile(lambda node: node.lock_ref == 1, upward(self.node))
        return self.private_size + sum(node.resident for node in alone)

    def extend(self, n_tokens: int, *, lent: bool = False) -> Slots | None:
        """(n_tokens,) slots for the next tokens, evicting what is needed, or None: nothing has
        changed then. lent: slots that are its reserve or free, until `shrink`; nothing is evicted.
        Raises LeaseClosedError, CacheError.
        """
        self._check_open()
        if n_tokens < 1:
            raise CacheError(f"a lease is extended by at least one token, got {n_tokens}")
        end, first = self.length + n_tokens, self._keeper.round_up(self.length)
        stop = self._keeper.round_up(end)
        # A lease for copies has no holds.
        for component, hold in zip(self._keeper.components, self.holds, strict=False):
            room = component.usage().free if lent else component.available
            if hold.takes(first, stop) > room:
                return None
        missing = stop - self._allocated
        if missing > 0:
            if lent:
                more = self._keeper.take_free(self, missing)
            else:
                more = self._keeper.take_private(self, missing, max(0, self.key.size - end))
            if more is None:
                return None
            self._append(more)
            self._lent += missing * lent
        start, self.length = self.length, end
        self._count_reserve()
        for hold in self.holds:
            hold.extend(first, stop, self._slots)
        return self._slots[start:end]

    def shrink(self, length: int) -> None:
        """Keep the slots of the first `length` tokens, which are all that is committed at least:
        those of the others are free again, or reserved, as before they were lent. Raises
        LeaseClosedError, CacheError.
        """
        self._check_open()
        if not self.committed <= length <= self.length:
            raise CacheError(f"{length} tokens of {self.committed} committed, {self.length} in all")
        first, stop = self._keeper.round_up(length), self._keeper.round_up(self.length)
        for hold in self.holds if length < self.length else ():
            hold.shrink(length, first, stop, self._slots)
        self.length = length
        self._count_reserve()
        self._give_back(min(self._lent, self.reserve))
        self._lent = 0

    def spare(self, count: int) -> int:
        """Prepare to shrink after the next step, by which there are `count` tokens more, to any
        number before these; returns of how many there is room for that. 0: undo it.
        """
        return min((hold.spare(self.length, count) for hold in self.holds), default=count)

    @property
    def lost(self) -> bool:
        """Whether it can not be extended any more, since what it shrank had changed its state."""
        return bool(self.holds) and any(hold.lost for hold in self.holds)

    def pass_by(self, computed: int) -> None:
        """Give up what no token after the `computed` ones needs of the components."""
        for hold in self.holds:
            hold.pass_by(computed, self.committed, self._slots)

    def mark(self, end: int, *, since: int = 0, ahead: int | None = None) -> None:
        """Have the step that computes the first `end` tokens, whole pages that are not committed,
        leave what components keep at ends, so that matches can end there once they are; if there is
        room. since: tokens after the place before. ahead: tokens of the prompt after it, where no
        request is known to go on from there. Raises LeaseClosedError, CacheError.
        """
        self._check_open()
        last = self._marks[-1] if self._marks else self.committed
        if not last < end <= self.length or end != self._keeper.round_down(end):
            raise CacheError(f"no end after {end} tokens: of {last} to {self.length}, in pages")
        self._marks.append(end)
        for hold in self.holds:
            hold.mark(end, since, ahead)

    def checkpoint(self) -> None:
        """Leave what components keep at ends where the lease ends, which is not extended any more.
        Raises LeaseClosedError, and CacheError unless all tokens that have slots are committed.
        """
        self._check_open()
        if self.length != self.committed:
            raise CacheError(f"{self.length} tokens have slots, {self.committed} are committed")
        for hold in self.holds:
            hold.checkpoint(self.node)

    def row_fields(self) -> dict[str, Any]:
        """Fields of its row in the next batch that components know."""
        if not self.holds:  # of most models, for each row of a step
            return {}
        return {name: its for hold in self.holds for name, its in hold.row_fields().items()}

    @property
    def last_slot(self) -> int | None:
        """The last slot that it has, reserved ones included: where more would best follow on."""
        return int(self._slots[self._allocated - 1]) if self._allocated else None

    def give_back_reserve(self) -> None:
        """Free the reserve, for other leases."""
        self._give_back(self.reserve)

    def _give_back(self, n_slots: int) -> None:
        """Free the last of the reserve."""
        if n_slots:
            end = self._allocated - n_slots
            slots = self._slots[end : self._allocated].copy()
            self._tail = self._tail_without(n_slots)
            self._allocated = end
            self._count_reserve()
            self._keeper.give_back(slots)

    def _count_reserve(self) -> None:
        reserve = self._allocated - self._keeper.round_up(self.length)
        self._keeper.laid_aside += reserve - self.reserve
        self.reserve = reserve

    def commit(self, upto: int) -> Remap | None:
        """Put the whole pages of key[:upto], whose keys and values are computed, into the tree.

        Called between steps. Where another request committed the same tokens first, the tree's
        slots win: the duplicates are freed, and the Remap says where these tokens lie now. O(new
        tokens). Raises LeaseClosedError, and CacheError for tokens without slots or not in the key.
        """
        self._check_open()
        if upto > min(self.length, self.key.size):
            raise CacheError(
                f"commit of {upto} tokens: {self.length} have slots, the key has {self.key.size}"
            )
        upto = self._keeper.round_down(upto)
        if upto <= self.committed or not self._keeper.enabled:
            return None
        start = there = self.committed
        ends = [*takewhile(upto.__gt__, self._marks), upto]
        self._marks = self._marks[bisect_right(self._marks, upto) :]
        for end in ends:
            there = max(there, self._commit(end))
        self._path = (-1, ())
        self._tail = list(split_runs(self._slots[upto : self._allocated]))
        return Remap(start, self._slots[start:there].copy()) if there > start else None

    def _commit(self, upto: int) -> int:
        """Commit tokens that all enter the tree, which ends with them; how many it had before."""
        inserted, start = self._keeper.insert(self, upto), self.committed
        there, self.node, self.committed = inserted.already_there, inserted.node, upto
        slots = path_slots(self.node, start, there) if there > start else NO_SLOTS
        for hold in self.holds:
            hold.commit(start, self.node, self._slots, slots)
        if there > start:
            self._keeper.give_back(self._slots[start:there].copy())
            self._slots[start:there] = slots
        return there

    def release(self, *, used: bool = True) -> None:
        """Unlock the path, which was `used` just now, and free the private slots. Raises
        LeaseClosedError the second time.
        """
        self._check_open()
        self.closed = True
        self._keeper.laid_aside -= self.reserve
        self._keeper.drop(self, used=used)

    def prefer(self, start: int, first: int, stop: int) -> None:
        """Have tokens from `start` on, none of which is committed, lie in the slots of tokens
        [first, stop), which come after them; theirs move up. Of single pages, without components.
        """
        self._check_open()
        self._slots[start:stop] = np.roll(self._slots[start:stop], stop - first)
        self._tail = list(split_runs(self._slots[self.committed : self._allocated]))

    def segments(self, upto: int | None = None) -> tuple[Segment, ...]:
        """The nodes that hold tokens [0, upto), all if it is None, then the private tail, in token
        order. upto: of more tokens than are committed.
        """
        length = self.length if upto is None else upto
        version = self._keeper.tree.version
        if self._path[0] != version:
            path = [
                Segment(at.id, at.start, at.end, at.extents) for at in upward(self.node) if at.end
            ]
            self._path = (version, tuple(path[::-1]))
        if length == self.committed:
            return self._path[1]
        tail = self._tail_without(self._allocated - length)
        return *self._path[1], Segment(None, self.committed, length, tuple(tail))

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

    def _tail_without(self, n_slots: int) -> list[Extent]:
        """The runs of the private slots, without the last ones."""
        tail, left = [*self._tail], n_slots
        while left and left >= (size := tail[-1].stop - tail[-1].start):
            tail.pop()
            left -= size
        return [*tail[:-1], Extent(tail[-1].start, tail[-1].stop - left)] if left else tail

    def _check_open(self) -> None:
        if self.closed:
            raise LeaseClosedError("this lease was released before")


def left_behind(leases: Iterable[Lease], match: Match) -> int:
    """Evictable tokens that leases, released before, have left and `match` would not lock."""
    locked = _matched(match)
    left = {
        node.id: node.resident
        for lease in leases
        for node, _ in path_sizes(lease.node, lease.node.resident)
        if not node.lock_ref
    }
    return sum(max(0, size - locked.get(name, 0)) for name, size in left.items())


def given_back(leases: Iterable[Lease], match: Match) -> int:
    """Slots that could be had again if these leases were released and `match` were locked."""
    kept = _matched(match)
    freed = 0
    ends: Counter[TreeNode] = Counter()
    for lease in leases:
        freed += lease.private_size - lease.reserve
        ends.update(node for node, _ in path_sizes(lease.node, lease.node.resident))
    for node, count in ends.items():
        if count == node.lock_ref:
            freed += node.resident - kept.get(node.id, 0)
    return freed


def _matched(match: Match) -> dict[int, int]:
    """How many tokens of each node are matched, by its id."""
    return {node.id: length for node, length in path_sizes(match.node, match.offset)}
