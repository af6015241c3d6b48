"""Requests under way: how many each API key has, by which names, and how fast they end."""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager

from radixlm.core.clock import Clock
from radixlm.core.errors import InvalidRequestError, QueueFullError, counted

MAX_WAIT_SECONDS = 60
_REMEMBERED = 65


class KeyQueues:
    """Used from the event loop's thread only. A tenant without requests takes no memory."""

    def __init__(self) -> None:
        self._under_way: Counter[str] = Counter()

    def __len__(self) -> int:
        """Tenants with requests under way."""
        return len(self._under_way)

    def check(self, tenant: str, count: int, most: int | None) -> None:
        """Raise QueueFullError when `count` more would exceed `most`; None is no limit."""
        if most is not None and self._under_way[tenant] + count > most:
            raise QueueFullError(
                f"this key's {counted(self._under_way[tenant], 'request')} under way and {count} "
                f"more exceed --max-queued-requests-per-key {most}; try again later"
            )

    @contextmanager
    def taken(self, tenant: str, count: int, most: int | None) -> Iterator[None]:
        """Hold `count` places for as long as the block lasts. Raises QueueFullError."""
        self.check(tenant, count, most)
        self._under_way[tenant] += count
        try:
            yield
        finally:
            self._under_way[tenant] -= count
            if not self._under_way[tenant]:
                del self._under_way[tenant]


class Pace:
    """The last ends of requests, since the server was last idle."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._running = 0
        self._moments = deque([clock.now()], maxlen=_REMEMBERED)

    @contextmanager
    def running(self, count: int) -> Iterator[Callable[[], None]]:
        """Requests are under way inside. Yields what is called when one of them has ended."""
        if not self._running:
            self._moments.clear()
            self._moments.append(self._clock.now())
        self._running += count
        try:
            yield lambda: self._moments.append(self._clock.now())
        finally:
            self._running -= count

    def seconds_for(self, requests: int) -> int:
        """In how many seconds `requests` more will have ended at this pace: 1 to 60.

        Before the first end, one counts as just ending.
        """
        passed = self._clock.now() - self._moments[0]
        ends = max(len(self._moments) - 1, 1)
        return min(max(math.ceil(requests * passed / ends), 1), MAX_WAIT_SECONDS)


class Rids:
    """Which of the engine's requests each rid stands for, and whose they are, while under way.

    An owner sees nothing of the others: two may use the same rid, and neither learns of it.
    Used from the event loop's thread only.
    """

    def __init__(self) -> None:
        self._names: dict[tuple[str, str], Sequence[str]] = {}
        self._ids: dict[str, set[str]] = {}

    @contextmanager
    def held(
        self, owner: str, names: Mapping[str, Sequence[str]], ids: Collection[str]
    ) -> Iterator[None]:
        """Know the engine's `ids` as the owner's for as long as the block lasts, and some of them
        by the owner's rids.

        Raises InvalidRequestError for a rid of the owner's that is under way already.
        """
        for rid in names:
            if (owner, rid) in self._names:
                raise InvalidRequestError(
                    f"a request with the rid {rid!r:.80} is under way", param="rid"
                )
        self._names.update({(owner, rid): own for rid, own in names.items()})
        known = self._ids.setdefault(owner, set())
        known.update(ids)
        try:
            yield
        finally:
            for rid in names:
                del self._names[owner, rid]
            known.difference_update(ids)
            if not known:
                self._ids.pop(owner, None)

    def of(self, owner: str, rid: str) -> Sequence[str]:
        """The engine's ids for an owner's rid; none when nothing of that name is under way."""
        return self._names.get((owner, rid), ())

    def all_of(self, owner: str) -> Collection[str]:
        """The engine's ids of all that is under way for an owner."""
        return tuple(self._ids.get(owner, ()))
