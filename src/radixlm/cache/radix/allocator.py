"""An allocator of slots. It hands out contiguous runs, so that most nodes are one stretch of
memory.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from itertools import pairwise

import numpy as np

from radixlm.core.batch import Extent
from radixlm.core.errors import SlotError
from radixlm.core.keys import Slots


class SlotAllocator:
    """The free slots of a pool of `capacity`, kept as maximal runs of whole pages.

        pages   0    1    2    3    4    5    6    7
              [free     )[used    )[free          )[u )
        runs    _starts = [0, 4]    _stops = [2, 7]

    A page in no run is handed out. Neighbouring runs are always joined.
    """

    def __init__(self, capacity: int, page_size: int = 1) -> None:
        if capacity < page_size or capacity % page_size:
            raise SlotError(f"capacity {capacity} is not a multiple of the page size {page_size}")
        self.capacity = capacity
        self.page_size = page_size
        self.free_size = capacity
        self._starts = [0]
        self._stops = [capacity // page_size]

    def allocate(self, n_pages: int, after: int | None = None) -> Slots:
        """Hand out (n_pages * page_size,) slots: those that follow the slot `after` if they are
        free, else one run where one is long enough (the first), else the longest runs there are.
        O(runs), O(runs log runs) when none is long enough. Raises SlotError when too few are free.
        """
        if n_pages < 1:
            raise SlotError(f"at least one page is handed out, got {n_pages}")
        if n_pages * self.page_size > self.free_size:
            raise SlotError(f"{n_pages * self.page_size} slots wanted, {self.free_size} are free")
        self.free_size -= n_pages * self.page_size
        if after is not None:
            first = after // self.page_size + 1
            index = bisect_left(self._starts, first)
            if self._starts[index : index + 1] == [first] and self._stops[index] - first >= n_pages:
                return self._slots(*self._take(index, n_pages))
        for index, start in enumerate(self._starts):
            if self._stops[index] - start >= n_pages:
                return self._slots(*self._take(index, n_pages))
        return np.concatenate([self._slots(*run) for run in self._take_longest(n_pages)])

    def free(self, slots: Slots) -> None:
        """Take whole pages back, or raise SlotError and change nothing. O(n log n + runs)."""
        if not slots.size:
            return
        runs = self._page_runs(slots)
        for start, stop in runs:
            self._check_in_use(start, stop)
        for (_, stop), (start, _) in pairwise(runs):
            if start < stop:
                raise SlotError(f"page {start} is freed twice in one call")
        for start, stop in runs:
            self._join(start, stop)
        self.free_size += slots.size

    def runs(self) -> list[tuple[int, int]]:
        """The free runs as [start, stop) slots, ascending."""
        size = self.page_size
        return [
            (start * size, stop * size)
            for start, stop in zip(self._starts, self._stops, strict=True)
        ]

    def _take(self, index: int, n_pages: int) -> tuple[int, int]:
        start = self._starts[index]
        if self._stops[index] - start == n_pages:
            del self._starts[index], self._stops[index]
        else:
            self._starts[index] = start + n_pages
        return start, start + n_pages

    def _take_longest(self, n_pages: int) -> list[tuple[int, int]]:
        """Take the longest runs, of equals the first, and of the last one only what is needed."""
        runs = list(zip(self._starts, self._stops, strict=True))
        taken = []
        gone = set()
        for index in sorted(range(len(runs)), key=lambda index: runs[index][0] - runs[index][1]):
            start, stop = runs[index]
            if stop - start > n_pages:
                break
            taken.append(runs[index])
            gone.add(index)
            n_pages -= stop - start
        if n_pages:
            taken.append((start, start + n_pages))
            runs[index] = (start + n_pages, stop)
        left = [run for place, run in enumerate(runs) if place not in gone]
        self._starts = [start for start, _ in left]
        self._stops = [stop for _, stop in left]
        return taken

    def _slots(self, start: int, stop: int) -> Slots:
        return np.arange(start * self.page_size, stop * self.page_size, dtype=np.int32)

    def _page_runs(self, slots: Slots) -> tuple[Extent, ...]:
        ordered, size = np.sort(slots), self.page_size
        if size > 1:
            if ordered.size % size or (ordered.reshape(-1, size) % size != np.arange(size)).any():
                raise SlotError(f"{slots.size} slots are not whole pages of {size}")
            ordered = ordered[::size] // size
        return split_runs(ordered)

    def _check_in_use(self, start: int, stop: int) -> None:
        if start < 0 or stop * self.page_size > self.capacity:
            raise SlotError(f"pages {start}..{stop} are not of this pool of {self.capacity} slots")
        after = bisect_right(self._starts, start)
        free_before = after and self._stops[after - 1] > start
        free_after = after < len(self._starts) and self._starts[after] < stop
        if free_before or free_after:
            raise SlotError(f"double free within pages {start}..{stop}")

    def _join(self, start: int, stop: int) -> None:
        after = bisect_right(self._starts, start)
        joins_before = after > 0 and self._stops[after - 1] == start
        joins_after = after < len(self._starts) and self._starts[after] == stop
        if joins_before and joins_after:
            self._stops[after - 1] = self._stops[after]
            del self._starts[after], self._stops[after]
        elif joins_before:
            self._stops[after - 1] = stop
        elif joins_after:
            self._starts[after] = start
        else:
            self._starts.insert(after, start)
            self._stops.insert(after, stop)


def split_runs(slots: Slots) -> tuple[Extent, ...]:
    """Cut `slots` into maximal runs of consecutive ones, in their order.

    >>> split_runs(np.array([4, 5, 6, 2, 3], dtype=np.int32))
    (Extent(start=4, stop=7), Extent(start=2, stop=4))
    """
    if not slots.size:
        return ()
    first, last = int(slots[0]), int(slots[-1])
    if slots.size == 1:  # of every decoding row in every step
        return (Extent(first, first + 1),)
    if last - first == slots.size - 1:  # most are one run, and one memcmp tells
        run = np.arange(first, last + 1, dtype=np.int32)
        if slots.tobytes() == run.tobytes():
            return (Extent(first, last + 1),)
    breaks = np.flatnonzero(np.diff(slots) != 1)
    firsts = [first, *slots[breaks + 1].tolist()]
    lasts = [*slots[breaks].tolist(), last]
    return tuple(Extent(start, stop + 1) for start, stop in zip(firsts, lasts, strict=True))
