"""The engine's side of the disk: reads begin and end here, blocks are chosen to be written."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from typing import Any

from radixlm.cache import Lease, RadixCache
from radixlm.cache.stored import StoredTier
from radixlm.cache.stored_parts import Blocks, StoredPart
from radixlm.core.clock import Clock, WallClock
from radixlm.core.config import DiskWritePolicy
from radixlm.core.misses import MissReport
from radixlm.core.moves import Drop, Ended, Failed, Moved, News, Report, StoredPath, Write
from radixlm.core.request import Namespace
from radixlm.scheduler import Scheduler
from radixlm.scheduler.restoring import Mover, Pace, Restoring
from radixlm.scheduler.state import RequestState

# Blocks that are being written, at most, and the share of the pool that they may lock.
MOST_BLOCKS, SHARE_OF_POOL = 16, 1 / 8
# A request does not wait longer than this for copies to give way while others could, seconds.
PATIENCE = 0.1
# What becomes known of the disk holds up a step by this much, seconds.
SECONDS_PER_TURN = 0.005
# Seconds without writing after memory was short.
PAUSE = 1.0

_logger = logging.getLogger("radixlm.engine")


@dataclass(slots=True, eq=False)
class _Saving:
    """Blocks that are being written. at: tokens before it are on disk. stored: what is locked
    there of what comes before them.
    """

    blocks: Blocks
    lease: Lease
    stored: StoredPart | None
    at: int


class Tiering:
    """What the engine's thread does about the disk: the scheduler's Tiers, the sink of the mover's
    reports, and between steps what is to be written, deleted and made known.

    After an error of the disk nothing is written any more; what is stored is still read.

    mover: runs the jobs; its reports come to `take`, on the engine's thread. written: tokens, since
    the start. failed_reads, failed_writes: jobs that ended early, though nobody ended them. error:
    why nothing is written any more. waits: paths on disk that the tree does not know yet. due:
    there was a step since the last turn, or that turn has changed what is known.
    """

    def __init__(
        self,
        cache: RadixCache,
        tier: StoredTier,
        scheduler: Scheduler,
        mover: Mover,
        policy: DiskWritePolicy,
        pace: Pace,
        clock: Clock | None = None,
    ) -> None:
        self._cache = cache
        self.tier = tier
        self._mover = mover
        self._policy = policy
        self._clock = clock or WallClock()
        self._tickets = count(1)
        self.restoring = Restoring(
            cache, tier, scheduler.waiting_room, mover, self._tickets, pace, self._clock
        )
        scheduler.tiers = self
        self._saving: dict[int, _Saving] = {}
        block = tier.block_tokens
        self._batch = max(block, min(MOST_BLOCKS * block, int(SHARE_OF_POOL * cache.capacity)))
        self._to_drop: list[Blocks] = []
        self.waits: deque[News] = deque()
        self._asked: float | None = None
        self._write_again = 0.0
        self.due = False
        self._begun = self.written = 0
        self.failed_reads = 0
        self.failed_writes = 0
        self.error = ""

    @property
    def holds(self) -> bool:
        """Whether slots are held for copies."""
        return bool(self.restoring.under_way or self._saving)

    def begin(self, state: RequestState) -> bool:
        """See Tiers."""
        return self.restoring.begin(state)

    def reported(self, state: RequestState, miss: MissReport) -> MissReport:
        """See Tiers."""
        return self.restoring.reported(state, miss)

    def figures(self) -> dict[str, Any]:
        """Those of EngineStats."""
        usage = self.tier.usage()
        return {
            "disk_capacity": self.tier.capacity,
            "disk_tokens": usage.locked + usage.evictable,
            "disk_read": self.restoring.read,
            "disk_restored": self.restoring.restored,
            "disk_written": self.written,
            "disk_failed_reads": self.failed_reads,
            "disk_failed_writes": self.failed_writes,
            "disk_slow_reads": self.restoring.too_slow,
            "disk_writing_off": int(bool(self.error)),
        }

    def give_way(self, *, alone: bool) -> bool:
        """See Tiers."""
        if not self.holds:
            self._asked = None
            return False
        now = self._clock.now()
        if self._asked is None:
            self._asked = now
            self._write_again = now + PAUSE
            self.restoring.stop_all()
            self._cancel_writes()
        return alone or now < self._asked + PATIENCE

    @contextmanager
    def timing(self, n_tokens: int) -> Iterator[None]:
        """Inside a step computes this many tokens."""
        began, self.due = self._clock.now(), True
        yield
        if n_tokens >= self.tier.block_tokens:  # few take as long as one
            self.restoring.pace.learn_computed(n_tokens, self._clock.now() - began)

    def take(self, report: Report) -> None:
        """What the mover reports."""
        match report:
            case Moved() if report.ticket in self._saving:
                self._saved(self._saving[report.ticket], report.upto)
            case Moved():
                self.restoring.moved(report)
            case Ended() if report.ticket in self._saving:
                saving = self._saving.pop(report.ticket)
                self._end(saving)
                self.failed_writes += bool(report.absent or report.error)
                if report.absent:
                    self._refused(saving.blocks, report.upto)
                self._turn_off(report.error)
            case Ended():
                self.restoring.ended(report)
                self.failed_reads += bool(report.absent or report.error)
                self._turn_off(report.error)
            case News():
                self.waits.append(report)
            case Failed():
                self._turn_off(report.error)
        if not self.holds:
            self._asked = None

    def turn(self) -> None:
        """What is due between two steps."""
        self.due = False
        self.restoring.tend()
        until = self._clock.now() + SECONDS_PER_TURN
        while self.waits and self._clock.now() < until:
            self._make_known(self.waits.popleft())
            self.due = True
        if self._dropped() and self._may_write:
            # No more than was computed since: else a small disk would be written over and over.
            owed = self._cache.tree.stats.inserted_tokens - self._begun
            for blocks in self.tier.to_write(self._policy, min(self._batch, owed)):
                self._write(blocks)

    def seconds_left(self) -> float | None:
        """In how many seconds a turn is due at the latest; None while nothing is to be done."""
        if self.waits or self.due:
            return 0.0
        return self.restoring.seconds_left()

    def save_all(self) -> None:
        """Begin to write all that is resident and worth it, for a stop."""
        self.restoring.stop_all()
        if self._policy != "off" and not self.error and self._dropped():
            for blocks in self.tier.to_write_at_stop(self.tier.capacity):
                self._write(blocks)

    def stop(self) -> None:
        """End all jobs soon."""
        self.restoring.stop_all()
        self._cancel_writes()

    @property
    def _may_write(self) -> bool:
        """A batch at a time: what is being written is not known to the queue."""
        idle = not self._saving and self._clock.now() >= self._write_again
        return idle and self._policy != "off" and not self.error

    def _write(self, blocks: Blocks) -> None:
        """Begin to write blocks, if they are still resident and there is room for them."""
        namespace, key, start = blocks
        lease = self._cache.hold(key, namespace, key.size)
        stored = self.tier.lock(key, namespace, start)
        fits = lease.cached == key.size and self.tier.on_disk(key, namespace) == start
        saving = _Saving(blocks, lease, stored, start)
        if not fits or not self.tier.reserve(key.size - start):
            saving.at = key.size  # nothing was reserved
        elif self._dropped():
            ticket = next(self._tickets)
            slots = lease.slots[start:].copy()
            if self._mover.submit(Write(ticket, _packed(namespace), key, start, slots)):
                self._saving[ticket] = saving
                self._begun += key.size - start
                return
        self._end(saving)

    def _saved(self, saving: _Saving, upto: int) -> None:
        before, saving.at = saving.at, upto
        self.written += upto - before
        namespace, key, _ = saving.blocks
        self.tier.stored(key, namespace, before, upto, reserved=upto - before)

    def _refused(self, blocks: Blocks, upto: int) -> None:
        """The block at `upto` can not be stored: there is no room, or the one before it is not
        there any more. That one is forgotten, which helps in either case.
        """
        self._write_again = self._clock.now() + PAUSE
        if upto:
            self.tier.gone(blocks.tokens, blocks.namespace, upto - self.tier.block_tokens)

    def _end(self, saving: _Saving) -> None:
        self.tier.give_back(saving.blocks.tokens.size - saving.at)
        self.tier.unlock(saving.stored)
        saving.lease.release(used=False)

    def _cancel_writes(self) -> None:
        for ticket in self._saving:
            self._mover.cancel(ticket)

    def _dropped(self) -> bool:
        """Have deleted what had to make room; False where that must wait, and so must writing."""
        self._to_drop += self.tier.take_dropped()
        if not self._to_drop or self.error:
            self._to_drop = []
            return True
        size = self.tier.block_tokens
        paths = [
            StoredPath(_packed(each.namespace), each.tokens[: each.start + size])
            for each in self._to_drop
        ]
        if not self._mover.submit(Drop(paths)):
            return False
        self._to_drop = []
        return True

    def _make_known(self, news: News) -> None:
        """Take over what is on disk, or not any more, without this process's doing."""
        size = self.tier.block_tokens
        for path in news.added:
            if (namespace := _unpacked(path.namespace)) is not None:
                self.tier.stored(path.tokens, namespace, 0, path.tokens.size)
        for path in news.gone:
            if (namespace := _unpacked(path.namespace)) is not None:
                self.tier.gone(path.tokens, namespace, path.tokens.size - size)

    def _turn_off(self, error: str) -> None:
        if error and not self.error:
            self.error = error
            _logger.warning("nothing is written to the disk cache any more: %s", error)


def _packed(namespace: object) -> bytes:
    return namespace.packed() if isinstance(namespace, Namespace) else b""


def _unpacked(packed: bytes) -> Namespace | None:
    """None for what another version may have written."""
    try:
        return Namespace.unpacked(packed)
    except ValueError:
        return None
