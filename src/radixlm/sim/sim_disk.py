"""A disk that only takes time: the mover of a tier whose blocks nobody keeps. And why it did not
help where tokens had to be computed again.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from math import inf

from radixlm.cache import RadixCache
from radixlm.core.clock import VirtualClock
from radixlm.core.config import EngineConfig
from radixlm.core.keys import Key
from radixlm.core.misses import MissReport
from radixlm.core.moves import Drop, Ended, Job, Moved, Place, Read, Write
from radixlm.engine.tiering import PlaceStore, Tiering
from radixlm.scheduler import WaitingRoom
from radixlm.scheduler.restoring import Pace

# Seconds that pass at least while nothing can be computed.
_LEAST = 1e-4


@dataclass(frozen=True, slots=True)
class DiskSize:
    """tokens: that it has room for. rate: tokens a second, read or written."""

    tokens: int
    rate: float


class SimDisk:
    """A tier and its mover: one job at a time, reads before writes, block by block. What is stored
    the tier knows. scale: tokens that a simulated one stands for. losses: what it could not help.
    """

    def __init__(
        self, clock: VirtualClock, config: EngineConfig, size: DiskSize, scale: int
    ) -> None:
        self._clock = clock
        self._block = max(config.disk_block_tokens // scale, config.page_size)
        self.losses = DiskLosses(self._block)
        self._room = size.tokens // scale
        self._rate = size.rate / scale
        self._policy = config.disk_write_policy
        self._seconds = self._block / self._rate
        self._reads: deque[Read] = deque()
        self._writes: deque[Write] = deque()
        self._cancelled: set[int] = set()
        self._job: Read | Write | None = None
        self._names: list[int] = []
        self._upto = 0
        self._ready = inf
        self._tiering: Tiering | None = None

    def tiering(self, cache: RadixCache, room: WaitingRoom) -> Tiering:
        """The tiering for the engine's core."""
        tier = cache.add_store(Place.DISK, self._block, self._room)
        store = PlaceStore(tier, self, self._policy, Pace(self._rate))
        self._tiering = Tiering(cache, room, [store], self._clock)
        return self._tiering

    @property
    def next_read(self) -> float:
        """The time when the next block of a read, or of what is before it, has been moved."""
        return self._ready if self._reads or isinstance(self._job, Read) else inf

    @property
    def until(self) -> float:
        """The time until which nothing changes, where nothing can be computed."""
        seconds = None if self._tiering is None else self._tiering.seconds_left()
        patience = inf if seconds is None else self._clock.now() + max(seconds, _LEAST)
        return min(self._ready, patience)

    def submit(self, job: Job) -> bool:
        if isinstance(job, Read):
            self._reads.append(job)
        elif isinstance(job, Write):
            self._writes.append(job)
        if not isinstance(job, Drop) and self._job is None:
            self._begin(self._clock.now())
        return True

    def cancel(self, ticket: int) -> None:
        self._cancelled.add(ticket)

    def abandon(self, ticket: int) -> None:
        self._cancelled.add(ticket)

    def work(self) -> None:
        """Report what has happened until now, and take what is to be done."""
        if self._tiering is None:
            return
        while self._job is not None and self._ready <= self._clock.now():
            job, at = self._job, self._ready
            self._upto += self._block
            if self._names:
                self.losses.wrote(self._names[self._upto // self._block - 1])
            self._tiering.take(Moved(job.ticket, self._upto, self._seconds))
            cancelled = job.ticket in self._cancelled
            if self._upto >= job.start + job.slots.size or cancelled:
                self._cancelled.discard(job.ticket)
                self._begin(at)
                self._tiering.take(Ended(job.ticket, self._upto, cancelled=cancelled))
            else:
                self._ready = at + self._seconds
        self._tiering.turn()

    def _begin(self, now: float) -> None:
        """The next job, if there is one."""
        waiting = self._reads or self._writes
        self._job = waiting.popleft() if waiting else None
        self._ready = inf
        if self._job is not None:
            self._upto, self._ready = self._job.start, now + self._seconds
            wrote = isinstance(self._job, Write)
            self._names = self.losses.names(self._job.tokens, self._job.namespace) if wrote else []


@dataclass(slots=True)
class DiskLosses:
    """The losses of prompts in blocks of `block` tokens, by their whole paths. Sizes in tokens.

    stored_computed: were on disk, and computed all the same: that was faster, or there was no room
    to read them into. unwritten: were evicted before they had been written. dropped: had to leave
    the disk again, since there was no room.
    """

    block: int
    stored_computed: int = 0
    unwritten: int = 0
    dropped: int = 0
    _seen: set[int] = field(default_factory=set)
    _written: set[int] = field(default_factory=set)

    def names(self, tokens: Key, namespace: bytes) -> list[int]:
        """The names of a path's whole blocks. O(tokens)."""
        size, name, names = self.block, hash(namespace), []
        for start in range(0, tokens.size - size + 1, size):
            name = hash((name, tokens[start : start + size].tobytes()))
            names.append(name)
        return names

    def wrote(self, name: int) -> None:
        """A block is on disk."""
        self._written.add(name)

    def asked(self, prompt: Key, namespace: bytes, miss: MissReport) -> None:
        """A request is admitted, and found what it found."""
        names = self.names(prompt, namespace)
        on_disk = miss.cached + miss.on_host + miss.on_disk
        for number in range(miss.cached // self.block, (prompt.size - 1) // self.block):
            name, end = names[number], (number + 1) * self.block
            if name not in self._seen:
                break
            lost = end - max(miss.cached, number * self.block)
            if end <= on_disk:
                self.stored_computed += lost
            elif name in self._written:
                self.dropped += lost
            else:
                self.unwritten += lost
        self._seen.update(names)
