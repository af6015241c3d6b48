"""The components of a model's memory that have slots of their own, beside full keys and values."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from radixlm.cache.radix.conservation import Usage
from radixlm.cache.radix.node import Match, TreeNode
from radixlm.core.errors import PinError
from radixlm.core.keys import Slots


@dataclass(slots=True)
class CutMatch(Match):
    """A match that ends where a component has what it needs. whole: as long as tokens agree."""

    whole: Match

    @property
    def agreed(self) -> Match:
        return self.whole


class ComponentHold(Protocol):
    """A lease's hold on a component: locks on what is the tree's, and private slots.

    slots: those of the pool that the lease has, by token, as far as positions in the same call
    reach. committed: how many tokens are the tree's. length: how many have slots, in whole pages.
    """

    def takes(self, first: int, stop: int) -> int:
        """How many of the component's slots the lease's tokens [first, stop), whole pages, take."""

    def extend(self, first: int, stop: int, slots: Slots) -> None:
        """Take slots of the component: these tokens, maybe none, have slots of the pool now; what
        they take is available.
        """

    def commit(self, start: int, upto: int, mine: Slots, theirs: Slots) -> None:
        """Tokens [start, upto) enter the tree. mine: all slots. theirs: the tree's, of those from
        `start` on that it had before.
        """

    def checkpoint(self, node: TreeNode) -> None:
        """All that is computed ends in `node`: leave there what a match needs at its end."""

    def pass_by(self, computed: int, committed: int, slots: Slots) -> None:
        """Give up what no token after the first `computed` needs."""

    def release(self, committed: int, slots: Slots, *, used: bool) -> None:
        """Give up all, but private slots of tokens: those are freed with the pool's, by `drop`.
        used: until now; else what goes first is as it was.
        """

    def locks(self, committed: int, slots: Slots) -> Slots:
        """The slots that it locks, as Component.needs names them."""

    def private(self, length: int, committed: int) -> int:
        """The component's slots that only this lease uses."""

    def still_takes(self, total: int, length: int, cached: int) -> int:
        """Slots that it takes until it has `total` tokens, at most, between two steps; `cached`:
        how many a match found.
        """


class Component(Protocol):
    """A component of a model's memory with slots of its own, for tokens or for checkpoints at
    nodes' ends; by the law of Usage. Full keys and values are none: they are what the tree holds.

    It says what a match needs of it, what a lease locks and takes, and what goes first when there
    is no room. What a match needs is named by (n,) slots: its own or the pool's.

    held, pinned: locks, and how many slots pins lock. pin_budget: how many they may lock, so that a
    request alone can go on. Used by one thread, the cache's.
    """

    capacity: int
    held: int
    pinned: int

    @property
    def pin_budget(self) -> int: ...

    @property
    def available(self) -> int:
        """Slots that leases can still get."""

    def usage(self) -> Usage: ...

    def figures(self) -> dict[str, Any]:
        """Fields of the engine's statistics."""

    def cut(self, match: Match) -> Match:
        """The longest part of a match that ends where the component has what it needs."""

    def needs(self, match: Match) -> Slots:
        """The slots that a match needs, which `cut` leaves as it is."""

    def hold(self, slots: Slots, node: TreeNode, agreed: int, prompt: int) -> ComponentHold:
        """Lock what a match needs, for a lease. slots: of all that was found. node: where it ends.
        agreed: how many tokens agreed. prompt: where the prompt ends.
        """

    def drop(self, slots: Slots) -> None:
        """Drop what belongs to slots of the pool that are free now."""

    def pin(self, slots: Slots) -> None:
        """Lock what a match needs, counted apart."""

    def unpin(self, slots: Slots) -> None: ...

    def unpinned(self, slots: Slots) -> int:
        """How many of these no pin locks."""

    def too_many_pinned(self, own: int, held: int) -> PinError:
        """The error for a pin that locks `own` slots, which makes `held` in all."""

    def takes(self, n_tokens: int) -> int:
        """Slots that a request takes to compute `n_tokens`, one step included."""

    def locked_anew(self, match: Match) -> int:
        """Slots that are evictable as long as `match` is not locked."""

    def given_back(self, held: Iterable[Slots], match: Match) -> int:
        """Slots that only leases with these `locks` lock, and `match` would not lock."""


def cut(components: Sequence[Component], match: Match) -> Match:
    """The longest part of a match that ends where all components have what they need."""
    while True:
        length = match.length
        for component in components:
            match = component.cut(match)
        if match.length == length or len(components) == 1:
            return match
