"""The engine's side of host memory and the disk: one after the other they are asked what to read,
and each is given what is to be written.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from typing import Any, NamedTuple

from radixlm.cache import RadixCache
from radixlm.cache.stored import StoredTier
from radixlm.core.clock import Clock, WallClock
from radixlm.core.config import DiskWritePolicy
from radixlm.core.misses import MissReport
from radixlm.core.moves import Ended, Failed, Moved, News, Report
from radixlm.engine.saving import Saving
from radixlm.scheduler import Scheduler
from radixlm.scheduler.restoring import Mover, Pace, Restoring
from radixlm.scheduler.state import RequestState

# A request does not wait longer than this for copies to give way while others could, seconds.
PATIENCE = 0.1
# What becomes known of a place holds up a step by this much, seconds.
SECONDS_PER_TURN = 0.005


class Store(NamedTuple):
    """A place beside the pool. mover: runs its jobs; its reports come to `Tiering.take`, on the
    engine's thread.
    """

    tier: StoredTier
    mover: Mover
    policy: DiskWritePolicy
    pace: Pace


class _Floor:
    """A store with what is read from it and written to it. failed_reads: reads that ended early,
    though nobody ended them.
    """

    def __init__(self, tier: StoredTier, restoring: Restoring, saving: Saving) -> None:
        self.tier = tier
        self.restoring = restoring
        self.saving = saving
        self.failed_reads = 0

    def figures(self) -> dict[str, Any]:
        """Those of EngineStats."""
        usage = self.tier.usage()
        found = {
            "capacity": self.tier.capacity,
            "tokens": usage.locked + usage.evictable,
            "read": self.restoring.read,
            "restored": self.restoring.restored,
            "written": self.saving.written,
            "failed_reads": self.failed_reads,
            "failed_writes": self.saving.failed,
            "slow_reads": self.restoring.too_slow,
            "writing_off": int(bool(self.saving.error)),
        }
        return {f"{self.tier.place.name.lower()}_{name}": found[name] for name in found}


class Tiering:
    """What the engine's thread does about the places beside the pool: the scheduler's Tiers, the
    sink of the movers' reports, and between steps what is to be written, deleted and made known.

    A request that could be helped by two is: it reads what host memory has, and goes on with what
    the disk has beyond that. Nothing moves from one to the other; each is written from the pool.

    stores: fastest first; only the last may be one that outlives the process, and has news. due:
    there was a step since the last turn, or that turn has changed what is known.
    """

    def __init__(
        self,
        cache: RadixCache,
        scheduler: Scheduler,
        stores: Sequence[Store],
        clock: Clock | None = None,
    ) -> None:
        self._clock = clock or WallClock()
        tickets, room = count(1), scheduler.waiting_room
        self.floors = [
            _Floor(
                tier,
                Restoring(cache, tier, room, mover, tickets, pace, self._clock),
                Saving(cache, tier, mover, policy, tickets, self._clock),
            )
            for tier, mover, policy, pace in stores
        ]
        scheduler.tiers = self
        self._asked: float | None = None
        self.due = False

    @property
    def holds(self) -> bool:
        """Whether slots are held for copies."""
        return any(floor.restoring.under_way or floor.saving.under_way for floor in self.floors)

    def begin(self, state: RequestState) -> bool:
        """See Tiers."""
        return any(floor.restoring.begin(state) for floor in self.floors)

    def reported(self, state: RequestState, miss: MissReport) -> MissReport:
        """See Tiers."""
        for floor in self.floors:
            miss = floor.restoring.reported(state, miss)
        return miss

    def figures(self) -> dict[str, Any]:
        """Those of EngineStats."""
        return {name: value for floor in self.floors for name, value in floor.figures().items()}

    def give_way(self, *, alone: bool) -> bool:
        """See Tiers."""
        if not self.holds:
            self._asked = None
            return False
        now = self._clock.now()
        if self._asked is None:
            self._asked = now
            for floor in self.floors:
                floor.restoring.stop_all()
                floor.saving.give_way()
        return alone or now < self._asked + PATIENCE

    @contextmanager
    def timing(self, n_tokens: int) -> Iterator[None]:
        """Inside a step computes this many tokens."""
        began, self.due = self._clock.now(), True
        yield
        for floor in self.floors:
            if n_tokens >= floor.tier.block_tokens:  # few take as long as one
                floor.restoring.pace.learn_computed(n_tokens, self._clock.now() - began)

    def take(self, report: Report) -> None:
        """What a mover reports."""
        match report:
            case Moved() | Ended():
                self._moved(report)
            case News():
                self.floors[-1].saving.waits.append(report)
            case Failed():
                self.floors[-1].saving.turn_off(report.error)
        if not self.holds:
            self._asked = None

    def _moved(self, report: Moved | Ended) -> None:
        for floor in self.floors:
            of_read = report.ticket in floor.restoring.under_way
            if not of_read and report.ticket not in floor.saving.under_way:
                continue
            job = floor.restoring if of_read else floor.saving
            if isinstance(report, Moved):
                job.moved(report)
                return
            job.ended(report)
            if of_read:
                floor.failed_reads += bool(report.absent or report.error)
                floor.saving.turn_off(report.error)
            return

    def turn(self) -> None:
        """What is due between two steps."""
        self.due = False
        until = self._clock.now() + SECONDS_PER_TURN
        for floor in self.floors:
            floor.restoring.tend()
            self.due |= floor.saving.turn(until)

    def seconds_left(self) -> float | None:
        """In how many seconds a turn is due at the latest; None while nothing is to be done."""
        if self.due or any(floor.saving.waits for floor in self.floors):
            return 0.0
        waits = [floor.restoring.seconds_left() for floor in self.floors]
        return min((each for each in waits if each is not None), default=None)

    def save_all(self) -> None:
        """Begin to write all that is resident and worth it, for a stop."""
        for floor in self.floors:
            floor.restoring.stop_all()
            floor.saving.save_all()

    def stop(self) -> None:
        """End all jobs soon."""
        for floor in self.floors:
            floor.restoring.stop_all()
            floor.saving.stop()
