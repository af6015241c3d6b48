"""Prefixes that must stay: pinned until they are unpinned or their time ends."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from heapq import heapify, heappop, heappush, heapreplace
from math import inf

import numpy as np

from radixlm.cache.components.component import Component, cut
from radixlm.cache.radix.node import Match, TreeNode
from radixlm.cache.radix.tree import RadixTree
from radixlm.core.clock import Clock
from radixlm.core.errors import PinError
from radixlm.core.keys import Key, Slots

MAX_PINS = 10_000
# Each that yields costs the nodes on its path, which its owner's other pins may have cut up, and
# one request may make all of them yield, between two steps.
MAX_PINS_OF_OWNER = 1_000
# Ends of pins that are gone, beside twice as many as there are.
_SLACK = 64


@dataclass(frozen=True, slots=True)
class Pin:
    """A pinned prefix of `tokens`. expires_at: seconds by the cache's clock, or None."""

    id: int
    tokens: int
    expires_at: float | None


@dataclass(slots=True, eq=False)
class _Held:
    """owner: None if it never yields. added: tokens that no other pin held when it was made.
    parts: what it locks of each component.
    """

    pin: Pin
    node: TreeNode
    owner: str | None
    added: int
    parts: tuple[Slots, ...]


@dataclass(slots=True, eq=False)
class _Kept:
    """The pins of an owner. ends: its prefixes' ends in order, and the pin of each. added: the
    sum.
    """

    ends: dict[TreeNode, int] = field(default_factory=dict)
    added: int = 0


class PinBoard:
    """All pins of a cache. Tokens that several pins hold count once against the budget.

    Some are kept for an owner, in the order in which they were last asked for. When one more has no
    room, the oldest pin of the owner that would hold the most yields: the most tokens where these
    are too many, the most pins where those are. So no owner can keep the budget from the others,
    and the pins of a single owner are its latest ones.
    components: of each, a pin locks what a match needs that ends where it does. most: pins.
    """

    def __init__(
        self,
        tree: RadixTree,
        budget: int,
        clock: Clock,
        components: Sequence[Component] = (),
        *,
        most: int = MAX_PINS,
        most_of_owner: int = MAX_PINS_OF_OWNER,
    ) -> None:
        self.budget = budget
        self._most, self._most_of_owner = most, most_of_owner
        self._components = components
        self._tree = tree
        self._clock = clock
        self._pins: dict[int, _Held] = {}
        self._firm: dict[int, _Held] = {}  # of no owner
        self._firm_added = 0
        self._kept: dict[str, _Kept] = {}
        self._next_id = 0
        # A heap of ends and whose they are: one of each pin, not after its own.
        self._ends: list[tuple[float, int]] = []

    def nodes(self) -> list[TreeNode]:
        """The node where each pin ends."""
        return [held.node for held in self._pins.values()]

    def add(self, match: Match, ttl: float | None) -> Pin:
        """Pin what was matched, for `ttl` seconds or until it is unpinned. Raises PinError."""
        if len(self._pins) >= self._most:
            raise PinError(f"there are {self._most} pins already; unpin something first")
        if not match.length:
            raise PinError("nothing of this prefix is cached, so there is nothing to pin")
        _check_ttl(ttl)
        more = match.unpinned()
        if self._tree.pinned_size + more > self.budget:
            raise PinError(
                f"{more} more tokens would make {self._tree.pinned_size + more} pinned ones, "
                f"the budget is {self.budget} (--max-pinned-tokens); unpin something first"
            )
        self._check_components(match, self._pins.values())
        return self._add(match, ttl, None)

    def keep(self, key: Key, namespace: Hashable, ttl: float, owner: str) -> Pin:
        """Pin the whole key for `ttl` seconds at least, or renew the pin that the owner has there.

        Raises PinError when it is not all cached, or what may yield does not make enough room.
        """
        _check_ttl(ttl)
        match = self._whole(key, namespace)
        renewed = self._renew(match, ttl, owner)
        if renewed is not None:
            return renewed
        if match.length + self._firm_added > self.budget:
            raise PinError(
                f"{match.length} tokens are more than the budget of {self.budget} leaves beside "
                f"{self._firm_added} pinned ones (--max-pinned-tokens)"
            )
        self._check_components(match, self._firm.values())
        if self._make_place(owner):
            match = self._whole(key, namespace)
        largest: _Largest | None = None
        while not self._fits(match):
            if largest is None:
                largest = _Largest(self._kept)
            yielding = self._kept.get(largest.with_more(match.unpinned(), owner))
            if yielding is None:
                raise PinError(f"there is no room for {match.length} more pinned tokens")
            self.remove(_oldest(yielding))
            match = self._whole(key, namespace)  # nodes may have been merged
        return self._add(match, ttl, owner)

    def remove(self, pin_id: int) -> None:
        """Unpin. Raises PinError when there is no such pin (any more)."""
        if not isinstance(pin_id, int) or pin_id not in self._pins:
            raise PinError(f"there is no pin {pin_id!r}; it was unpinned or has expired")
        held = self._pins.pop(pin_id)
        if held.owner is None:
            del self._firm[pin_id]
            self._firm_added -= held.added
        else:
            kept = self._kept[held.owner]
            del kept.ends[held.node]
            kept.added -= held.added
            if not kept.ends:
                del self._kept[held.owner]
        for component, part in zip(self._components, held.parts, strict=True):
            component.unpin(part)
        self._tree.unpin(held.node)

    def expire(self) -> None:
        """Unpin what has reached its end, the first to end first. O(1) while nothing has, O(log
        pins) for each.
        """
        while self._ends and self._ends[0][0] <= self._clock.now():
            end, pin_id = heappop(self._ends)
            held = self._pins.get(pin_id)
            if held is None or held.pin.expires_at is None:
                continue
            if held.pin.expires_at <= end:
                self.remove(pin_id)
            else:  # it was renewed
                heappush(self._ends, (held.pin.expires_at, pin_id))

    def _whole(self, key: Key, namespace: Hashable) -> Match:
        match = cut(self._components, self._tree.match_prefix(key, namespace))
        if not match.length or match.length < key.size:
            raise PinError(f"{match.length} of {key.size} tokens are cached, so nothing is kept")
        return match

    def _renew(self, match: Match, ttl: float, owner: str) -> Pin | None:
        ends = self._kept[owner].ends if owner in self._kept else {}
        node = match.node
        if node is None or node.end != match.length or node not in ends:
            return None
        held = self._pins[ends[node]]
        end = max(held.pin.expires_at or 0.0, self._clock.now() + ttl)
        held.pin = replace(held.pin, expires_at=end)
        ends[node] = ends.pop(node)
        return held.pin

    def _make_place(self, owner: str) -> bool:
        """Let a pin yield where there are too many of them. Raises PinError where none may."""
        kept = self._kept.get(owner)
        if kept is None or len(kept.ends) < self._most_of_owner:
            if len(self._pins) < self._most:
                return False
            kept = max(self._kept.values(), key=lambda each: len(each.ends), default=None)
        if kept is None:
            raise PinError(f"there are {self._most} pins already; unpin something first")
        self.remove(_oldest(kept))
        return True

    def _fits(self, match: Match) -> bool:
        return self._tree.pinned_size + match.unpinned() <= self.budget and all(
            component.pinned + component.unpinned(component.needs(match)) <= component.pin_budget
            for component in self._components
        )

    def _check_components(self, match: Match, beside: Iterable[_Held]) -> None:
        """Raises PinError where what a match needs does not fit beside what these pins lock."""
        for index, component in enumerate(self._components):
            own = component.needs(match)
            held = np.unique(np.concatenate([own, *(each.parts[index] for each in beside)])).size
            if held > component.pin_budget:
                raise component.too_many_pinned(own.size, held)

    def _add(self, match: Match, ttl: float | None, owner: str | None) -> Pin:
        ends = None if ttl is None else self._clock.now() + ttl
        added = match.unpinned()
        self._next_id += 1
        pin = Pin(self._next_id, match.length, ends)
        parts = tuple([component.needs(match) for component in self._components])
        node = self._tree.pin(match)
        for component, part in zip(self._components, parts, strict=True):
            component.pin(part)
        held = self._pins[pin.id] = _Held(pin, node, owner, added, parts)
        if owner is None:
            self._firm[pin.id] = held
            self._firm_added += added
        else:
            kept = self._kept.setdefault(owner, _Kept())
            kept.ends[node] = pin.id
            kept.added += added
        if ends is not None:
            heappush(self._ends, (ends, pin.id))
            if len(self._ends) > 2 * len(self._pins) + _SLACK:  # most are of pins that are gone
                self._ends = [each for each in self._ends if each[1] in self._pins]
                heapify(self._ends)
        return pin


class _Largest:
    """Owners by the tokens that they hold, found in O(log owners) while they lose some."""

    def __init__(self, kept: Mapping[str, _Kept]) -> None:
        self._kept = kept
        self._places = {name: place for place, name in enumerate(kept)}
        self._heap = [(-kept[name].added, place, name) for name, place in self._places.items()]
        heapify(self._heap)

    def with_more(self, more: int, owner: str) -> str:
        """The owner who would hold most if `owner` held `more` tokens more; of several the
        first.
        """
        heap = self._heap
        while heap:
            size, place, name = heap[0]
            if name not in self._kept:
                heappop(heap)
            elif size != -self._kept[name].added:
                heapreplace(heap, (-self._kept[name].added, place, name))
            else:
                break
        own = more + (self._kept[owner].added if owner in self._kept else 0)
        asking = (-own, self._places.get(owner, len(self._places)), owner)
        return min([asking, *heap[:1]])[2]


def _oldest(kept: _Kept) -> int:
    return next(iter(kept.ends.values()))


def _check_ttl(ttl: float | None) -> None:
    numeric = isinstance(ttl, int | float) and not isinstance(ttl, bool)
    if ttl is not None and not (numeric and 0 < ttl < inf):
        raise PinError(f"a time-to-live is a positive number of seconds, got {ttl!r}")
