"""Prefixes that must stay: pinned until they are unpinned or their time ends."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass, replace
from math import inf

import numpy as np

from radixlm.cache.node import NO_SLOTS, Match, TreeNode
from radixlm.cache.tree import RadixTree
from radixlm.cache.window_slots import WindowSlots
from radixlm.core.clock import Clock
from radixlm.core.errors import PinError
from radixlm.core.keys import Key, Slots

MAX_PINS = 10_000


@dataclass(frozen=True, slots=True)
class Pin:
    """A pinned prefix of `tokens`. expires_at: seconds by the cache's clock, or None."""

    id: int
    tokens: int
    expires_at: float | None


@dataclass(slots=True, eq=False)
class _Held:
    """owner: None if it never yields. added: tokens that no other pin held when it was made.
    window: the slots whose window slots it locks.
    """

    pin: Pin
    node: TreeNode
    owner: str | None
    added: int
    window: Slots


class PinBoard:
    """All pins of a cache. Tokens that several pins hold count once against the budget.

    Some are kept for an owner, in the order in which they were last asked for. When one more has no
    room, the oldest pin of the owner that would hold the most yields. So no owner can keep the
    budget from the others, and the pins of a single owner are its latest ones.
    windows: where there are window slots, a pin locks those of its last window.
    """

    def __init__(
        self, tree: RadixTree, budget: int, clock: Clock, windows: WindowSlots | None = None
    ) -> None:
        self.budget = budget
        self._windows = windows
        self._tree = tree
        self._clock = clock
        self._pins: dict[int, _Held] = {}
        # Of each owner, its kept prefixes' ends in order, and the pin of each.
        self._kept: dict[str, dict[TreeNode, int]] = {}
        self._next_id = 0
        self._first_end = inf

    def nodes(self) -> list[TreeNode]:
        """Where each pin ends."""
        return [held.node for held in self._pins.values()]

    def add(self, match: Match, ttl: float | None) -> Pin:
        """Pin what was matched, for `ttl` seconds or until it is unpinned. Raises PinError."""
        if len(self._pins) >= MAX_PINS:
            raise PinError(f"there are {MAX_PINS} pins already; unpin something first")
        if not match.length:
            raise PinError("nothing of this prefix is cached, so there is nothing to pin")
        _check_ttl(ttl)
        more = match.unpinned()
        if self._tree.pinned_size + more > self.budget:
            raise PinError(
                f"{more} more tokens would make {self._tree.pinned_size + more} pinned ones, "
                f"the budget is {self.budget} (--max-pinned-tokens); unpin something first"
            )
        self._check_windows(match, self._pins.values())
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
        staying = [held for held in self._pins.values() if held.owner is None]
        firm = sum(held.added for held in staying)
        if match.length + firm > self.budget:
            raise PinError(
                f"{match.length} tokens are more than the budget of {self.budget} leaves beside "
                f"{firm} pinned ones (--max-pinned-tokens)"
            )
        self._check_windows(match, staying)
        while not self._fits(match):
            oldest = self._first_to_yield(match.unpinned(), owner)
            if oldest is None:
                raise PinError(f"there is no room for {match.length} more pinned tokens")
            self.remove(oldest)
            match = self._whole(key, namespace)  # nodes may have been merged
        return self._add(match, ttl, owner)

    def remove(self, pin_id: int) -> None:
        """Unpin. Raises PinError when there is no such pin (any more)."""
        if not isinstance(pin_id, int) or pin_id not in self._pins:
            raise PinError(f"there is no pin {pin_id!r}; it was unpinned or has expired")
        held = self._pins.pop(pin_id)
        if held.owner is not None:
            del self._kept[held.owner][held.node]
            if not self._kept[held.owner]:
                del self._kept[held.owner]
        if self._windows is not None:
            self._windows.unpin(held.window)
        self._tree.unpin(held.node)

    def expire(self) -> None:
        """Unpin what has reached its end. O(1) while nothing has."""
        if self._first_end == inf or self._clock.now() < self._first_end:
            return
        now = self._clock.now()
        pins = [held.pin for held in self._pins.values()]
        ends = {pin.id: pin.expires_at for pin in pins if pin.expires_at is not None}
        for pin_id, end in ends.items():
            if end <= now:
                self.remove(pin_id)
        self._first_end = min((end for end in ends.values() if end > now), default=inf)

    def _whole(self, key: Key, namespace: Hashable) -> Match:
        match = self._tree.match_prefix(key, namespace)
        if self._windows is not None:
            match = self._windows.cut(match)
        if not match.length or match.length < key.size:
            raise PinError(f"{match.length} of {key.size} tokens are cached, so nothing is kept")
        return match

    def _renew(self, match: Match, ttl: float, owner: str) -> Pin | None:
        ends = self._kept.get(owner, {})
        node = match.node
        if node is None or node.end != match.length or node not in ends:
            return None
        held = self._pins[ends[node]]
        end = max(held.pin.expires_at or 0.0, self._clock.now() + ttl)
        held.pin = replace(held.pin, expires_at=end)
        ends[node] = ends.pop(node)
        return held.pin

    def _fits(self, match: Match) -> bool:
        more = match.unpinned()
        room = len(self._pins) < MAX_PINS and self._tree.pinned_size + more <= self.budget
        return room and self._fits_windows(match)

    def _fits_windows(self, match: Match) -> bool:
        windows = self._windows
        if windows is None:
            return True
        more = windows.unpinned(windows.window_of(match))
        return windows.pinned + more <= windows.pin_budget

    def _check_windows(self, match: Match, beside: Iterable[_Held]) -> None:
        """Raises PinError where a match's last window does not fit beside those of these pins."""
        windows = self._windows
        if windows is None:
            return
        own = windows.window_of(match)
        held = np.unique(np.concatenate([own, *(each.window for each in beside)])).size
        if held > windows.pin_budget:
            raise PinError(
                f"its last window of {own.size} tokens would make {held} pinned ones of windows, "
                f"the budget is {windows.pin_budget} (--swa-full-tokens-ratio, --kv-tokens)"
            )

    def _first_to_yield(self, more: int, owner: str) -> int | None:
        """The oldest pin of the owner that would hold most if `owner` held `more` tokens more."""
        sizes = dict.fromkeys(self._kept, 0) | {owner: more}
        for name, ends in self._kept.items():
            sizes[name] += sum(self._pins[pin_id].added for pin_id in ends.values())
        largest = max(sizes, key=lambda name: sizes[name])
        return next(iter(self._kept.get(largest, {}).values()), None)

    def _add(self, match: Match, ttl: float | None, owner: str | None) -> Pin:
        ends = None if ttl is None else self._clock.now() + ttl
        added = match.unpinned()
        self._next_id += 1
        pin = Pin(self._next_id, match.length, ends)
        window = NO_SLOTS if self._windows is None else self._windows.window_of(match)
        node = self._tree.pin(match)
        if self._windows is not None:
            self._windows.pin(window)
        self._pins[pin.id] = _Held(pin, node, owner, added, window)
        if owner is not None:
            self._kept.setdefault(owner, {})[node] = pin.id
        self._first_end = min(self._first_end, inf if ends is None else ends)
        return pin


def _check_ttl(ttl: float | None) -> None:
    numeric = isinstance(ttl, int | float) and not isinstance(ttl, bool)
    if ttl is not None and not (numeric and 0 < ttl < inf):
        raise PinError(f"a time-to-live is a positive number of seconds, got {ttl!r}")
