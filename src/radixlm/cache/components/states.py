"""The component of recurrent states: a checkpoint at some nodes' ends, one slot each."""

from __future__ import annotations

from collections.abc import Callable
from heapq import nsmallest
from math import inf
from typing import Any

import numpy as np

from radixlm.cache.components.component import Component, CutMatch
from radixlm.cache.components.reuse_rates import ReuseRates
from radixlm.cache.components.state_hold import StateHold
from radixlm.cache.radix.conservation import Usage
from radixlm.cache.radix.node import NO_SLOTS, Match, TreeNode
from radixlm.cache.radix.observer import TreeObserver
from radixlm.cache.radix.tree import RadixTree
from radixlm.core.batch import EMPTY, StateMoves
from radixlm.core.errors import CacheError, ConfigError, PinError
from radixlm.core.keys import Slots
from radixlm.core.misses import MissReason

# What one request needs to begin: the checkpoint that it was found with, and a state of its own.
ALONE = 2
# Those that make room are looked for together, one of sixteen slots.
_AT_ONCE = 16


class StateSlots(Component, TreeObserver):
    """The nodes that have a checkpoint of the state at their end, and its slot.

        node      [ t0 t1 t2 ] ── [ t3 t4 ] ── [ t5 ]
        at              s7             -          s2      s7: what the model is in after t2

    A match ends at the deepest node with one (`cut`). A lease locks that checkpoint until its first
    new token; then it has a private slot, into which that is copied and what it computes goes.
    Where the lease says so (`Lease.mark`), it has a second one, into which the step copies the
    state as it passes; without room for that it leaves none. At its end it leaves its own.

    A node with a checkpoint keeps its end: it neither grows nor joins its child. When tokens at its
    end are evicted, so is the checkpoint. When there is no room, the unlocked one goes that is
    worth least: the tokens back to the one above it, which its absence would cost, by the rate at
    which those that are alike are used (see ReuseRates). awaited: say of a node whether the
    checkpoint there will soon be stored in a place; it goes after all others.

    Used by one thread, the cache's.
    """

    at_ends = True

    def __init__(self, capacity: int, tree: RadixTree) -> None:
        """capacity: slots. Raises ConfigError for too few."""
        if capacity < ALONE:
            raise ConfigError(f"{capacity} slots of states, a request alone needs {ALONE}")
        super().__init__(capacity)
        self.left_behind = self.evicted = 0
        self.at: dict[TreeNode, int] = {}
        self.awaited: list[Callable[[TreeNode], bool]] = []
        self._tree = tree
        self._node: dict[int, TreeNode] = {}  # by slot
        # Of each slot: when it was used last, and how often a lease went on from it.
        self.last_used, self._found = [0] * capacity, [0] * capacity
        self._rates, self._looked_at = ReuseRates(capacity), 0
        self._on_the_way = set[int]()  # slots
        self._to_go: list[tuple[tuple[bool, float], int]] = []  # (rank, slot), the least last
        self._free = list(range(capacity))[::-1]
        self._copies: dict[int, int] = {}  # from where, by slot
        tree.watch(self)

    def usage(self) -> Usage:
        evictable = len(self.at) - self.locked
        return Usage(len(self._free), self.private, self.locked, evictable)

    def figures(self) -> dict[str, Any]:
        usage = {f"mamba_{name}": count for name, count in self.usage()._asdict().items()}
        return usage | {
            "mamba_capacity": self.capacity,
            "mamba_checkpoints": self.left_behind,
            "mamba_evicted": self.evicted,
        }

    @property
    def pin_budget(self) -> int:
        return self.capacity - ALONE

    # Matches

    def cut(self, match: Match) -> Match:
        """Up to the deepest node with a checkpoint that is matched to its end. O(nodes)."""
        node = match.node
        if node is not None and match.offset < len(node):
            node = node.parent
        while node is not None and node.parent is not None and node not in self.at:
            node = node.parent
        if node is None or node.end == match.length:
            return match
        found = node.end, node, len(node), match.namespace, match.version
        return CutMatch(*found, match.agreed, MissReason.NO_STATE)

    def needs(self, match: Match) -> Slots:
        """(1,) the slot of the checkpoint at a match's end, (0,) without tokens."""
        return self.slot_of(match.node)

    def slot_of(self, node: TreeNode | None) -> Slots:
        """(1,) the slot of a node's checkpoint, (0,) for none."""
        slot = None if node is None else self.at.get(node)
        return NO_SLOTS if slot is None else np.array([slot], dtype=np.int32)

    def hold(self, _slots: Slots, node: TreeNode, _agreed: int, _prompt: int) -> StateHold:
        return StateHold(self, self.slot_of(node))

    def hold_read(self, _slots: Slots, _seen: int) -> StateHold | None:
        slot = self.take()
        return None if slot is None else StateHold(self, NO_SLOTS, slot)

    # What leases do, see StateHold

    def unlock(self, slots: Slots, *, used: bool = True) -> None:
        mine = self._unlock(slots)
        for slot in mine.tolist() if used else ():
            self.use(slot)

    def give(self, source: Slots) -> int:
        """A private slot, by eviction if need be, into which a checkpoint is copied; (0,) stands
        for the empty state. Raises CacheError where there is none.
        """
        if not self._free:
            self.evict()
        slot = self._free.pop()
        self.private += 1
        self._copies[slot] = int(source[0]) if source.size else EMPTY
        return slot

    def give_copy(self, since: int, ahead: int | None) -> int | None:
        """A private slot for what a step leaves on its way, see `Lease.mark`; None: there is no
        room but that of what is worth more.
        """
        if not self._free:
            worth = inf if ahead is None else since * self._rates.of_new(ahead)
            if not self.available or self._rank(self._next_to_go()) >= (ahead is None, worth):
                return None
            self.evict()
        self.private += 1
        return self._free.pop()

    def give_spare(self) -> int | None:
        """A private slot for one step, see `StateHold.spare`; None: all are in use, are stored
        soon, or of the half that checkpoints keep.
        """
        if not self._free:
            few = 2 * self.usage().evictable <= self.capacity
            if few or self._rank(self._next_to_go())[0]:
                return None
            self.evict()
        self.private += 1
        return self._free.pop()

    def take(self) -> int | None:
        """A private slot that is filled at once, by eviction if need be; None: all are locked, or
        will be copied from in the next step.
        """
        if not self._free and self.available:
            self.evict()
        sources = set(self._copies.values())
        slot = next((slot for slot in self._free if slot not in sources), None)
        if slot is not None:
            self._free.remove(slot)
            self.private += 1
        return slot

    def give_back(self, slot: int) -> None:
        """A private slot is free."""
        self.private -= 1
        self._set_free(slot)

    def enter(self, node: TreeNode, slot: int, *, on_the_way: bool) -> bool:
        """A private slot becomes a node's checkpoint; False: it has one, which is used. Where
        others went on, those that used the one above would have used it.
        """
        if node in self.at:
            self.use(self.at[node], on_the_way=on_the_way)
            return False
        self.at[node], self._node[slot] = slot, node
        self.private -= 1
        self.left_behind += 1
        above = self.slot_of(self._above(node))
        if node.children and above.size and self._found[above[0]]:
            self._found[above[0]] -= 1
            self._found[slot] += 1
        self._on_the_way.add(slot)
        self.use(slot, on_the_way=on_the_way)
        self._tree.changed(node)
        return True

    def use(self, slot: int, *, on_the_way: bool = True) -> None:
        """A checkpoint is used now, or would have been left by one more."""
        self.last_used[slot] = self._tree.uses
        if not on_the_way:
            self._on_the_way.discard(slot)

    def lasts(self, node: TreeNode) -> bool:
        """Whether the checkpoint that a node has is one to store: others went on from it, or are
        known or asked to.
        """
        slot = self.at[node]
        return slot not in self._on_the_way or self._found[slot] > 0 or len(node.children) > 1

    def found(self, source: Slots) -> None:
        """A lease goes on from a checkpoint."""
        for slot in source.tolist():
            self._rates.used(self._node[slot], self._found[slot], self._age(slot))
            self._found[slot] += 1

    def take_moves(self) -> dict[str, Any]:
        """States to be copied; their sources may be other states' slots by now."""
        if not self._copies:
            return {}
        moves = StateMoves(
            np.fromiter(self._copies.values(), np.int32), np.fromiter(self._copies, np.int32)
        )
        self._copies.clear()
        return {"states": moves}

    # Room

    def evict(self) -> None:
        """Give up the unlocked checkpoint that is worth least. O(capacity), amortised over as many
        as are looked for at once. Raises CacheError.
        """
        slot = self._next_to_go()
        node = self._node[slot]
        self._to_go.pop()
        self.evicted += 1
        above = self.slot_of(self._above(node))
        if above.size and self._found[slot]:  # what used this one will use that
            self._found[above[0]] += self._found[slot]
            self.last_used[above[0]] = max(self.last_used[above[0]], self.last_used[slot])
        self._give_up(node)
        self._tree.changed(node)
        self._tree.merge(node)

    def _next_to_go(self) -> int:
        """The slot of the one that is worth least, the last of `_to_go`. Raises CacheError."""
        while True:
            if not self._to_go:
                self._look_for_some()
            rank, slot = self._to_go[-1]
            there = slot in self._node and not self.locks[slot]
            if there and self._rank(slot) <= rank:
                return slot
            self._to_go.pop()

    def _look_for_some(self) -> None:
        """Find those that go next; count how long all waited. What raises one's worth keeps it."""
        passed, self._looked_at = self._tree.uses - self._looked_at, self._tree.uses
        for slot, node in self._node.items():
            age = self._age(slot)
            self._rates.waited(node, self._found[slot], age, min(age, passed))
        ranks = ((self._rank(slot), slot) for slot in self._node if not self.locks[slot])
        self._to_go = nsmallest(1 + self.capacity // _AT_ONCE, ranks)[::-1]
        if not self._to_go:
            raise CacheError("all checkpoints of states are locked")

    def _rank(self, slot: int) -> tuple[bool, float]:
        """The rank of a checkpoint, the smallest goes first: what is stored soon goes after all
        that is, or will never be.
        """
        node = self._node[slot]
        return any(awaits(node) for awaits in self.awaited), self.worth(slot)

    def uses_of(self, node: TreeNode) -> int:
        """How often leases went on from a node's checkpoint, or would have."""
        return self._found[self.at[node]]

    def worth(self, slot: int) -> float:
        """The tokens that would be computed again without it, by the rate at which it is used."""
        node = self._node[slot]
        above = self._above(node)
        tokens = node.end - (0 if above is None else above.end)
        return tokens * self._rates.of(node, self._found[slot], self._age(slot))

    def _above(self, node: TreeNode) -> TreeNode | None:
        """The next node above with a checkpoint, or a root."""
        above = node.parent
        while above is not None and above.parent is not None and above not in self.at:
            above = above.parent
        return above

    def _age(self, slot: int) -> int:
        return self._tree.uses - self.last_used[slot]

    def changed(self, node: TreeNode) -> None:
        if node in self.at and node.absent:
            self._give_up(node)

    def left(self, node: TreeNode) -> None:
        if node in self.at:
            self._give_up(node)

    def keeps_end(self, node: TreeNode) -> bool:
        return node in self.at

    def _give_up(self, node: TreeNode) -> None:
        slot = self.at.pop(node)
        if self.locks[slot]:
            raise CacheError(f"state slot {slot} is freed that is locked")
        del self._node[slot]
        self._found[slot] = 0
        self._on_the_way.discard(slot)
        self._set_free(slot)

    def _set_free(self, slot: int) -> None:
        self._free.append(slot)
        self._copies.pop(slot, None)

    # Pins and admission

    def too_many_pinned(self, own: int, held: int) -> PinError:
        return PinError(f"{own} state would make {held} pinned ones, of {self.pin_budget}")

    def takes(self, n_tokens: int) -> int:
        return int(n_tokens > 0)
