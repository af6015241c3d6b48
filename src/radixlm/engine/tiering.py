"""The engine's side of host memory and the disk: one after the other they are asked what to read,
and each is given what is to be written.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from sys import maxsize
from typing import Any, NamedTuple

from radixlm.cache import RadixCache
from radixlm.cache.places.stored import StoredTier
from radixlm.core.clock import Clock, WallClock
from radixlm.core.config import DiskWritePolicy
from radixlm.core.keys import Key, common_prefix
from radixlm.core.misses import MissReport
from radixlm.core.moves import Damaged, Ended, Failed, Moved, News, Place, Report
from radixlm.core.request import Namespace
from radixlm.engine.saving import Saving
from radixlm.scheduler import WaitingRoom
from radixlm.scheduler.restoring import NO_ROOM, Mover, Pace, Restoring
from radixlm.scheduler.state import RequestState
from radixlm.scheduler.stops import CHUNK

# Seconds for which a request waits that is alone until copies end, before they are to give way;
# or for these to give way, before others must.
PATIENCE = 0.1
# What becomes known of a place holds up a step by this much, seconds.
SECONDS_PER_TURN = 0.005
# A read or a write of which nothing is heard for so long is given up, seconds. A disk that is only
# slow has written a transaction in that time.
SECONDS_TO_ANSWER = 10.0
# After that it is asked once more: this process may have stood still, not the disk.
SECONDS_OF_GRACE = 1.0


def _any(_namespace: Hashable, _tokens: Key) -> bool:
    return True


class PlaceStore(NamedTuple):
    """A place beside the pool. mover: runs its jobs; its reports come to `Tiering.take`, on the
    engine's thread.
    """

    tier: StoredTier
    mover: Mover
    policy: DiskWritePolicy
    pace: Pace


class _Floor:
    """A store with what is read from it and written to it.

    failed_reads: reads that ended early, though nobody ended them. hung: reads and writes that were
    given up without an answer. damaged: blocks. lost: tickets of which no answer has come.
    """

    def __init__(self, tier: StoredTier, restoring: Restoring, saving: Saving) -> None:
        self.tier = tier
        self.restoring = restoring
        self.saving = saving
        self.failed_reads = self.hung = self.damaged = 0
        self.lost: set[int] = set()
        self._heard = 0.0
        self._late: float | None = None

    @property
    def busy(self) -> bool:
        """Whether slots are held for copies."""
        return bool(self.restoring.under_way or self.saving.under_way)

    def hear(self, now: float) -> None:
        """Something was reported, or there is nothing to report."""
        self._heard, self._late = now, None

    def watch(self, now: float) -> None:
        """Let go of everything where nothing has been heard for too long."""
        if not self.busy:
            self.hear(now)
        elif now >= self._heard + SECONDS_TO_ANSWER:
            self._late = now if self._late is None else self._late
            if now >= self._late + SECONDS_OF_GRACE:
                given_up = self.restoring.abandon(_any) + self.saving.abandon(_any)
                self.restoring.fall_silent()
                self.lost.update(given_up)
                self.hung += len(given_up)
                silence = now - self._heard
                self.saving.turn_off(f"a read or a write has not ended in {silence:.0f} s")

    def seconds_left(self, now: float) -> float | None:
        """The seconds until `watch` may have something to do."""
        if not self.busy:
            return None
        late = self._heard + SECONDS_TO_ANSWER if self._late is None else self._late
        return max(late - now, SECONDS_OF_GRACE / 2)

    def answered(self, ticket: int) -> None:
        """A job that was given up has ended all the same."""
        self.lost.discard(ticket)
        if not self.lost:
            self.restoring.answered()

    def figures(self) -> dict[str, Any]:
        """The figures of EngineStats."""
        usage = self.tier.usage()
        found = {
            "capacity": self.tier.capacity,
            "tokens": usage.locked + usage.evictable,
            "state_tokens": self.tier.state_tokens,
            "read": self.restoring.read,
            "restored": self.restoring.restored,
            "written": self.saving.written,
            "failed_reads": self.failed_reads,
            "failed_writes": self.saving.failed,
            "slow_reads": self.restoring.too_slow,
            "hung": self.hung,
            "writing_off": int(bool(self.saving.error)),
        }
        if self.tier.place is Place.DISK:
            found["damaged"] = self.damaged
        return {f"{self.tier.place.name.lower()}_{name}": found[name] for name in found}


class Tiering:
    """The engine's thread's work for the places beside the pool: the scheduler's Tiers, the sink of
    the movers' reports, and between steps what is to be written, deleted and made known.

    A request that could be helped by two is: it reads what host memory has, and goes on with what
    the disk has beyond that. Nothing moves from one to the other; each is written from the pool.

    stores: fastest first; only the last may be one that outlives the process, and has news. due:
    there was a step since the last turn, or that turn has changed what is known.
    """

    def __init__(
        self,
        cache: RadixCache,
        room: WaitingRoom,
        stores: Sequence[PlaceStore],
        clock: Clock | None = None,
    ) -> None:
        self._clock = clock or WallClock()
        tickets = count(1)
        self.floors = [
            _Floor(
                tier,
                Restoring(cache, tier, room, mover, tickets, pace, self._clock),
                Saving(cache, tier, mover, policy, tickets, self._clock),
            )
            for tier, mover, policy, pace in stores
        ]
        # Few tokens take as long as one; with states a prompt's steps end at checkpoints.
        self._prompt_step = maxsize if cache.states is None else CHUNK
        self._asked: float | None = None
        self.due = False

    @property
    def holds(self) -> bool:
        """Whether slots are held for copies."""
        return any(floor.busy for floor in self.floors)

    def begin(self, state: RequestState, before: int) -> bool:
        """See Tiers."""
        return any(floor.restoring.begin(state, before) for floor in self.floors)

    def waits(self, state: RequestState) -> bool:
        """See Tiers."""
        writing = any(floor.saving.under_way for floor in self.floors)
        return writing and state.computed_because == NO_ROOM and self.give_way(alone=True)

    def reported(self, state: RequestState, miss: MissReport) -> MissReport:
        """See Tiers."""
        for floor in self.floors:
            miss = floor.restoring.reported(state, miss)
        return miss

    def figures(self) -> dict[str, Any]:
        """The figures of EngineStats."""
        return {name: value for floor in self.floors for name, value in floor.figures().items()}

    def discard(self, key: Key, namespace: Namespace, keep: int) -> None:
        """See Tiers."""

        def spoiled(own: Hashable, tokens: Key) -> bool:
            return own == namespace and common_prefix(tokens, key) > keep

        for floor in self.floors:
            floor.restoring.abandon(spoiled)
            floor.saving.discard(spoiled, keep)

    def give_way(self, *, alone: bool) -> bool:
        """See Tiers."""
        if not self.holds:
            self._asked = None
            return False
        now = self._clock.now()
        if self._asked is None:
            self._asked = now
        waits = now < self._asked + PATIENCE
        if waits and alone:
            return True  # what is written now need not be computed later
        for floor in self.floors:  # again: one may have begun others while another does not answer
            floor.restoring.stop_all()
            floor.saving.give_way()
        return alone or waits

    @contextmanager
    def timing(self, n_tokens: int) -> Iterator[None]:
        """Inside a step computes this many tokens."""
        began, self.due = self._clock.now(), True
        yield
        for floor in self.floors:
            if n_tokens >= min(self._prompt_step, floor.tier.block_tokens):
                floor.restoring.pace.learn_computed(n_tokens, self._clock.now() - began)

    def take(self, report: Report) -> None:
        """Take what a mover reports."""
        match report:
            case Moved() | Ended():
                self._moved(report)
            case News():
                self.floors[-1].saving.waits.append(report)
            case Failed():
                self.floors[-1].saving.turn_off(report.error)
            case Damaged():
                self.floors[-1].damaged = report.blocks
        if not self.holds:
            self._asked = None

    def _moved(self, report: Moved | Ended) -> None:
        for floor in self.floors:
            if report.ticket in floor.lost and isinstance(report, Ended):
                floor.answered(report.ticket)
                return
            of_read = report.ticket in floor.restoring.under_way
            if not of_read and report.ticket not in floor.saving.under_way:
                continue
            floor.hear(self._clock.now())
            job = floor.restoring if of_read else floor.saving
            if isinstance(report, Moved):
                job.moved(report)
                return
            job.ended(report)
            if of_read:
                floor.failed_reads += bool(report.absent or report.lacks_windows or report.error)
                floor.saving.turn_off(report.error)
            return

    def turn(self) -> None:
        """Do what is due between two steps."""
        self.due = False
        until = self._clock.now() + SECONDS_PER_TURN
        for floor in self.floors:
            floor.watch(self._clock.now())
            floor.restoring.tend()
            self.due |= floor.saving.turn(until)

    def seconds_left(self) -> float | None:
        """The seconds until a turn is due at the latest; None while nothing is to be done."""
        if self.due or any(floor.saving.waits for floor in self.floors):
            return 0.0
        now = self._clock.now()
        waits = [floor.seconds_left(now) for floor in self.floors]
        waits += [floor.restoring.seconds_left() for floor in self.floors]
        if self._asked is not None and now < self._asked + PATIENCE:
            waits.append(self._asked + PATIENCE - now)
        return min((each for each in waits if each is not None), default=None)

    def stop_reading(self) -> None:
        """End all reads soon."""
        for floor in self.floors:
            floor.restoring.stop_all()

    def save_all(self) -> None:
        """Begin to write all that is resident and worth it, for a stop."""
        for floor in self.floors:
            floor.saving.save_all()

    def stop(self) -> None:
        """End all jobs soon."""
        self.stop_reading()
        for floor in self.floors:
            floor.saving.stop()
