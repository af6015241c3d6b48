"""The components of a model's memory that have slots of their own, beside full keys and values."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from radixlm.cache.radix.conservation import Usage
from radixlm.cache.radix.node import NO_SLOTS, Match, TreeNode
from radixlm.core.errors import CacheError, PinError
from radixlm.core.keys import Slots
from radixlm.core.misses import MissReason


@dataclass(slots=True)
class CutMatch(Match):
    """A match that ends where a component has what it needs. whole: as long as tokens agree.
    reason: why it ends there, by the component that cut it last.
    """

    whole: Match
    reason: MissReason

    @property
    def agreed(self) -> Match:
        return self.whole


class ComponentHold(ABC):
    """A lease's hold on a component: locks on what is the tree's, and private slots.

    slots: those of the pool that the lease has, by token, as far as positions in the same call
    reach. committed: how many tokens are the tree's. length: how many have slots, in whole pages.
    lost: it can not be extended after it shrank.
    """

    lost = False

    @abstractmethod
    def takes(self, first: int, stop: int) -> int:
        """How many of the component's slots the lease's tokens [first, stop), whole pages, take."""

    @abstractmethod
    def extend(self, first: int, stop: int, slots: Slots) -> None:
        """Take slots of the component: these tokens, maybe none, have slots of the pool now; what
        they take is available.
        """

    def commit(self, start: int, node: TreeNode, mine: Slots, theirs: Slots) -> None:  # noqa: B027
        """Tokens from `start` to the end of `node` entered the tree. mine: all slots. theirs: the
        tree's, of those that it had before, the first ones. Nothing, where tokens have no slots.
        """

    def mark(self, end: int, since: int, ahead: int | None) -> None:  # noqa: B027
        """See Lease. Nothing, where tokens have what a match needs at its end."""

    def checkpoint(self, node: TreeNode) -> None:  # noqa: B027
        """All that is computed ends in `node`, and is not extended: leave there what a match needs
        at its end. Nothing, where tokens have it.
        """

    def row_fields(self) -> dict[str, Any]:
        """Fields of the lease's row in the next batch."""
        return {}

    def pass_by(self, computed: int, committed: int, slots: Slots) -> None:  # noqa: B027
        """Give up what no token after the first `computed` needs. Nothing, where all is kept."""

    def spare(self, _length: int, count: int) -> int:
        """Prepare the next step for a lease that may shrink to `length` tokens, or to some of the
        `count` - 1 after these, and give up what was prepared before; to how many it could. To all,
        where tokens alone have slots.
        """
        return count

    def shrink(self, length: int, first: int, stop: int, slots: Slots) -> None:  # noqa: B027
        """Give up what tokens [first, stop), whole pages, have taken, as there are `length` tokens.
        Nothing, where tokens have no slots.
        """

    @abstractmethod
    def release(self, committed: int, slots: Slots, *, used: bool) -> None:
        """Give up all, but private slots of tokens: those are freed with the pool's, by `drop`.
        used: until now; else what goes first is as it was.
        """

    @abstractmethod
    def locks(self, committed: int, slots: Slots) -> Slots:
        """The slots that it locks, as Component.needs names them."""

    @abstractmethod
    def private(self, length: int, committed: int) -> int:
        """The component's slots that only this lease uses."""

    @abstractmethod
    def still_takes(self, total: int, length: int, cached: int) -> int:
        """Slots that it takes until it has `total` tokens, at most, between two steps; `cached`:
        how many a match found.
        """


class Component(ABC):
    """A component of a model's memory with slots of its own, for tokens or for checkpoints at
    nodes' ends; by the law of Usage. Full keys and values are none: they are what the tree holds.

    It says what a match needs of it, what a lease locks and takes, and what goes first when there
    is no room. What a match needs is named by (n,) slots: its own or the pool's.

    Where `cut` would give something else, but for the tree's own transitions, it calls the tree's
    `changed` with the node where that is, of a path the lowest; or `matches_changed`, which looks
    at all nodes, where it knows slots only. Else matches from before that are taken for true, and
    watchers do not see it.

    private, locked: slots that single leases use, and those of the tree under locks. locks: of each
    slot. pinned: how many pins lock. at_ends: whether it keeps what `Lease.checkpoint` leaves. Used
    by one thread, the cache's.
    """

    at_ends = False

    def __init__(self, capacity: int) -> None:
        """capacity: slots."""
        self.capacity = capacity
        self.private = self.locked = self.pinned = 0
        self.locks: Slots = np.zeros(capacity, dtype=np.int32)
        self._pins: Slots = np.zeros(capacity, dtype=np.int32)

    @property
    def available(self) -> int:
        """Slots that leases can still get."""
        return self.capacity - self.private - self.locked

    @abstractmethod
    def usage(self) -> Usage: ...

    def figures(self) -> dict[str, Any]:
        """Fields of the engine's statistics."""
        return {}

    def take_moves(self) -> dict[str, Any]:
        """Fields of the next batch that is computed: what has moved since the last one."""
        return {}

    @abstractmethod
    def cut(self, match: Match) -> Match:
        """The longest part of a match that ends where the component has what it needs."""

    @abstractmethod
    def needs(self, match: Match) -> Slots:
        """The slots that a match needs, which `cut` leaves as it is."""

    @abstractmethod
    def hold(self, slots: Slots, node: TreeNode, agreed: int, prompt: int) -> ComponentHold:
        """Lock what a match needs, for a lease. slots: of all that was found. node: where it ends.
        agreed: how many tokens agreed. prompt: where the prompt ends.
        """

    @abstractmethod
    def hold_read(self, slots: Slots, seen: int) -> ComponentHold | None:
        """Hold what is read from a place, for a lease that has these slots; None: there is no room.
        seen: the first token whose part of it is read, where tokens have some.
        """

    def drop(self, slots: Slots) -> None:  # noqa: B027
        """Drop what belongs to slots of the pool that are free now."""

    # Locks and pins

    def own(self, slots: Slots) -> Slots:
        """The component's own slots of those that `needs` names."""
        return slots

    def lock(self, slots: Slots) -> None:
        """One lock more on what is all there."""
        mine = self.own(slots)
        self.locked += int(np.count_nonzero(self.locks[mine] == 0))
        self.locks[mine] += 1

    @abstractmethod
    def unlock(self, slots: Slots, *, used: bool = True) -> None:
        """Undo a lock on what a match needs. used: until now; else what goes first is as it was."""

    def _unlock(self, slots: Slots) -> Slots:
        """Undo a lock; its own slots. Raises CacheError for those without."""
        mine = self.own(slots)
        if mine.size and int(self.locks[mine].min()) < 1:
            raise CacheError(f"{mine.size} slots of a component are unlocked, some without a lock")
        self.locks[mine] -= 1
        self.locked -= int(np.count_nonzero(self.locks[mine] == 0))
        return mine

    @property
    @abstractmethod
    def pin_budget(self) -> int:
        """Slots that pins may lock, so that a request alone can go on."""

    def pin(self, slots: Slots) -> None:
        """Lock what a match needs, counted apart, once for all pins."""
        self.lock(slots)
        self.pinned += self.unpinned(slots)
        self._pins[self.own(slots)] += 1

    def unpin(self, slots: Slots) -> None:
        self._pins[self.own(slots)] -= 1
        self.pinned -= self.unpinned(slots)
        self.unlock(slots)

    def unpinned(self, slots: Slots) -> int:
        """How many of these no pin locks."""
        return int(np.count_nonzero(self._pins[self.own(slots)] == 0))

    @abstractmethod
    def too_many_pinned(self, own: int, held: int) -> PinError:
        """The error for a pin that locks `own` slots, which makes `held` in all."""

    # Admission

    @abstractmethod
    def takes(self, n_tokens: int) -> int:
        """Slots that a request takes to compute `n_tokens`, one step included."""

    def locked_anew(self, match: Match) -> int:
        """Slots that are evictable as long as `match` is not locked."""
        return int(np.count_nonzero(self.locks[self.own(self.needs(match))] == 0))

    def given_back(self, held: Iterable[Slots], match: Match) -> int:
        """Slots that only leases with these `locks` lock, and `match` would not lock."""
        every = self.own(np.concatenate([NO_SLOTS, *held]))
        mine, count = np.unique(every, return_counts=True)
        alone = mine[count == self.locks[mine]]
        return int(np.count_nonzero(~np.isin(alone, self.own(self.needs(match)))))


def cut(components: Sequence[Component], match: Match) -> Match:
    """The longest part of a match that ends where all components have what they need."""
    while True:
        length = match.length
        for component in components:
            match = component.cut(match)
        if match.length == length or len(components) == 1:
            return match
