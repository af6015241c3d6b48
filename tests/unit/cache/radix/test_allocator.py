"""SlotAllocator: contiguous first, joined again, and nothing freed twice."""

from __future__ import annotations

import random
import time

import numpy as np
import pytest

from radixlm.cache import SlotAllocator
from radixlm.cache.radix.allocator import split_runs
from radixlm.core.errors import InvariantError, SlotError
from tests.invariants import check


def slots(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.int32)


def fragmented() -> SlotAllocator:
    """Free runs of 2, 4 and 3 slots."""
    allocator = SlotAllocator(12)
    allocator.allocate(12)
    for start, stop in ((0, 2), (4, 8), (9, 12)):
        allocator.free(np.arange(start, stop, dtype=np.int32))
    return allocator


@pytest.mark.parametrize("page_size", [1, 4, 16])
def test_hands_out_one_run_from_the_front(page_size: int) -> None:
    allocator = SlotAllocator(8 * page_size, page_size)
    assert allocator.allocate(2).tolist() == list(range(2 * page_size))
    assert allocator.allocate(1).tolist() == list(range(2 * page_size, 3 * page_size))
    assert allocator.free_size == 5 * page_size
    assert allocator.runs() == [(3 * page_size, 8 * page_size)]


def test_takes_the_first_run_that_is_long_enough() -> None:
    assert fragmented().allocate(3).tolist() == [4, 5, 6]


def test_takes_the_longest_runs_when_none_is_long_enough() -> None:
    allocator = fragmented()
    assert allocator.allocate(6).tolist() == [4, 5, 6, 7, 9, 10]
    assert allocator.runs() == [(0, 2), (11, 12)]


def test_many_short_runs_are_taken_in_one_pass() -> None:
    """2,048 slots out of 20,000 runs of one took 3 s when each run was searched for on its own."""
    allocator = SlotAllocator(40_000)
    odd = allocator.allocate(40_000)[1::2].copy()
    allocator.free(odd)
    started = time.thread_time()
    assert allocator.allocate(2_048).tolist() == odd[:2_048].tolist()
    assert time.thread_time() - started < 0.5
    check(allocator)
    allocator.allocate(allocator.free_size)
    assert (allocator.free_size, allocator.runs()) == (0, [])


def test_can_hand_out_everything_and_take_it_back_in_any_order() -> None:
    allocator = SlotAllocator(12)
    everything = allocator.allocate(12)
    assert (allocator.free_size, allocator.runs()) == (0, [])
    allocator.free(everything[::-1][::2])
    allocator.free(everything[::2])
    assert (allocator.free_size, allocator.runs()) == (12, [(0, 12)])
    check(allocator)


@pytest.mark.parametrize(
    ("freed", "runs"),
    [
        ((2,), [(0, 3), (4, 8), (9, 12)]),
        ((3,), [(0, 2), (3, 8), (9, 12)]),
        ((2, 3), [(0, 8), (9, 12)]),
        ((8,), [(0, 2), (4, 12)]),
        ((8, 3, 2), [(0, 12)]),
    ],
)
def test_neighbours_are_joined(freed: tuple[int, ...], runs: list[tuple[int, int]]) -> None:
    allocator = fragmented()
    allocator.free(slots(*freed))
    assert allocator.runs() == runs
    check(allocator)


def test_freeing_nothing_is_nothing() -> None:
    allocator = fragmented()
    allocator.free(slots())
    assert allocator.free_size == 9


@pytest.mark.parametrize(
    ("freed", "message"),
    [
        ((0,), "double free within pages 0..1"),
        ((2, 3, 4), "double free within pages 2..5"),
        ((1, 2), "double free"),
        ((2, 2), "page 2 is freed twice in one call"),
        ((12,), "not of this pool of 12"),
        ((-1,), "not of this pool of 12"),
        ((2, 99), "pages 99..100"),
    ],
)
def test_wrong_free_raises_and_changes_nothing(freed: tuple[int, ...], message: str) -> None:
    allocator = fragmented()
    before = allocator.runs()
    with pytest.raises(SlotError, match=message):
        allocator.free(slots(*freed))
    assert (allocator.runs(), allocator.free_size) == (before, 9)
    check(allocator)


@pytest.mark.parametrize("freed", [(0, 1, 2), (1, 2, 3, 4), (0, 1, 2, 3, 4), (0, 0, 1, 1)])
def test_torn_page_raises_and_changes_nothing(freed: tuple[int, ...]) -> None:
    allocator = SlotAllocator(16, 4)
    allocator.allocate(4)
    with pytest.raises(SlotError, match=f"{len(freed)} slots are not whole pages of 4"):
        allocator.free(slots(*freed))
    assert allocator.free_size == 0


def test_too_many_raises_with_the_numbers() -> None:
    allocator = fragmented()
    with pytest.raises(SlotError, match="10 slots wanted, 9 are free"):
        allocator.allocate(10)
    assert allocator.free_size == 9


@pytest.mark.parametrize("n_pages", [0, -1])
def test_no_page_or_fewer_raises(n_pages: int) -> None:
    allocator = fragmented()
    with pytest.raises(SlotError, match=f"got {n_pages}"):
        allocator.allocate(n_pages)
    assert allocator.free_size == 9


@pytest.mark.parametrize(("capacity", "page_size"), [(0, 1), (3, 4), (10, 4)])
def test_capacity_must_be_whole_pages(capacity: int, page_size: int) -> None:
    with pytest.raises(SlotError, match=f"capacity {capacity}"):
        SlotAllocator(capacity, page_size)


def test_check_notices_runs_that_touch() -> None:
    allocator = fragmented()
    allocator._starts[1] = 2
    with pytest.raises(InvariantError, match="not maximal"):
        check(allocator)


def test_check_notices_wrong_books() -> None:
    allocator = fragmented()
    allocator.free_size += 1
    with pytest.raises(InvariantError, match="books say 10"):
        check(allocator)


def test_split_runs_keeps_the_order() -> None:
    assert split_runs(slots()) == ()
    assert split_runs(slots(3)) == ((3, 4),)
    assert split_runs(slots(4, 5, 1, 2, 9)) == ((4, 6), (1, 3), (9, 10))
    assert split_runs(slots(3, 2, 1)) == ((3, 4), (2, 3), (1, 2))
    assert split_runs(slots(3, 4, 5, 6)) == ((3, 7),)
    assert split_runs(slots(3, 5, 4, 6)) == ((3, 4), (5, 6), (4, 5), (6, 7))


@pytest.mark.parametrize("page_size", [1, 4])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_any_order_of_calls_agrees_with_a_set(page_size: int, seed: int) -> None:
    """One run where one is long enough, the first; else the longest; freed in any order."""
    pick = random.Random(seed)
    allocator = SlotAllocator(40 * page_size, page_size)
    free, used = set(range(40)), set()
    for _ in range(2_000):
        if used and pick.random() < 0.5:
            pages = pick.sample(sorted(used), pick.randint(1, min(6, len(used))))
            taken = [page * page_size + at for page in pages for at in range(page_size)]
            pick.shuffle(taken)
            allocator.free(slots(*taken))
            free |= set(pages)
            used -= set(pages)
        elif free:
            wanted = pick.randint(1, min(8, len(free)))
            runs = allocator.runs()
            got = allocator.allocate(wanted)
            pages = sorted({slot // page_size for slot in got.tolist()})
            fits = [start for start, stop in runs if stop - start >= wanted * page_size]
            longest = sorted((start - stop for start, stop in runs))
            parts = split_runs(got)
            assert got.size == wanted * page_size
            assert set(pages) <= free
            if fits:
                assert (parts[0].start, len(parts)) == (fits[0], 1)
            else:
                sizes = [part.stop - part.start for part in parts[:-1]]
                assert sizes == [-size for size in longest[: len(sizes)]]
            free -= set(pages)
            used |= set(pages)
        check(allocator)
        mine = {s for start, stop in allocator.runs() for s in range(start, stop)}
        assert mine == {page * page_size + at for page in free for at in range(page_size)}
