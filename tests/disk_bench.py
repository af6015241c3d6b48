"""An engine core over a disk, and host memory, that are dictionaries, as fast as a test wants."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from radixlm.core.clock import VirtualClock
from radixlm.core.config import DiskWritePolicy
from radixlm.core.errors import InvariantError
from radixlm.core.keys import KeyLike
from radixlm.core.moves import (
    STATE_SLOTS,
    Drop,
    Ended,
    Job,
    Moved,
    News,
    Place,
    Read,
    Report,
    StoredPath,
    Write,
)
from radixlm.core.request import RequestOutput
from radixlm.engine.tiering import PlaceStore, Tiering
from radixlm.scheduler.restoring import Pace
from radixlm.testing.fake_runner import FakeRunner
from tests.engines import Bench, CheckedStates, make_request
from tests.invariants import check

BLOCK = 4
# Tokens a second.
READ_RATE, HOST_RATE = 1e6, 1e7
Kept = Sequence[npt.NDArray[np.uint64]]


class FakeDisk:
    """A Mover that moves a block when it is asked to, between a FakeRunner and `blocks`: each by
    its namespace and all tokens up to its end; each block of a state has all of it. broken: jobs
    end with this error. most: blocks that there is room for. states: what their slots hold.
    """

    def __init__(
        self,
        runner: FakeRunner,
        blocks: dict[tuple[bytes, bytes], Any],
        states: dict[int, tuple[object, ...]],
        per_state: int,
    ) -> None:
        self.blocks = blocks
        self.jobs: deque[tuple[Read | Write, int]] = deque()
        self.broken = ""
        self.most = 4_096
        self._runner = runner
        self._states, self._per_state = states, per_state
        self._cancelled: set[int] = set()

    def submit(self, job: Job) -> bool:
        if isinstance(job, Drop):
            for path in job.paths:
                self._drop(path)
        else:
            self.jobs.append((job, job.start))
        return True

    def cancel(self, ticket: int) -> None:
        self._cancelled.add(ticket)

    def abandon(self, ticket: int) -> None:
        self._cancelled.add(ticket)

    def work(self) -> list[Report]:
        """Move a block of the first job, or end it."""
        if not self.jobs:
            return []
        job, at = self.jobs.popleft()
        end = job.start + job.slots.size
        if job.ticket in self._cancelled or self.broken:
            cancelled = job.ticket in self._cancelled
            return [Ended(job.ticket, at, cancelled=cancelled, error=self.broken)]
        if not self._move(job, at):
            key = (job.namespace, job.tokens[: at + BLOCK].tobytes())
            lacks = isinstance(job, Read) and key in self.blocks
            return [Ended(job.ticket, at, absent=not lacks, lacks_windows=lacks)]
        at += BLOCK
        moved = Moved(job.ticket, at, BLOCK / READ_RATE)
        if at == end:
            return [moved, Ended(job.ticket, at)]
        self.jobs.appendleft((job, at))
        return [moved]

    def paths(self) -> list[StoredPath]:
        """Of all blocks."""
        return [
            StoredPath(
                namespace, np.frombuffer(tokens, dtype=np.int32), self._mask(namespace, tokens)
            )
            for namespace, tokens in self.blocks
        ]

    def _mask(self, namespace: bytes, tokens: bytes) -> int:
        size = BLOCK * 4
        ends = range(size, len(tokens) + 1, size)
        both = [len(self.blocks.get((namespace, tokens[:end]), ())) == 2 for end in ends]
        return sum(there << block for block, there in enumerate(both))

    def _move(self, job: Read | Write, at: int) -> bool:
        of_block = slice(at - job.start, at - job.start + BLOCK)
        slots, windows = job.slots[of_block], job.windows[of_block]
        key = (job.namespace, job.tokens[: at + BLOCK].tobytes())
        state = (int(slots[0]) - STATE_SLOTS) // max(self._per_state, 1)
        if isinstance(job, Read):
            if key not in self.blocks:
                return False
            if state >= 0:
                self._states[state] = self.blocks[key]
                return True
            return self._runner.unpack(self.blocks[key], slots, windows)
        before = (job.namespace, job.tokens[:at].tobytes())
        if (at and before not in self.blocks) or len(self.blocks) >= self.most:
            return False
        if state >= 0:
            self.blocks[key] = self._states[state]
            return True
        kept = self._runner.pack(slots, windows)
        if len(kept) >= len(self.blocks.get(key, ())):
            self.blocks[key] = kept
        return True

    def _drop(self, path: StoredPath) -> None:
        tokens = path.tokens.tobytes()
        gone = [k for k in self.blocks if k[0] == path.namespace and k[1].startswith(tokens)]
        for key in gone:
            del self.blocks[key]


class DiskBench(Bench):
    """blocks: what is on disk. host: tokens for which host memory has room; without any there is
    none; what is copied there goes by `copy`. per_state: blocks of a state. moves: how many
    blocks each of the two moves before each step.
    """

    def __init__(
        self,
        capacity: int = 64,
        *,
        blocks: dict[tuple[bytes, bytes], Kept] | None = None,
        room: int = 4_096,
        host: int = 0,
        copy: DiskWritePolicy = "evict",
        write: DiskWritePolicy = "all",
        moves: int = 1,
        per_state: int = 0,
        **options: Any,
    ) -> None:
        super().__init__(capacity, **options)
        if not isinstance(self.runner, FakeRunner):
            raise InvariantError("a chain's slots can not be copied")
        states = self.checked.memory if isinstance(self.checked, CheckedStates) else {}
        self.disk = FakeDisk(self.runner, {} if blocks is None else blocks, states, per_state)
        self.host = FakeDisk(self.runner, {}, states, per_state)
        self.tier = self.cache.add_store(Place.DISK, BLOCK, room, per_state)
        self.time = VirtualClock()
        stores = [PlaceStore(self.tier, self.disk, write, Pace(READ_RATE))]
        if host:
            self.host_tier = self.cache.add_store(Place.HOST, BLOCK, host, per_state)
            pace = Pace(HOST_RATE)
            stores.insert(0, PlaceStore(self.host_tier, self.host, copy, pace))
        self.tiering = Tiering(self.cache, self.scheduler.waiting_room, stores, self.time)
        self.core.tiering = self.scheduler.tiers = self.tiering
        self.restoring = self.tiering.floors[-1].restoring
        self.saving = self.tiering.floors[-1].saving
        self.moves = moves
        if blocks:
            self.tiering.take(News(self.disk.paths()))

    def step(self) -> list[RequestOutput]:
        for _ in range(self.moves):
            self.work()
        self.tiering.turn()
        check(self.cache)
        outputs = super().step() if self.core.has_work else []
        check(self.scheduler)
        return outputs

    def work(self) -> None:
        for place in (self.host, self.disk):
            for report in place.work() if place.jobs else ():
                self.tiering.take(report)
                check(self.cache)

    def store(self, prompt: KeyLike) -> None:
        """Its blocks are on disk, nothing is in the pool, and it pays to read."""
        self.core.add(make_request("first", prompt, 1))
        self.run()
        self.settle()
        self.core.flush()
        self.restoring.pace.computed = 1.0

    def evict(self, share: float = 1.0) -> None:
        """All that no lock holds leaves the pool, or a share of it."""
        tree = self.cache.tree
        freed = tree.evict(int(share * tree.evictable_size))
        if self.cache.windows is not None:
            self.cache.windows.drop(freed)
        self.cache.allocator.free(freed)

    def settle(self) -> None:
        """Let both do all there is."""
        self.tiering.turn()
        while self.host.jobs or self.disk.jobs:
            self.work()
            self.tiering.turn()
