"""A token's second memory: its slot for the layers that see a window only."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from radixlm.cache.components.component import Component, CutMatch
from radixlm.cache.radix.allocator import SlotAllocator
from radixlm.cache.radix.conservation import Usage
from radixlm.cache.radix.node import NO_SLOTS, Match, TreeNode, path_slots
from radixlm.cache.radix.tree import RadixTree
from radixlm.core.batch import WindowMoves
from radixlm.core.errors import CacheError, PinError
from radixlm.core.keys import Slots
from radixlm.core.misses import MissReason

NONE = -1
# What a lease keeps beyond its window, and gives up in one go: of a window 1 / this, at most.
_SHARES, _MOST_SPARE = 32, 64
# Eviction looks at all slots, so it takes at least this share of them.
_QUANTA = 64
# What goes first: what no match is likely to end at, then what one may, then what one will.
INSIDE, PASSED, END = range(3)
_LEVEL = 1 << 60  # in a rank, above the time


class WindowSize(NamedTuple):
    """window: tokens that a token sees, itself included. capacity: slots. step: most tokens that a
    step computes. block: tokens that are stored together in a place beside the pool, 1 without one.
    """

    window: int
    capacity: int
    step: int
    block: int = 1

    @classmethod
    def of(
        cls, window: int, ratio: float, n_slots: int, page_size: int, step: int, block: int = 1
    ) -> WindowSize | None:
        """The size for a cache of `n_slots`: `ratio` of them, but enough for one request and one
        step. None: there is nothing to save. The largest ratio, 1, means that.
        """
        size = cls(window, 0, step, block)
        capacity = max(int(ratio * n_slots), size.least(page_size))
        capacity -= capacity % page_size
        fits = capacity < n_slots - n_slots % page_size
        return size._replace(capacity=capacity) if fits else None

    @property
    def spare(self) -> int:
        """The tokens that a lease keeps beyond its window: a match may end a few tokens earlier."""
        return min(self.window // _SHARES, _MOST_SPARE)

    def span(self, page_size: int) -> int:
        """The most tokens that a running request holds between two steps."""
        beyond = self.spare if self.block == 1 else max(self.spare, 2 * self.block + page_size)
        return self.window + self.spare + beyond + 2 * page_size

    def least(self, page_size: int) -> int:
        """Slots with which a request that is alone can always go on, in whole pages."""
        least = self.span(page_size) + self.step + page_size
        return -(-least // page_size) * page_size


class WindowSlots(Component):
    """The tokens of a cache that have keys and values in window layers. It belongs to a token's
    slot:

        node        [ t0 t1 t2 t3 t4 t5 ]
        slots       [ 17 18 19 40 41 42 ]       of the other layers, as the tree has them
        of[slots]   [  .  .  .  3  4  5 ]       t0 to t2 are a tombstone: no window slot any more

    so that nodes split, join, grow and shrink as ever, and a model without windows pays nothing.

    A match ends at the deepest token before which a whole window is there (`cut`). A lease locks
    just that window and moves its locks along as it computes (see WindowHold). What it leaves
    stays, unlocked, until room is needed. What was left longest ago goes first, but of all first
    what no match has ended at or is likely to. Next are ends that requests went on from: of their
    prompts, and of matches. Last are ends of requests that are over, and ends that two matches
    had. Ends go as a whole, since a part of a window is of no use.

    of: (slots of the cache,) int32, NONE without. Whole pages are given and freed. Used by one
    thread, the cache's.
    """

    def __init__(self, size: WindowSize, n_slots: int, tree: RadixTree) -> None:
        """Raises SlotError for a capacity that is not whole pages."""
        super().__init__(size.capacity)
        self.size = size
        self.page_size = tree.page_size
        self.span = size.span(tree.page_size)
        self.of: Slots = np.full(n_slots, NONE, dtype=np.int32)
        self.evicted_tokens = 0
        self._tree = tree
        self._allocator = SlotAllocator(size.capacity, tree.page_size)
        self._owner: Slots = np.full(size.capacity, NONE, dtype=np.int32)
        self._copies: Slots = np.zeros(size.capacity, dtype=np.int32)
        self._cached = np.zeros(size.capacity, dtype=np.bool_)
        self._found = np.zeros(size.capacity, dtype=np.bool_)
        self._rank: npt.NDArray[np.int64] = np.zeros(size.capacity, dtype=np.int64)
        self._uses = 0
        # Slots of the cache whose tokens have another window slot, each once.
        self._moves: list[Slots] = []
        self._moved = np.zeros(n_slots, dtype=np.bool_)

    @property
    def free(self) -> int:
        return self._allocator.free_size

    @property
    def evictable(self) -> int:
        return self.available - self.free

    @property
    def pin_budget(self) -> int:
        return self.capacity - self.size.least(self.page_size)

    def usage(self) -> Usage:
        return Usage(self.free, self.private, self.locked, self.evictable)

    def figures(self) -> dict[str, Any]:
        usage = {f"swa_{name}": count for name, count in self.usage()._asdict().items()}
        return usage | {
            "swa_capacity": self.capacity,
            "swa_evicted_tokens": self.evicted_tokens,
        }

    def resident(self, slots: Slots) -> npt.NDArray[np.bool_]:
        """(slots,) which of these have a window slot."""
        return self.of[slots] >= 0

    def first_seen(self, position: int) -> int:
        """The first token, of a whole page, that the token at `position` sees."""
        first = max(position - self.size.window + 1, 0)
        return first - first % self.page_size

    @property
    def reach(self) -> int:
        """Tokens before an end that a match there, or of a page less, needs."""
        return self.size.window - 1 + self.page_size

    def first_restored(self, end: int) -> int:
        """The first of the tokens read up to `end` that needs a window slot: a request that goes on
        from there may have to compute the last page.
        """
        return self.first_seen(max(end - self.page_size, 0))

    def behind(self, position: int) -> int:
        """The first token that a lease keeps when `position` tokens are computed. With places
        beside the pool also the blocks that who goes on from the last whole one needs, so that they
        can be stored.
        """
        kept = self.first_seen(max(position - self.size.spare, 0))
        if (block := self.size.block) > 1:
            first = self.first_restored(position - position % block)
            kept = min(kept, first - first % block)
        return kept

    # Matches

    def cut(self, match: Match) -> Match:
        """The longest part of a match whose last window is there. O(window), else O(length)."""
        end = match.length
        if self.resident(self.needs(match)).all():
            return match
        gone = np.flatnonzero(~self.resident(match.slots()))
        starts, ends = np.append(0, gone + 1), np.append(gone, end)
        seen = np.maximum(ends - self.size.window + 1, 0)
        end = int(ends[starts <= seen - seen % self.page_size][-1])
        node = match.node
        while node is not None and node.parent is not None and node.start >= end:
            node = node.parent
        offset = 0 if node is None else end - node.start
        found = end, node, offset, match.namespace, match.version
        return CutMatch(*found, match.agreed, MissReason.WINDOW_EVICTED)

    def needs(self, match: Match) -> Slots:
        """The slots of the last tokens of a match, those that the next token sees."""
        if match.node is None or not match.length:
            return NO_SLOTS
        return path_slots(match.node, self.first_seen(match.length), match.length)

    # What leases do, see WindowHold

    def give(self, slots: Slots, before: int | None) -> None:
        """Private window slots for a lease's new slots, whole pages, by eviction if need be; near
        that of the slot `before`. Raises SlotError for too few.
        """
        short = slots.size - self.free
        if short > 0:
            self.evict(short)
        after = None if before is None or self.of[before] < 0 else int(self.of[before])
        mine = self._allocator.allocate(slots.size // self.page_size, after=after)
        self.of[slots] = mine
        self._owner[mine] = slots
        self.private += slots.size
        self._note_moves(slots)

    def enter(self, slots: Slots) -> None:
        """Make what was a lease's the tree's, locked by the lease."""
        mine = self.of[slots]
        self._cached[mine] = True
        self.locks[mine] = 1
        self._rank[mine] = 0
        self._found[mine] = False
        self.private -= mine.size
        self.locked += mine.size

    def replace(self, mine: Slots, theirs: Slots, node: TreeNode) -> None:
        """The tree had a lease's tokens before, on the path to a node, in slots of its own: they
        are locked, and get the lease's window slots where they have none.
        """
        there = self.resident(theirs)
        self.lock(theirs[there])
        mine, theirs = mine[~there], theirs[~there]
        if not mine.size:
            return
        slots = self.of[mine]
        self.of[mine], self.of[theirs] = NONE, slots
        self._owner[slots] = theirs
        self.enter(theirs)
        self._note_moves(theirs)
        self._tree.changed(node)

    def own(self, slots: Slots) -> Slots:
        mine: Slots = self.of[slots]
        return mine

    def unlock(self, slots: Slots, *, used: bool = True, end: bool = True) -> None:
        """Undo a lock. used: until now. end: matches are likely to end at the last of these."""
        mine = self._uncopied(slots)
        if not used:
            return
        pages = 0 if end else np.arange(mine.size) // self.page_size
        level = np.maximum(self._rank[mine] // _LEVEL, END if end else INSIDE)
        self._rank[mine] = level * _LEVEL + self._uses + pages
        self._uses += 1 if end else -(-mine.size // self.page_size)

    def go_on_from(self, slots: Slots, *, found: bool) -> None:
        """Undo a lock on an end that a request has gone on from. found: a match ended there."""
        mine = self._uncopied(slots)
        if found:
            level = np.where(self._found[mine], END, PASSED)
            self._found[self.of[slots]] = True
        else:
            level = np.maximum(self._rank[mine] // _LEVEL, PASSED)
        self._rank[mine] = level * _LEVEL + self._uses
        self._uses += 1

    def _uncopied(self, slots: Slots) -> Slots:
        """Undo a lock; the window slots that have none now but those of copies."""
        mine = self._unlock(slots)
        left: Slots = mine[self.locks[mine] == self._copies[mine]]
        return left

    def begin_copy(self, slots: Slots, block_tokens: int) -> Slots:
        """(slots,) the window slots of blocks to be copied to a place beside the pool, NONE in a
        block in which a token has none. They are locked; what goes first does not change by it, nor
        what locks that end meanwhile say of that.
        """
        mine: Slots = self.of[slots]
        whole = (mine.reshape(-1, block_tokens) >= 0).all(axis=1)
        mine[~whole.repeat(block_tokens)] = NONE
        self.lock(slots[mine >= 0])
        self._copies[mine[mine >= 0]] += 1
        return mine

    def end_copy(self, mine: Slots) -> None:
        """Undo `begin_copy`, which gave these."""
        mine = mine[mine >= 0]
        self._copies[mine] -= 1
        self._unlock(self._owner[mine])

    def drop(self, slots: Slots) -> None:
        """Drop slots that are free now, or whose tokens are out of sight: private, or unlocked."""
        mine = self.of[slots]
        mine = mine[mine >= 0]
        if not mine.size:
            return
        if self.locks[mine].any():
            raise CacheError("window slots are freed that are locked")
        self.private -= int(np.count_nonzero(~self._cached[mine]))
        self._free(mine)

    def too_many_pinned(self, own: int, held: int) -> PinError:
        return PinError(
            f"its last window of {own} tokens would make {held} pinned ones of windows, the budget "
            f"is {self.pin_budget} (--swa-full-tokens-ratio, --kv-tokens)"
        )

    # Room

    def takes(self, n_tokens: int) -> int:
        return min(n_tokens, self.span + self.size.step)

    def evict(self, n_tokens: int) -> None:
        """Make tombstones of at least `n_tokens`. O(capacity). Raises CacheError for too many."""
        if n_tokens > self.evictable:
            raise CacheError(f"{n_tokens} window slots to evict, {self.evictable} are evictable")
        most = max(n_tokens, self.capacity // _QUANTA)
        mine = np.flatnonzero(self._cached & (self.locks == 0))
        ranks = self._rank[mine]
        last = np.partition(ranks, min(most, mine.size) - 1)[min(most, mine.size) - 1]
        gone = mine[ranks <= last].astype(np.int32)
        owners = self._owner[gone]
        self.evicted_tokens += gone.size
        self._free(gone)
        self._tree.matches_changed(owners)

    def take_moves(self) -> dict[str, Any]:
        """Field `windows` of a batch, where there is something to move."""
        slots = np.concatenate([NO_SLOTS, *self._moves])
        self._moves.clear()
        self._moved[slots] = False
        slots = slots[self.resident(slots)]
        return {"windows": WindowMoves(slots, self.of[slots])} if slots.size else {}

    def _note_moves(self, slots: Slots) -> None:
        """Tokens have another window slot. There may be no step for long, while blocks are read."""
        fresh = slots[~self._moved[slots]]
        if fresh.size:
            self._moved[fresh] = True
            self._moves.append(fresh)

    def _free(self, mine: Slots) -> None:
        self.of[self._owner[mine]] = NONE
        self._owner[mine] = NONE
        self._cached[mine] = self._found[mine] = False
        self._rank[mine] = 0
        self._allocator.free(mine)
