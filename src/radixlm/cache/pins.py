"""Prefixes that must stay: pinned until they are unpinned or their time ends."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

from radixlm.cache.node import Match, TreeNode
from radixlm.cache.tree import RadixTree
from radixlm.core.clock import Clock
from radixlm.core.errors import PinError
from radixlm.core.events import EventSink, Pinned, Unpinned

MAX_PINS = 10_000


@dataclass(frozen=True, slots=True)
class Pin:
    """A pinned prefix of so many tokens. expires_at: seconds by the cache's clock, or None."""

    id: int
    tokens: int
    expires_at: float | None


class PinBoard:
    """All pins of a cache. Tokens that several pins hold count once against the budget."""

    def __init__(self, tree: RadixTree, budget: int, clock: Clock, sink: EventSink | None) -> None:
        self.budget = budget
        self._tree = tree
        self._clock = clock
        self._sink = sink
        self._pins: dict[int, tuple[Pin, TreeNode]] = {}
        self._next_id = 0
        self._first_end = inf

    def nodes(self) -> list[TreeNode]:
        """Where each pin ends."""
        return [node for _, node in self._pins.values()]

    def add(self, match: Match, ttl: float | None) -> Pin:
        """Pin what was matched, for `ttl` seconds or until it is unpinned. Raises PinError."""
        if len(self._pins) >= MAX_PINS:
            raise PinError(f"there are {MAX_PINS} pins already; unpin something first")
        if not match.length:
            raise PinError("nothing of this prefix is cached, so there is nothing to pin")
        numeric = isinstance(ttl, int | float) and not isinstance(ttl, bool)
        if ttl is not None and not (numeric and 0 < ttl < inf):
            raise PinError(f"a time-to-live is a positive number of seconds, got {ttl!r}")
        more = self._tree.unpinned_on_path(match)
        if self._tree.pinned_size + more > self.budget:
            raise PinError(
                f"{more} more tokens would make {self._tree.pinned_size + more} pinned ones, "
                f"the budget is {self.budget} (--max-pinned-tokens); unpin something first"
            )
        ends = None if ttl is None else self._clock.now() + ttl
        self._next_id += 1
        pin = Pin(self._next_id, match.length, ends)
        self._pins[pin.id] = (pin, self._tree.pin(match))
        self._first_end = min(self._first_end, inf if ends is None else ends)
        if self._sink is not None:
            self._sink(Pinned(pin.id, pin.tokens))
        return pin

    def remove(self, pin_id: int) -> None:
        """Unpin. Raises PinError when there is no such pin (any more)."""
        self._remove(pin_id, expired=False)

    def expire(self) -> None:
        """Unpin what has reached its end. O(1) while nothing has."""
        if self._first_end == inf or self._clock.now() < self._first_end:
            return
        now = self._clock.now()
        pins = [pin for pin, _ in self._pins.values()]
        ends = {pin.id: pin.expires_at for pin in pins if pin.expires_at is not None}
        for pin_id, end in ends.items():
            if end <= now:
                self._remove(pin_id, expired=True)
        self._first_end = min((end for end in ends.values() if end > now), default=inf)

    def _remove(self, pin_id: int, *, expired: bool) -> None:
        if not isinstance(pin_id, int) or pin_id not in self._pins:
            raise PinError(f"there is no pin {pin_id!r}; it was unpinned or has expired")
        _, node = self._pins.pop(pin_id)
        self._tree.unpin(node)
        if self._sink is not None:
            self._sink(Unpinned(pin_id, expired))
