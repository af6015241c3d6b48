"""The component of layers with a window, and a lease's hold on its slots."""

from __future__ import annotations

import numpy as np

from radixlm.cache.components.component import ComponentHold
from radixlm.cache.components.window_slots import END, INSIDE, PASSED, WindowSlots
from radixlm.cache.radix.node import TreeNode
from radixlm.core.keys import Slots


class Window(WindowSlots):
    """WindowSlots as a Component."""

    def hold(self, slots: Slots, _node: TreeNode, agreed: int, prompt: int) -> WindowHold:
        return WindowHold(self, slots, agreed, prompt)

    def hold_read(self, slots: Slots, seen: int) -> WindowHold:
        return WindowHold(self, slots, slots.size, slots.size, seen)


class WindowHold(ComponentHold):
    """A lease's hold on window slots: those of its tokens from `start` on.

        tokens   0              start      committed      length
                 | out of sight | locked   | private     )

    The lock is a receipt: the tokens between `start` and `committed`, no others, are unlocked when
    they come out of sight or the lease ends. parted: where tokens stopped to agree, which is where
    the match would have ended with all windows. prompt: where the prompt ends.
    """

    def __init__(
        self,
        windows: WindowSlots,
        slots: Slots,
        parted: int,
        prompt: int,
        start: int | None = None,
    ) -> None:
        """slots: of all tokens that a match found. start: if not what the next token sees; it may
        lie behind them.
        """
        self.windows = windows
        self.start = windows.first_seen(slots.size) if start is None else start
        self._ends = (prompt, PASSED), (parted, END), (slots.size, END)
        windows.lock(slots[self.start :])

    def takes(self, first: int, stop: int) -> int:
        return max(stop - max(first, self.start), 0)

    def extend(self, first: int, stop: int, slots: Slots) -> None:
        first = max(first, self.start)
        if first < stop:
            self.windows.give(slots[first:stop], int(slots[first - 1]) if first else None)

    def shrink(self, _length: int, first: int, stop: int, slots: Slots) -> None:
        self.windows.drop(slots[max(first, self.start) : stop])

    def pass_by(self, computed: int, committed: int, slots: Slots) -> None:
        """Free what is private and out of sight, unlock what is the tree's."""
        windows, start = self.windows, self.start
        stop = windows.behind(computed)
        if stop - start < max(windows.size.spare, 1):
            return
        self.start = stop
        if start < committed:
            self._unlock(start, min(stop, committed), slots)
        if stop > committed:
            windows.drop(slots[max(start, committed) : stop])

    def commit(self, start: int, node: TreeNode, mine: Slots, theirs: Slots) -> None:
        first, there = max(start, self.start), start + theirs.size
        if there > first:
            self.windows.replace(mine[first:there], theirs[first - start :], node)
        if node.end > max(there, first):
            self.windows.enter(mine[max(there, first) : node.end])

    def locks(self, committed: int, slots: Slots) -> Slots:
        return slots[self.start : committed]

    def private(self, length: int, committed: int) -> int:
        return max(length - max(committed, self.start), 0)

    def still_takes(self, total: int, length: int, cached: int) -> int:
        """The slots that it may still take. What it shares with others comes out of sight, so it
        counts for nothing.
        """
        held = length - max(self.start, cached)
        return max(min(total - cached, self.windows.span) - held, 0)

    def release(self, committed: int, slots: Slots, *, used: bool) -> None:
        self.windows.unlock(slots[self.start : committed], used=used)

    def _unlock(self, start: int, stop: int, slots: Slots) -> None:
        windows, size = self.windows, self.windows.page_size
        levels = np.zeros(stop - start, dtype=np.int8)
        for end, level in self._ends:
            first, last = windows.behind(end) - start, -(-end // size) * size - start
            levels[max(first, 0) : max(last, 0)] = level
        its = slots[start:stop]
        windows.unlock(its[levels == INSIDE], end=False)
        windows.go_on_from(its[levels == PASSED], found=False)
        windows.go_on_from(its[levels == END], found=True)
