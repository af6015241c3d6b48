"""The thread that reads blocks from a store into the pool, and writes them there."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Generic

from radixlm.core.errors import DiskStoreError
from radixlm.core.keys import Slots
from radixlm.core.moves import (
    Damaged,
    Drop,
    Ended,
    Failed,
    Job,
    Moved,
    News,
    Place,
    Read,
    Report,
    StoredPath,
    Write,
)
from radixlm.memory.stores import Block, Carrier, P, Reader, Store

_logger = logging.getLogger("radixlm.memory")

# Of a transaction; reads wait for one.
MOST_BLOCKS, MOST_BYTES = 16, 64 << 20
# Jobs that may wait.
MOST_WAITING = 1024
# Paths in a message at the start.
_PATHS = 64
NEWS_SECONDS = 1.0
_READS, _LOAD, _WRITES = range(3)


class _AbandonedError(Exception):
    """The slots of the job at hand are others' by now."""


class _LacksWindowsError(Exception):
    """A block is stored without the part of layers with a window."""


class Transfers(threading.Thread, Generic[P]):
    """Runs jobs, reads before writes, else in the order in which they came. Owns the store; each
    store has a thread of its own.

    It never raises: what goes wrong is in the job's `Ended`. It begins with what is stored, in
    `News`, between which jobs are run, and looks for what other processes changed once a second.

    send: takes reports, on this thread; must neither block nor raise.
    """

    def __init__(
        self,
        store: Store[P],
        blocks: Carrier[P],
        send: Callable[[Report], None],
        *,
        place: Place = Place.DISK,
        news_seconds: float = NEWS_SECONDS,
    ) -> None:
        super().__init__(name=f"radixlm-{place.name.lower()}", daemon=True)
        if (store.block_tokens, store.block_bytes) != (blocks.block_tokens, blocks.nbytes):
            raise ValueError("the blocks of the store and of the pool are not of one size")
        self._store = store
        self._blocks = blocks
        self._send = send
        self._news_seconds = news_seconds
        self._changed = threading.Condition()
        self._reads: deque[Read] = deque()
        self._writes: deque[Write | Drop] = deque()
        self._tickets: set[int] = set()
        self._cancelled: set[int] = set()
        # Held while slots are touched that may be abandoned, never while a disk is waited for.
        self._touching = threading.Lock()
        self._abandoned: set[int] = set()
        self._damaged = 0
        self._stopping = False
        # What is under way, by precedence: each is advanced by a block, a transaction, some paths.
        self._lanes: list[Iterator[None] | None] = [None, self._load(), None]

    def submit(self, job: Job) -> bool:
        """False: too many wait, or the thread is to end, so nothing comes of the job."""
        with self._changed:
            if self._stopping or len(self._reads) + len(self._writes) >= MOST_WAITING:
                return False
            if isinstance(job, Read):
                self._reads.append(job)
            else:
                self._writes.append(job)
            if not isinstance(job, Drop):
                self._tickets.add(job.ticket)
            self._changed.notify()
            return True

    def cancel(self, ticket: int) -> None:
        """End a job after the block, or the transaction, that it is at. It reports `Ended`."""
        with self._changed:
            if ticket in self._tickets:
                self._cancelled.add(ticket)

    def abandon(self, ticket: int) -> None:
        """Let go of a job's slots: when this returns they are not read or written any more, even
        where a disk does not answer. What it has not reported yet may be stored. It reports
        `Ended`, some day.
        """
        with self._touching:
            if ticket in self._tickets:
                self._abandoned.add(ticket)

    def stop(self, seconds: float = 10.0) -> bool:
        """End when the jobs that were submitted are done; False where they take longer."""
        with self._changed:
            self._stopping = True
            self._lanes[_LOAD] = None
            self._changed.notify()
        self.join(seconds)
        return not self.is_alive()

    def run(self) -> None:
        sought = time.monotonic()
        while self._advance():
            if time.monotonic() >= sought + self._news_seconds:
                self._seek()
                sought = time.monotonic()
        self._store.close()

    def _advance(self) -> bool:
        """Do a part of what comes first, or wait for something to do; False: there is no more."""
        with self._changed:
            if self._lanes[_READS] is None and self._reads:
                self._lanes[_READS] = self._moves(self._reads.popleft())
            if self._lanes[_WRITES] is None and self._writes:
                job = self._writes.popleft()
                self._lanes[_WRITES] = (
                    self._drop(job) if isinstance(job, Drop) else self._moves(job)
                )
            lanes = [number for number, lane in enumerate(self._lanes) if lane is not None]
            if not lanes:
                if not self._stopping:
                    self._changed.wait(self._news_seconds)
                return not self._stopping or bool(self._reads or self._writes)
            lane = self._lanes[lanes[0]]
        if lane is not None and next(lane, self) is self:
            self._lanes[lanes[0]] = None
        return True

    def _moves(self, job: Read | Write) -> Iterator[None]:
        """Run a job, reporting; each turn is a block or a transaction."""
        upto, end, error, lacks = job.start, job.start + job.slots.size, "", False
        cancelled = job.ticket in self._cancelled | self._abandoned
        try:
            moved = self._read(job) if isinstance(job, Read) else self._write(job)
            while not cancelled:
                started = time.perf_counter()
                before, upto = upto, next(moved, upto)
                if upto == before:
                    break
                self._send(Moved(job.ticket, upto, time.perf_counter() - started))
                yield
                cancelled = job.ticket in self._cancelled | self._abandoned
        except _AbandonedError:
            cancelled = True
        except _LacksWindowsError:
            lacks = True
        except DiskStoreError as failed:
            error = str(failed)
        except Exception as failed:
            _logger.exception("a transfer crashed")
            error = f"{type(failed).__name__}: {failed}"
        with self._changed, self._touching:
            for tickets in (self._tickets, self._cancelled, self._abandoned):
                tickets.discard(job.ticket)
        if self._store.damaged != self._damaged:
            self._damaged = self._store.damaged
            self._send(Damaged(self._damaged))
        absent = upto < end and not (cancelled or error or lacks)
        self._send(Ended(job.ticket, upto, absent, cancelled, error, lacks))

    def _read(self, job: Read) -> Iterator[int]:
        size = self._blocks.block_tokens
        reader = self._store.reader(StoredPath(job.namespace, job.tokens), job.start)
        for at in range(0, job.slots.size, size):
            slots, windows = job.slots[at : at + size], job.windows[at : at + size]
            if not self._at_hand(job, reader, slots, windows):
                if not reader.next(self._blocks.target(windows)):
                    if reader.lacks_windows:
                        raise _LacksWindowsError
                    return
                with self._touching:
                    self._check(job)
                    self._blocks.land(slots, windows)
            yield job.start + at + size

    def _at_hand(self, job: Read, reader: Reader[P], slots: Slots, windows: Slots) -> bool:
        """Whether the next block was there without waiting, and went to its slots at once."""
        read, place = reader.at_hand(), self._blocks.place(slots, windows)
        if read is None or place is None:
            return False
        with self._touching:
            self._check(job)
            return read(place)

    def _write(self, job: Write) -> Iterator[int]:
        size = self._blocks.block_tokens
        most = size * max(1, min(MOST_BLOCKS, MOST_BYTES // self._blocks.nbytes))
        for first in range(0, job.slots.size, most):
            stop = min(first + most, job.slots.size)
            stored = self._store.put(self._sources(job, range(first, stop, size)))
            if stored:
                yield job.start + first + stored * size
            if first + stored * size < stop:
                return

    def _sources(self, job: Write, starts: range) -> Iterator[Block[P]]:
        """The blocks there; it ends with an error where one of them may not have been what the
        slots held for this job.
        """
        size = self._blocks.block_tokens
        for at in starts:
            self._check(job)
            tokens = job.tokens[: job.start + at + size]
            slots, windows = job.slots[at : at + size], job.windows[at : at + size]
            yield Block(job.namespace, tokens, self._blocks.source(slots, windows))
        self._check(job)

    def _check(self, job: Read | Write) -> None:
        if job.ticket in self._abandoned:
            raise _AbandonedError

    def _drop(self, job: Drop) -> Iterator[None]:
        try:
            self._store.delete(job.paths)
        except DiskStoreError as error:
            self._send(Failed(str(error)))
        yield

    def _load(self) -> Iterator[None]:
        try:
            paths = self._store.index()
            while some := tuple(islice(paths, _PATHS)):
                self._send(News(some, complete=False))
                yield
            self._send(News())
        except DiskStoreError as error:
            self._send(Failed(str(error)))

    def _seek(self) -> None:
        try:
            news = self._store.news()
        except DiskStoreError as error:
            self._send(Failed(str(error)))
            return
        if news.added or news.gone:
            self._send(news)
