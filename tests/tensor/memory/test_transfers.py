from __future__ import annotations

import errno
import os
import shutil
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import numpy as np
import pytest
import torch

from radixlm.core.keys import Key, Slots
from radixlm.core.moves import (
    Damaged,
    Drop,
    Ended,
    Failed,
    Moved,
    News,
    Read,
    Report,
    StoredPath,
    Write,
)
from radixlm.memory.disk_store import DiskStore
from radixlm.memory.packing import PoolBlocks
from radixlm.memory.pools import KVPool
from radixlm.memory.store_files import BlockFile
from radixlm.memory.transfers import MOST_BLOCKS, MOST_WAITING, Transfers
from tests.store_support import IDENTITY, TOKENS, path

CAPACITY = 40 * TOKENS


class Disk:
    """A pool, and the thread that reads and writes its blocks."""

    def __init__(self, folder: Path) -> None:
        self.pool = KVPool(2, CAPACITY, 2, 4, torch.float32)
        blocks = PoolBlocks(self.pool, TOKENS)
        self.store = DiskStore.open(
            folder, IDENTITY, block_tokens=TOKENS, block_bytes=blocks.nbytes, limit_bytes=1 << 24
        )
        self.reports: SimpleQueue[Report] = SimpleQueue()
        self.thread = Transfers(self.store, blocks, self.reports.put, news_seconds=0.05)

    def start(self) -> list[StoredPath]:
        """What it tells first."""
        self.thread.start()
        paths: list[StoredPath] = []
        while True:
            news = self.reports.get(timeout=60)
            assert isinstance(news, News)
            paths += news.added
            if news.complete:
                return paths

    def run(self, job: Read | Write) -> list[Moved | Ended]:
        assert self.thread.submit(job)
        return self.until_ended(job.ticket)

    def until_ended(self, ticket: int) -> list[Moved | Ended]:
        told: list[Moved | Ended] = []
        while not told or not isinstance(told[-1], Ended):
            report = self.reports.get(timeout=60)
            if isinstance(report, Moved | Ended) and report.ticket == ticket:
                told.append(report)
        return told

    def write(self, tokens: Key, slots: Slots, start: int = 0, ticket: int = 1) -> Ended:
        return ended(self.run(Write(ticket, b"", tokens, start, slots)))

    def read(self, tokens: Key, slots: Slots, start: int = 0, ticket: int = 2) -> Ended:
        return ended(self.run(Read(ticket, b"", tokens, start, slots)))


class Stuck:
    """A disk that says when it is asked, and does not answer before it may."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, what: str) -> None:
        self.asked, self.may = threading.Event(), threading.Event()
        self._real = getattr(BlockFile, what)
        monkeypatch.setattr(BlockFile, what, lambda *args, **how: self.wait(*args, **how))

    def wait(self, *args: object, waits: bool = True) -> object:
        if not waits:
            return None  # it holds nothing in memory
        answer = self._real(*args)
        self.asked.set()
        assert self.may.wait(60)
        return answer


def ended(told: list[Moved | Ended]) -> Ended:
    assert isinstance(told[-1], Ended)
    return told[-1]


def slots_of(n_blocks: int, first: int = 0) -> Slots:
    return np.arange(first * TOKENS, (first + n_blocks) * TOKENS, dtype=np.int32)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    disk = Disk(tmp_path)
    yield disk
    assert disk.thread.stop(10)


def fill(pool: KVPool, slots: Slots) -> None:
    at = torch.from_numpy(slots).long()
    for layer in range(pool.n_layers):
        pool.write(layer, at, *torch.randn(2, at.numel(), 2, 4))


def same(pool: KVPool, ours: Slots, theirs: Slots) -> bool:
    pairs = [part[torch.from_numpy(each).long()] for part in pool.keys for each in (ours, theirs)]
    return all(torch.equal(a, b) for a, b in zip(pairs[::2], pairs[1::2], strict=True))


def test_tokens_come_back_into_other_slots_after_a_restart(tmp_path: Path) -> None:
    first, slots = Disk(tmp_path), slots_of(5)
    assert first.start() == []
    fill(first.pool, slots)
    assert first.write(path(5), slots) == Ended(1, 20)
    assert first.thread.stop(10)
    second = Disk(tmp_path)
    [known] = second.start()
    assert known.tokens.tolist() == path(5).tolist()
    told = second.run(Read(7, b"", path(5), 0, slots_of(5, first=10)))
    assert [each.upto for each in told] == [4, 8, 12, 16, 20, 20]
    second.pool.keys[0][:20] = first.pool.keys[0][:20]
    second.pool.keys[1][:20] = first.pool.keys[1][:20]
    assert same(second.pool, slots, slots_of(5, first=10))
    assert second.thread.stop(10)


def test_a_write_is_some_blocks_a_transaction(disk: Disk) -> None:
    disk.start()
    told = disk.run(Write(1, b"", path(MOST_BLOCKS + 4), 0, slots_of(MOST_BLOCKS + 4)))
    assert [each.upto for each in told] == [4 * MOST_BLOCKS, 4 * MOST_BLOCKS + 16, 80]


def test_a_read_ends_where_nothing_is_stored(disk: Disk) -> None:
    disk.start()
    disk.write(path(2), slots_of(2))
    assert disk.read(path(4), slots_of(4, first=8)) == Ended(2, 8, absent=True)
    assert disk.read(path(4, first=99), slots_of(4, first=8)) == Ended(2, 0, absent=True)
    assert disk.read(path(2), slots_of(1, first=8), start=4) == Ended(2, 8)


def test_what_is_before_a_write_has_to_be_stored(disk: Disk) -> None:
    disk.start()
    assert disk.write(path(3), slots_of(2), start=4) == Ended(1, 4, absent=True)
    assert disk.write(path(1), slots_of(1)) == Ended(1, 4)
    assert disk.write(path(3), slots_of(2), start=4) == Ended(1, 12)


def test_dropped_blocks_are_not_read(disk: Disk) -> None:
    disk.start()
    disk.write(path(4), slots_of(4))
    assert disk.thread.submit(Drop([StoredPath(b"", path(3))]))
    disk.write(path(1), slots_of(1), ticket=3)  # after it
    assert disk.read(path(4), slots_of(4, first=8)).upto == 8


def test_reads_go_before_writes(tmp_path: Path) -> None:
    disk = Disk(tmp_path)
    for ticket in range(4):
        disk.thread.submit(Write(ticket, b"", path(1, first=100 * ticket), 0, slots_of(1)))
    disk.thread.submit(Read(9, b"", path(1), 0, slots_of(1)))
    disk.thread.start()
    order = [disk.reports.get(timeout=60) for _ in range(10)]
    assert [each.ticket for each in order if isinstance(each, Ended)] == [9, 0, 1, 2, 3]
    assert disk.thread.stop(10)


def test_a_cancelled_job_ends_with_what_it_has(tmp_path: Path) -> None:
    disk = Disk(tmp_path)
    for ticket in (1, 2):
        disk.thread.submit(Write(ticket, b"", path(3), 0, slots_of(3)))
    disk.thread.cancel(2)
    disk.thread.cancel(77)
    disk.thread.start()
    assert ended(disk.until_ended(1)) == Ended(1, 12)
    assert disk.until_ended(2) == [Ended(2, 0, cancelled=True)]
    assert disk.write(path(1), slots_of(1), ticket=2) == Ended(2, 4)
    assert disk.thread.stop(10)


def test_no_more_jobs_than_it_says(tmp_path: Path) -> None:
    disk = Disk(tmp_path)
    job = Read(1, b"", path(1), 0, slots_of(1))
    assert sum(disk.thread.submit(job) for _ in range(MOST_WAITING + 3)) == MOST_WAITING
    disk.thread.start()
    assert disk.thread.stop(10)
    assert not disk.thread.submit(job)


def test_what_another_process_stores_is_told(disk: Disk, tmp_path: Path) -> None:
    disk.start()
    other = Disk(tmp_path)
    other.start()
    other.write(path(3), slots_of(3))
    news = disk.reports.get(timeout=60)
    assert isinstance(news, News)
    assert [each.tokens.tolist() for each in news.added] == [path(3).tolist()]
    assert disk.read(path(3), slots_of(3)).upto == 12
    assert other.thread.stop(10)


def test_a_folder_that_is_gone_fails_what_is_written(disk: Disk, tmp_path: Path) -> None:
    disk.start()
    disk.write(path(1), slots_of(1))
    shutil.rmtree(tmp_path)
    result = disk.write(path(2), slots_of(1), start=4)
    assert (result.upto, result.absent) == (4, False)
    assert "disk cache" in result.error
    disk.thread.submit(Drop([StoredPath(b"", path(1))]))
    while not isinstance(report := disk.reports.get(timeout=60), Failed):
        assert isinstance(report, News | Moved | Ended)
    assert disk.read(path(1), slots_of(1)).upto in (0, 4)


def test_a_crash_in_a_job_ends_that_job(disk: Disk, caplog: pytest.LogCaptureFixture) -> None:
    disk.start()
    outside = slots_of(1) + CAPACITY
    result = disk.write(path(1), outside)
    assert result.error
    assert "a transfer crashed" in caplog.text
    assert disk.write(path(1), slots_of(1)) == Ended(1, 4)


def test_slots_of_a_read_that_hangs_are_not_touched_once_it_is_abandoned(
    disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk.start()
    fill(disk.pool, slots_of(2))
    disk.write(path(2), slots_of(2))
    stuck, into = Stuck(monkeypatch, "read"), slots_of(2, first=8)
    assert disk.thread.submit(Read(2, b"", path(2), 0, into))
    assert stuck.asked.wait(60)
    disk.thread.abandon(2)
    fill(disk.pool, into)
    before = [part.clone() for part in (*disk.pool.keys, *disk.pool.values)]
    stuck.may.set()
    assert disk.until_ended(2) == [Ended(2, 0, cancelled=True)]
    after = (*disk.pool.keys, *disk.pool.values)
    assert all(torch.equal(one, other) for one, other in zip(before, after, strict=True))


@pytest.mark.parametrize("what", ["write", "sync"])
def test_a_write_that_hangs_stores_nothing_once_its_slots_are_others(
    disk: Disk, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    disk.start()
    fill(disk.pool, slots_of(2))
    before = [part[: 2 * TOKENS].clone() for part in disk.pool.keys]
    stuck = Stuck(monkeypatch, what)
    assert disk.thread.submit(Write(1, b"", path(2), 0, slots_of(2)))
    assert stuck.asked.wait(60)
    disk.thread.abandon(1)
    fill(disk.pool, slots_of(2))
    stuck.may.set()
    told = disk.until_ended(1)
    stored = disk.read(path(2), slots_of(2, first=8)).upto
    if what == "write":
        assert told == [Ended(1, 0, cancelled=True)]
        assert stored == 0
    else:  # all had been read from the slots by then
        assert stored == 2 * TOKENS
        there = [part[8 * TOKENS : 10 * TOKENS] for part in disk.pool.keys]
        assert all(torch.equal(one, other) for one, other in zip(before, there, strict=True))


def test_a_job_that_waits_is_abandoned_too(tmp_path: Path) -> None:
    disk = Disk(tmp_path)
    disk.thread.submit(Write(1, b"", path(1), 0, slots_of(1)))
    disk.thread.abandon(1)
    disk.thread.abandon(77)
    disk.thread.start()
    assert disk.until_ended(1) == [Ended(1, 0, cancelled=True)]
    assert disk.write(path(1), slots_of(1)) == Ended(1, 4)
    assert disk.thread.stop(10)


def test_damaged_blocks_are_told(disk: Disk, tmp_path: Path) -> None:
    disk.start()
    fill(disk.pool, slots_of(2))
    disk.write(path(2), slots_of(2))
    [file] = tmp_path.glob("*.blocks")
    file.write_bytes(bytes(file.stat().st_size))
    disk.thread.submit(Read(2, b"", path(2), 0, slots_of(2)))
    while not isinstance(report := disk.reports.get(timeout=60), Damaged):
        assert isinstance(report, News)
    assert report == Damaged(1)
    assert disk.until_ended(2) == [Ended(2, 0, absent=True)]
    assert disk.read(path(2), slots_of(2)) == Ended(2, 0, absent=True)


def test_what_the_system_holds_goes_to_its_slots_at_once(
    disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk.start()
    fill(disk.pool, slots_of(3))
    disk.write(path(3), slots_of(3))
    waited: list[bool] = []
    real = BlockFile.read

    def read(*args: Any, waits: bool = True) -> bytes | None:
        waited.append(waits)
        return real(*args, waits=waits)

    monkeypatch.setattr(BlockFile, "read", read)
    assert disk.read(path(3), slots_of(3, first=8)) == Ended(2, 12)
    assert same(disk.pool, slots_of(3), slots_of(3, first=8))
    if True in waited:
        pytest.skip("this file system does not say what is held")
    assert waited == [False] * 3
    scattered = np.arange(20 * TOKENS, CAPACITY, 3, dtype=np.int32)[: 3 * TOKENS]
    assert disk.read(path(3), scattered) == Ended(2, 12)
    assert same(disk.pool, slots_of(3), scattered)
    assert waited == [False] * 6


def test_what_the_system_does_not_hold_is_waited_for(
    disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk.start()
    fill(disk.pool, slots_of(3))
    disk.write(path(3), slots_of(3))
    real = os.preadv

    def preadv(file: int, parts: Sequence[memoryview], at: int, flags: int = 0) -> int:
        if flags & os.RWF_NOWAIT:
            raise BlockingIOError(errno.EAGAIN, "not in memory")
        return real(file, parts, at)

    monkeypatch.setattr(os, "preadv", preadv)
    assert disk.read(path(3), slots_of(3, first=8)) == Ended(2, 12)
    assert same(disk.pool, slots_of(3), slots_of(3, first=8))
