"""The requests under way, by API key and by name."""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import MappingProxyType

from radixlm.core import errors
from radixlm.core.clock import Clock

MAX_WAIT_SECONDS = 60
_REMEMBERED = 65


class UnderWay:
    """The requests under way: how many each API key has, by which names, and how fast they end.

    An owner sees nothing of the others: two may use the same rid, and neither learns of it.
    Used from the event loop's thread only. A tenant without requests takes no memory.
    most_per_key: None is no limit.
    """

    def __init__(self, clock: Clock, most_per_key: int | None = None) -> None:
        self._clock = clock
        self._most = most_per_key
        self._counts: Counter[str] = Counter()
        self._names: dict[tuple[str, str], Sequence[str]] = {}
        self._ids: dict[str, set[str]] = {}
        self._urgent, self._urgent_ended = 0, -math.inf
        # When the server was last idle, and then the last ends.
        self._moments = deque([clock.now()], maxlen=_REMEMBERED)

    def quiet_for(self) -> float:
        """The seconds since a request was under way that was not to wait behind others."""
        return 0.0 if self._urgent else self._clock.now() - self._urgent_ended

    def check(self, tenant: str, count: int = 1) -> None:
        """Raise QueueFullError when `count` more of a tenant's would be too many, or
        InvalidRequestError when they alone are.
        """
        if self._most is not None:
            limit = f"--max-queued-requests-per-key {self._most}"
            errors.check_queue(self._counts[tenant], count, self._most, limit, "this key's ")

    @contextmanager
    def held(
        self,
        tenant: str,
        ids: Collection[str],
        owner: str = "",
        rids: Mapping[str, Sequence[str]] = MappingProxyType({}),
        *,
        behind: bool = False,
    ) -> Iterator[Callable[[], None]]:
        """Requests are under way for as long as the block lasts. Yields what is called when one of
        them has ended.

        ids: the engine's. owner: who may abort them, some of them by its rids.
        behind: they wait behind others.
        Raises QueueFullError, and InvalidRequestError for a rid of the owner's that is under way.
        """
        self.check(tenant, len(ids))
        for rid in rids:
            if (owner, rid) in self._names:
                raise errors.InvalidRequestError(
                    f"a request with the rid {rid!r:.80} is under way", param="rid"
                )
        if not self._counts:
            self._moments.clear()
            self._moments.append(self._clock.now())
        self._counts[tenant] += len(ids)
        self._names.update({(owner, rid): own for rid, own in rids.items()})
        known = self._ids.setdefault(owner, set())
        known.update(ids)
        self._urgent += not behind
        try:
            yield lambda: self._moments.append(self._clock.now())
        finally:
            if not behind:
                self._urgent -= 1
                self._urgent_ended = self._clock.now()
            self._counts[tenant] -= len(ids)
            if not self._counts[tenant]:
                del self._counts[tenant]
            for rid in rids:
                del self._names[owner, rid]
            known.difference_update(ids)
            if not known:
                self._ids.pop(owner, None)

    def of(self, owner: str, rid: str | None = None) -> Sequence[str]:
        """The engine's ids for an owner's rid, or of all that is under way for it."""
        return tuple(self._ids.get(owner, ())) if rid is None else self._names.get((owner, rid), ())

    def seconds_for(self, requests: int) -> int:
        """The seconds until `requests` more will have ended at this pace: 1 to 60.

        Before the first end, one counts as just ending.
        """
        passed = self._clock.now() - self._moments[0]
        ends = max(len(self._moments) - 1, 1)
        return min(max(math.ceil(requests * passed / ends), 1), MAX_WAIT_SECONDS)
