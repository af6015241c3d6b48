"""How many requests each API key has under way, so that none fills the queue alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from radixlm.core.errors import QueueFullError
from radixlm.core.wording import counted


class KeyQueues:
    """Used from the event loop's thread only. A tenant without requests takes no memory."""

    def __init__(self) -> None:
        self._under_way: Counter[str] = Counter()

    def check(self, tenant: str, count: int, most: int | None) -> None:
        """Raise QueueFullError when so many more would exceed `most`; None is no limit."""
        if most is not None and self._under_way[tenant] + count > most:
            raise QueueFullError(
                f"this key's {counted(self._under_way[tenant], 'request')} under way and {count} "
                f"more exceed --max-queued-requests-per-key {most}; try again later"
            )

    @contextmanager
    def taken(self, tenant: str, count: int, most: int | None) -> Iterator[None]:
        """Hold so many places for as long as the block lasts. Raises QueueFullError."""
        self.check(tenant, count, most)
        self._under_way[tenant] += count
        try:
            yield
        finally:
            self._under_way[tenant] -= count
            if not self._under_way[tenant]:
                del self._under_way[tenant]
