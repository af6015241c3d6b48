"""A lease's hold on states."""

from __future__ import annotations

from typing import Any, Protocol

from radixlm.cache.components.component import ComponentHold
from radixlm.cache.radix.node import NO_SLOTS, TreeNode
from radixlm.core.keys import Slots


class StateKeeper(Protocol):
    """`StateSlots`, as a hold sees it."""

    def lock(self, slots: Slots) -> None: ...
    def unlock(self, slots: Slots, *, used: bool = True) -> None: ...
    def give(self, source: Slots) -> int: ...
    def give_copy(self, since: int, ahead: int | None) -> int | None: ...
    def give_spare(self) -> int | None: ...
    def give_back(self, slot: int) -> None: ...
    def enter(self, node: TreeNode, slot: int, *, on_the_way: bool) -> bool: ...
    def found(self, source: Slots) -> None: ...


class StateHold(ComponentHold):
    """A lease's hold on states: `source`, the checkpoint where its match ends, locked until it has
    computed anything; then `slot`, private. One that is read from a place has that at once. marks:
    private slots that the next step copies it into, after how many tokens; and whether no request
    is known to go on from there. spares: private slots that it is copied into for one step, after
    how many tokens, of which the last may be wrong.
    """

    def __init__(self, states: StateKeeper, source: Slots, slot: int | None = None) -> None:
        self._states = states
        self.source = source
        self.slot = slot
        self.marks: dict[int, tuple[int, bool]] = {}
        self.spares: dict[int, int] = {}
        states.lock(self.source)

    def takes(self, first: int, stop: int) -> int:
        return int(self.slot is None and first < stop)

    def extend(self, first: int, stop: int, _slots: Slots) -> None:
        if self.takes(first, stop):
            self.slot = self._states.give(self.source)
            self._states.found(self.source)
            self._let_go(used=True)

    def spare(self, length: int, count: int) -> int:
        for spare in self.spares.values():
            self._states.give_back(spare)
        self.spares.clear()
        while len(self.spares) < count and (slot := self._states.give_spare()) is not None:
            self.spares[length + len(self.spares)] = slot
        return len(self.spares)

    def pass_by(self, computed: int, _committed: int, _slots: Slots) -> None:
        self.spare(computed, 0)

    def shrink(self, length: int, _first: int, _stop: int, _slots: Slots) -> None:
        """A state does not go back: without a spare of it the lease can not go on, nor leave it
        anywhere.
        """
        if self.slot is not None:
            self._states.give_back(self.slot)
        self.slot = self.spares.pop(length, None)
        self.lost = self.slot is None
        self.spare(length, 0)

    def row_fields(self) -> dict[str, Any]:
        marks = ((end, slot) for end, (slot, _) in self.marks.items())
        spares = tuple(self.spares.items())
        return {"state": self.slot, "checkpoints": tuple(marks), "spares": spares}

    def mark(self, end: int, since: int, ahead: int | None) -> None:
        if end in self.spares:
            return  # it is copied there already
        slot = self._states.give_copy(since, ahead)
        if slot is None and ahead is None:
            slot = self._from_the_way()
        if slot is not None:
            self.marks[end] = slot, ahead is not None

    def _from_the_way(self) -> int | None:
        """The slot of a place on the way that the same step was to leave, and does not."""
        ends = (end for end, (_, on_the_way) in self.marks.items() if on_the_way)
        return next((self.marks.pop(end)[0] for end in ends), None)

    def commit(self, _start: int, node: TreeNode, _mine: Slots, _theirs: Slots) -> None:
        """A copy becomes the node's, unless it has one."""
        if node.end in self.marks:
            slot, on_the_way = self.marks.pop(node.end)
            if not self._states.enter(node, slot, on_the_way=on_the_way):
                self._states.give_back(slot)

    def checkpoint(self, node: TreeNode) -> None:
        """The private slot becomes the node's, unless it has one."""
        if self.slot is not None and self._states.enter(node, self.slot, on_the_way=False):
            self.slot = None

    def release(self, _committed: int, _slots: Slots, *, used: bool) -> None:
        mine = *self.spares.values(), *(slot for slot, _ in self.marks.values())
        for slot in mine if self.slot is None else (self.slot, *mine):
            self._states.give_back(slot)
        self._let_go(used=used)

    def locks(self, _committed: int, _slots: Slots) -> Slots:
        return self.source

    def private(self, _length: int, _committed: int) -> int:
        return len(self.marks) + len(self.spares) + (self.slot is not None)

    def still_takes(self, total: int, length: int, _cached: int) -> int:
        return self.takes(length, total)

    def _let_go(self, *, used: bool) -> None:
        self._states.unlock(self.source, used=used)
        self.source = NO_SLOTS
