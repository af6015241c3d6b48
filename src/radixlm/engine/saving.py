"""Writes to a place beside the pool, deletions there, and news of what others wrote."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass

from radixlm.cache import Lease, RadixCache
from radixlm.cache.places.stored import StoredTier
from radixlm.cache.places.stored_parts import Blocks, StoredPart
from radixlm.cache.radix.node import NO_SLOTS
from radixlm.core.clock import Clock
from radixlm.core.config import DiskWritePolicy
from radixlm.core.keys import Key, Slots, common_prefix
from radixlm.core.moves import (
    NO_SLOT,
    NO_WINDOWS,
    Drop,
    Ended,
    Moved,
    News,
    Place,
    StoredPath,
    Write,
    tokens_of,
)
from radixlm.core.request import Namespace
from radixlm.scheduler.restoring import Mover

# Blocks that are being written, at most, and the share of the pool that they may lock.
MOST_BLOCKS, SHARE_OF_POOL = 16, 1 / 8
# Seconds without writing after memory was short.
PAUSE = 1.0
_NAMES = {Place.HOST: "host memory", Place.DISK: "the disk cache"}

Wanted = Callable[[Hashable, Key], bool]
_logger = logging.getLogger("radixlm.engine")


@dataclass(slots=True, eq=False)
class _Saved:
    """Blocks that are being written. at: tokens before it are stored. there: those of them that
    were before, some without their windows, which no room was reserved for. stored: what is locked
    there of these. windows: see Transfer. state: the slot of the checkpoint that is written, (0,)
    for none; its blocks are stored all or none.
    """

    blocks: Blocks
    lease: Lease
    stored: StoredPart | None
    at: int
    there: int
    windows: Slots
    state: Slots

    @property
    def reserved(self) -> int:
        """Tokens for which room is reserved still."""
        return self.blocks.tokens.size - max(self.at, self.there)


class Saving:
    """Writes to one place: host memory, or the disk. After an error nothing is written there any
    more; what is stored is still read, and what must go is still deleted.

    under_way: by ticket. written: tokens, since the start. failed: writes that ended early, though
    nobody ended them. error: why nothing is written any more. waits: paths that are stored and the
    tree does not know yet.
    """

    def __init__(
        self,
        cache: RadixCache,
        tier: StoredTier,
        mover: Mover,
        policy: DiskWritePolicy,
        tickets: Iterator[int],
        clock: Clock,
    ) -> None:
        self._cache = cache
        self._tier = tier
        self._mover = mover
        self._policy = policy
        self._tickets = tickets
        self._clock = clock
        block = tier.block_tokens
        self._batch = max(block, min(MOST_BLOCKS * block, int(SHARE_OF_POOL * cache.capacity)))
        self._to_drop: list[Blocks] = []
        self._write_again = 0.0
        self._begun = self.written = self.failed = 0
        self.under_way: dict[int, _Saved] = {}
        self.waits: deque[News] = deque()
        self.error = ""

    def moved(self, report: Moved) -> None:
        """Blocks are written."""
        saved = self.under_way[report.ticket]
        before, reserved = saved.at, saved.reserved
        saved.at = self._whole(saved, report.upto)
        self.written += saved.at - before
        namespace, key, start = saved.blocks
        size, windows = self._tier.block_tokens, 0
        for at in range(before, saved.at, size) if saved.windows.size else ():
            windows |= int(saved.windows[at - start] != NO_SLOT) << at // size
        reserved -= saved.reserved
        self._tier.stored(key, namespace, before, saved.at, reserved=reserved, windows=windows)

    def _whole(self, saved: _Saved, upto: int) -> int:
        """How much of a path counts as stored: of a checkpoint's blocks all or none."""
        path = saved.blocks.tokens
        return upto if upto == path.size else min(upto, self._before_state(path))

    def _before_state(self, path: Key) -> int:
        """The end of a path's blocks that hold nothing but its own tokens."""
        end = tokens_of(path)
        return end - end % self._tier.block_tokens

    def ended(self, report: Ended) -> None:
        """The job does not use its slots any more."""
        saved = self.under_way.pop(report.ticket)
        self._end(saved)
        if saved.at < report.upto:
            self._to_drop.append(Blocks(*saved.blocks[:2], self._before_state(saved.blocks.tokens)))
        self.failed += bool(report.absent or report.error)
        if report.absent:
            self._refused(saved.blocks, report.upto)
        self.turn_off(report.error)

    def turn(self, until: float) -> bool:
        """Do what is due between two steps. until: as long as what others wrote may take; whether
        some of it became known.
        """
        learnt = False
        while self.waits and self._clock.now() < until:
            self._make_known(self.waits.popleft())
            learnt = True
        if self._dropped() and self._may_write:
            # No more than was computed since: else a small disk would be written over and over.
            owed = self._computed() - self._begun
            for blocks in self._tier.queue.take(self._policy, min(self._batch, owed)):
                self._write(blocks)
        return learnt

    def _computed(self) -> int:
        """The room of all that has entered the cache, in tokens."""
        states, (block, per_state) = self._cache.states, self._tier.sizes
        left = 0 if states is None else states.left_behind
        return self._cache.tree.stats.inserted_tokens + left * (1 + per_state) * block

    def save_all(self) -> None:
        """Begin to write all that is resident and worth it, for a stop, where it outlives that."""
        lasts = self._tier.place is Place.DISK and self._policy != "off"
        if lasts and not self.error and self._dropped():
            for blocks in self._tier.queue.rest(self._tier.capacity):
                self._write(blocks)

    def give_way(self) -> None:
        """End all writes soon, and begin none for a while."""
        self._write_again = self._clock.now() + PAUSE
        self.stop()

    def stop(self) -> None:
        """End all writes soon."""
        for ticket in self.under_way:
            self._mover.cancel(ticket)

    def discard(self, wanted: Wanted, keep: int) -> None:
        """End the writes that are wanted before anything else becomes of them, and delete what was
        written after the first `keep` tokens.
        """
        blocks = {ticket: saved.blocks for ticket, saved in self.under_way.items()}
        for own, tokens, first in map(blocks.__getitem__, self.abandon(wanted)):
            start = max(keep - keep % self._tier.block_tokens, first)
            self._to_drop.append(Blocks(own, tokens, start))

    def abandon(self, wanted: Wanted) -> list[int]:
        """Let go of the slots of those wanted without waiting for the jobs, whose tickets these
        are.
        """
        found = [n for n, saved in self.under_way.items() if wanted(*saved.blocks[:2])]
        for ticket in found:
            self._mover.abandon(ticket)
            self._end(self.under_way.pop(ticket))
        return found

    def turn_off(self, error: str) -> None:
        """Write nothing any more, where there is an error."""
        if error and not self.error:
            self.error = error
            name = _NAMES[self._tier.place]
            _logger.warning("nothing is written to %s any more: %s", name, error)

    @property
    def _may_write(self) -> bool:
        """A batch at a time: what is being written is not known to the queue."""
        idle = not self.under_way and self._clock.now() >= self._write_again
        return idle and self._policy != "off" and not self.error

    def _write(self, blocks: Blocks) -> None:
        """Begin to write blocks, if they are still resident and there is room for them."""
        namespace, path, start = blocks
        key, states = path[: tokens_of(path)], self._cache.states
        lease = self._cache.hold(key, namespace, key.size)
        there = self._tier.length_of(key, namespace)
        stored = self._tier.lock(key, namespace, there)
        saved = _Saved(blocks, lease, stored, start, there, NO_WINDOWS, NO_SLOTS)
        before = there >= start or self._writes(namespace, path[:start])
        fits = lease.cached == key.size and before
        if states is not None and key.size < path.size:
            saved.state = states.slot_of(lease.node)
            states.lock(saved.state)
            fits = fits and saved.state.size > 0
        if not fits or not self._tier.reserve(saved.reserved):
            saved.at = path.size  # nothing was reserved
        elif self._dropped():
            ticket = next(self._tickets)
            slots = lease.slots[start:].copy()
            if saved.state.size:
                slots = self._tier.sizes.slots(lease.slots, int(saved.state[0]))[start:]
            if self._cache.windows is not None:
                saved.windows = self._cache.windows.begin_copy(slots, self._tier.block_tokens)
            job = Write(ticket, _packed(namespace), path, start, slots, saved.windows)
            if self._mover.submit(job):
                self.under_way[ticket] = saved
                self._begun += saved.reserved
                return
        self._end(saved)

    def _writes(self, namespace: Hashable, path: Key) -> bool:
        """Whether a whole path is being written, so that what follows can be as well."""
        under_way = (saved.blocks for saved in self.under_way.values())
        return any(
            each.namespace == namespace and common_prefix(each.tokens, path) == path.size
            for each in under_way
        )

    def _refused(self, blocks: Blocks, upto: int) -> None:
        """The block at `upto` can not be stored: there is no room, since others or the index take
        it, or the one before it is not there any more. Others make room, and that one is forgotten.
        """
        self._write_again = self._clock.now() + PAUSE
        self._tier.make_room(blocks.tokens.size - upto)
        if upto:
            self._tier.gone(blocks.tokens, blocks.namespace, upto - self._tier.block_tokens)

    def _end(self, saved: _Saved) -> None:
        self._tier.give_back(saved.reserved)
        self._tier.unlock(saved.stored)
        if self._cache.windows is not None:
            self._cache.windows.end_copy(saved.windows)
        if self._cache.states is not None:
            self._cache.states.unlock(saved.state, used=False)
        saved.lease.release(used=False)

    def _dropped(self) -> bool:
        """Have deleted what had to make room; False where that must wait, and so must writing."""
        self._to_drop += self._tier.take_dropped()
        if not self._to_drop:
            return True
        size = self._tier.block_tokens
        paths = [
            StoredPath(_packed(each.namespace), each.tokens[: each.start + size])
            for each in self._to_drop
        ]
        if not self._mover.submit(Drop(paths)):
            return False
        self._to_drop = []
        return True

    def _make_known(self, news: News) -> None:
        """Take over what is stored, or not any more, without this process's doing."""
        size = self._tier.block_tokens
        for path in news.added:
            if (namespace := _unpacked(path.namespace)) is not None:
                upto, windows = path.tokens.size, path.windows
                self._tier.stored(path.tokens, namespace, 0, upto, windows=windows, exact=True)
        for path in news.gone:
            if (namespace := _unpacked(path.namespace)) is not None:
                self._tier.gone(path.tokens, namespace, path.tokens.size - size)


def _packed(namespace: object) -> bytes:
    return namespace.packed() if isinstance(namespace, Namespace) else b""


def _unpacked(packed: bytes) -> Namespace | None:
    """None for what another version may have written."""
    try:
        return Namespace.unpacked(packed)
    except ValueError:
        return None
