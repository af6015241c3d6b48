"""Stored blocks are read for requests that wait, where that is faster than computing them."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, replace
from math import inf
from typing import Protocol

from radixlm.cache import Lease, RadixCache
from radixlm.cache.places.stored import StoredTier
from radixlm.cache.places.stored_parts import StoredPart
from radixlm.core.clock import Clock
from radixlm.core.keys import Key
from radixlm.core.misses import MissReport
from radixlm.core.moves import NO_WINDOWS, Ended, Job, Moved, Place, Read
from radixlm.core.request import Namespace
from radixlm.scheduler.state import RequestState
from radixlm.scheduler.waiting import WaitingRoom

# Restorations at a time. Those that queue behind them compute; it is their disk as well.
MOST_AT_ONCE = 8
# How much one measurement moves a rate.
LEARNING_RATE = 1 / 4
# Before any step was measured: how many times as fast as computing it is thought to be to read.
READING_TO_COMPUTING = 20
# A thread may wait for a processor this long, seconds, before its silence says something.
GRACE = 0.02
# To silence, a request loses up to 1 / PARTS of the time that it takes to compute the rest.
PARTS = 4
# Seconds without restorations after one was too slow; twice as many after each next one.
FIRST_PAUSE, LONGEST_PAUSE = 1.0, 64.0
NO_ROOM = "there is no room to read them into"
_SLOWER = "reading was slower than computing a moment ago"
_FAILED = {Place.HOST: "a copy failed", Place.DISK: "the disk failed"}
_SILENT = {Place.HOST: "copies do not end", Place.DISK: "the disk does not answer"}


class Tiers(Protocol):
    """The other places for keys and values, as the scheduler sees them."""

    def begin(self, state: RequestState, before: int) -> bool:
        """Whether the request that is next waits from now on for what is being restored. before:
        tokens that the step computes already, so that these come after them.
        """

    def waits(self, state: RequestState) -> bool:
        """Whether a request that is alone, and `begin` lets go, waits for room to read into."""

    def reported(self, state: RequestState, miss: MissReport) -> MissReport:
        """The report of a request that is admitted, with what is known of the other places."""

    def discard(self, key: Key, namespace: Namespace, keep: int) -> None:
        """Neither read nor write what comes after the first `keep` tokens of a key: it is spoiled.
        It is unlocked when this returns.
        """

    def give_way(self, *, alone: bool) -> bool:
        """Let slots go that are held for copies; whether to wait for them, as always when `alone`:
        then they have some time to end. False: there are none."""


class Mover(Protocol):
    """Runs jobs in a thread of its own, reads before writes. What comes of them are messages."""

    def submit(self, job: Job, /) -> bool:
        """False: too many wait already."""

    def cancel(self, ticket: int, /) -> None:
        """End a job soon; it sends `Ended` all the same, and until then uses its slots."""

    def abandon(self, ticket: int, /) -> None:
        """The same, and its slots are not used any more when this returns, whatever it waits for.
        What it did not report yet may have been moved.
        """


class Pace:
    """How many tokens a second are read, and computed: moving means of what was measured."""

    def __init__(self, read: float) -> None:
        self.first_read = self.read = read
        self.computed = read / READING_TO_COMPUTING
        self._measured = False

    def learn_read(self, tokens: int, seconds: float) -> None:
        if seconds > 0:
            self.read += LEARNING_RATE * (tokens / seconds - self.read)

    def learn_computed(self, tokens: int, seconds: float) -> None:
        """The first measurement takes the place of the guess."""
        if seconds > 0:
            weight = LEARNING_RATE if self._measured else 1.0
            self._measured = True
            self.computed += weight * (tokens / seconds - self.computed)


@dataclass(slots=True, eq=False)
class Restoration:
    """A Leader: what is stored by `path`, of which `known` are tokens, is being read into the
    lease's slots. at: how far. stored: what is locked in their place. free_at: when computing them
    could have begun. usable_from: see Leader. computing: it is followed; else it only waits for
    the end of its job.
    """

    place: Place
    ticket: int
    path: Key
    at: int
    known: Key
    namespace: Namespace
    lease: Lease
    stored: StoredPart | None
    free_at: float
    usable_from: int
    computing: bool = False

    @property
    def prefill_end(self) -> int:
        return self.known.size

    @property
    def committed(self) -> int:
        return self.lease.committed

    @property
    def left(self) -> int:
        """Tokens that are not there yet and still wanted, as many as it takes to read them."""
        return self.path.size - self.at if self.computing else 0


class Restoring:
    """Reads from one place: host memory, or the disk.

    A restoration is like a running request that computes tokens by reading them: it has a lease,
    commits what has arrived, block by block, and waiting requests follow it meanwhile, as far as
    they share it. So each goes on from what is there when it is let go.

    It begins when a request is next to be admitted, if to read what is stored, after all that is
    being read already, takes less time than to compute it, after all that the same step computes
    already: one disk and one processor, each with its queue. The same is asked again in every step,
    and a reader that is silent for longer than it should be counts as that slow: then all that
    follow are let go, compute the rest, and for a while nothing is restored. So a request is later
    than without a store by a quarter of the time to compute it at most, or by a few blocks.

    under_way: by ticket. read, restored: tokens that were read, and those of them that entered the
    cache, since the start. too_slow: how often reading was given up.
    """

    def __init__(
        self,
        cache: RadixCache,
        tier: StoredTier,
        waiting_room: WaitingRoom,
        mover: Mover,
        tickets: Iterator[int],
        pace: Pace,
        clock: Clock,
    ) -> None:
        self._cache = cache
        self._tier = tier
        self._room = waiting_room
        self._mover = mover
        self._tickets = tickets
        self.pace = pace
        self._clock = clock
        self._heard = 0.0
        self._rest_until = 0.0
        self._pause = FIRST_PAUSE
        self._rests_because = ""
        self.under_way: dict[int, Restoration] = {}
        self.read = self.restored = self.too_slow = 0

    def begin(self, state: RequestState, before: int) -> bool:
        """Restore what the request that is next could take, if that pays; whether it follows."""
        now = self._clock.now()
        if now < self._rest_until:
            state.computed_because = self._rests_because
            return False
        if len(self.under_way) >= MOST_AT_ONCE:
            state.computed_because = f"{MOST_AT_ONCE} others are being read"
            return False
        known, namespace = state.known, state.namespace
        upto = self._tier.restorable(known[: self._limit(state)], namespace)
        gained = self._cache.round_down(min(upto, state.max_match)) - state.cached
        if gained <= 0:
            return False
        start, seen = self._first(state, upto)
        path = self._tier.sizes.path(known[:upto])
        if not self._pays(path.size - start, gained, before):
            state.computed_because = self._comparison(path.size - start, gained + before)
            return False
        free_at = now + before / self.pace.computed
        made = self._start(path, path[:upto], namespace, start, seen, free_at)
        if made is None:
            state.computed_because = NO_ROOM
            return False
        state.computed_because = ""
        if not any(each.computing for each in self.under_way.values()):
            self._heard = now
        self.under_way[made.ticket] = made
        self._room.start_restoring(made, made.lease.cached)
        return state.follows is not None

    def _limit(self, state: RequestState) -> int:
        """The number of a request's tokens of which blocks may be read. With windows, or states,
        no farther than it goes on: what lies before an end that is beyond that has no use for it.
        """
        if not self._cache.components:
            return state.known.size
        beyond = self._cache.page_size if self._cache.states is None else 0
        return min(state.known.size, state.max_match + beyond)

    def _first(self, state: RequestState, upto: int) -> tuple[int, int]:
        """The begin of the first block that is to be read, and the first token that needs a window
        slot: what a request sees that goes on from there, if that is not resident.
        """
        size, windows = self._tier.block_tokens, self._cache.windows
        if not self._cache.components:
            return state.cached - state.cached % size, 0
        found = self._cache.tree.match_prefix(state.known[:upto], state.namespace)
        if windows is None:  # a state: the last token is read in any case, so that it ends there
            start = min(found.length, upto - 1)
            return start - start % size, 0
        start, first = found.length - found.length % size, windows.first_restored(upto)
        if first < start and not windows.resident(found.slots()[first:start]).all():
            start = first - first % size
        return start, first

    def _start(
        self, path: Key, known: Key, namespace: Namespace, start: int, seen: int, free_at: float
    ) -> Restoration | None:
        """Read path[start:], whole blocks, into slots of a lease; None where there is no room. Of a
        block that is resident in part the tree's slots are used, once it is committed.
        """
        lease = self._cache.hold_read(known, namespace, start, seen)
        if lease is None:
            return None
        slots = lease.extend(known.size - start)
        ticket = next(self._tickets)
        if slots is not None:
            slots, windows = slots.copy(), NO_WINDOWS
            if self._cache.windows is not None:
                windows = self._cache.windows.of[slots]
            # Before that the windows are not read, but for those of a first window.
            usable = known.size - self._cache.page_size if seen else 0
            if (state := lease.row_fields().get("state")) is not None:
                slots = self._tier.sizes.slots(lease.slots, state)[start:]
                usable = known.size
            job = Read(ticket, namespace.packed(), path, start, slots, windows)
            if self._mover.submit(job):
                stored = self._tier.lock_path(path, namespace)
                read = path, start, known
                return Restoration(
                    self._tier.place, ticket, *read, namespace, lease, stored, free_at, usable
                )
        lease.release(used=False)
        return None

    def moved(self, report: Moved) -> None:
        """A block, or several, are in their slots."""
        self._heard = self._clock.now()
        made = self.under_way[report.ticket]
        before, known = made.lease.committed, self._cache.tree.stats.inserted_tokens
        self.read += self._tier.block_tokens
        made.at = report.upto
        self.pace.learn_read(self._tier.block_tokens, report.seconds)
        if not made.computing:
            return
        whole = report.upto == made.path.size
        if whole or report.upto < made.known.size:  # a state comes last, and all ends with it
            made.lease.commit(min(report.upto, made.known.size))
        if whole:
            made.lease.checkpoint()
        self.restored += self._cache.tree.stats.inserted_tokens - known
        self._room.committed(made, before, made.lease.committed)
        if not made.left:
            self._pause = FIRST_PAUSE
            self._room.stop_computing(made, made.lease.committed)

    def ended(self, report: Ended) -> None:
        """The job does not use its slots any more."""
        self._heard = self._clock.now()
        made = self.under_way[report.ticket]
        self._end(made)
        if report.absent:
            self._tier.gone(made.path, made.namespace, report.upto)
        if report.lacks_windows:
            self._tier.lacks_windows(made.known, made.namespace, report.upto)
        if report.error:
            self._rest(_FAILED[self._tier.place])

    def abandon(self, wanted: Callable[[Hashable, Key], bool]) -> list[int]:
        """Let go of the slots of those wanted without waiting for their jobs, whose tickets these
        are.
        """
        found = [n for n, each in self.under_way.items() if wanted(each.namespace, each.known)]
        for ticket in found:
            self._mover.abandon(ticket)
            self._end(self.under_way[ticket])
        return found

    def fall_silent(self) -> None:
        """Begin no restoration before `answered`."""
        self._rest_until, self._rests_because = inf, _SILENT[self._tier.place]

    def answered(self) -> None:
        """The mover goes on."""
        self._rest(_SLOWER)

    def _end(self, made: Restoration) -> None:
        """End a restoration: its slots are used no more; what has arrived stays in the cache."""
        del self.under_way[made.ticket]
        self._tier.unlock(made.stored)
        self._room.stop_computing(made, made.lease.committed)
        made.lease.release()

    def tend(self) -> None:
        """Stop what nobody waits for any more, and all when it does not pay any more."""
        ahead, now = 0, self._clock.now()
        for made in self.under_way.values():
            followers = self._room.followers.get(made, ())
            if made.computing and not any(state.follows is made for *_, state in followers):
                self._stop(made)
            ahead += made.left
            computed = max(made.free_at - now, 0.0) + made.left / self.pace.computed
            if made.left and ahead / self._rate() > computed:
                self.too_slow += 1
                self.stop_all()
                self._rest(_SLOWER)
                return

    def stop_all(self) -> None:
        """Let all followers go, and begin no other restoration for a while."""
        if self._rest_until < inf:
            self._rest_until = self._clock.now() + self._pause
            self._rests_because = "memory is short"
        for made in self.under_way.values():
            self._stop(made)

    def seconds_left(self) -> float | None:
        """The seconds until `tend` may have something to do; None while nothing is read."""
        if not self.under_way:
            return None
        return max(self._heard + self._patience() - self._clock.now(), GRACE / 2)

    def reported(self, state: RequestState, miss: MissReport) -> MissReport:
        """See Tiers."""
        place, rate = self._tier.place, self.pace.read
        read = state.restored_from(place, miss.cached)
        because = state.computed_because if miss.on_host or miss.on_disk else ""
        if place is Place.HOST:
            seconds = miss.on_host / rate if miss.on_host else None
            return replace(miss, from_host=read, host_seconds=seconds, computed_because=because)
        seconds = miss.on_disk / rate if miss.on_disk else None
        return replace(miss, from_disk=read, read_seconds=seconds, computed_because=because)

    def _rest(self, because: str) -> None:
        """Begin none for a while, then try it as if nothing had been measured."""
        self._rests_because = because
        self._rest_until = self._clock.now() + self._pause
        self._pause = min(2 * self._pause, LONGEST_PAUSE)
        self.pace.read = self.pace.first_read

    def _pays(self, tokens: int, gained: int, before: int) -> bool:
        """Whether it is faster to read these tokens, after all that is being read, than to compute
        those that are gained by it, after those before.
        """
        seconds = gained / self.pace.computed
        if tokens / self.pace.read >= seconds and self.pace.read < self.pace.first_read:
            self._rest(_SLOWER)
            return False
        return self._seconds_to_read(tokens) < seconds + before / self.pace.computed

    def _comparison(self, tokens: int, gained: int) -> str:
        """The reason why reading does not pay."""
        read, computed = self._seconds_to_read(tokens), gained / self.pace.computed
        return f"reading takes {1e3 * read:.1f} ms and computing {1e3 * computed:.1f} ms"

    def _seconds_to_read(self, tokens: int) -> float:
        """The seconds to read tokens, with all that is being read before them."""
        ahead = sum(made.left for made in self.under_way.values())
        return (ahead + tokens) / self._rate()

    def _rate(self) -> float:
        """Tokens a second that are read; fewer when nothing was heard for too long."""
        silence = self._clock.now() - self._heard
        if not self.under_way or silence <= self._patience():
            return self.pace.read
        return min(self.pace.read, self._tier.block_tokens / silence)

    def _patience(self) -> float:
        """Seconds in which a part of what is left could be computed, or some blocks."""
        left = max((made.left for made in self.under_way.values()), default=0)
        tokens = max(2 * self._tier.block_tokens, left // PARTS)
        return GRACE + tokens / self.pace.computed

    def _stop(self, made: Restoration) -> None:
        self._mover.cancel(made.ticket)
        self._room.stop_computing(made, made.lease.committed)
