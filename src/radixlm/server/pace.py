"""How fast requests end, so that a refused client can be told when to come again."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

from radixlm.core.clock import Clock

MAX_WAIT_SECONDS = 60
_REMEMBERED = 65


class Pace:
    """The last ends of requests, since the server was last idle."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._running = 0
        self._moments = deque([clock.now()], maxlen=_REMEMBERED)

    @contextmanager
    def one_more(self) -> Iterator[None]:
        """A request is under way inside. It counts as ended unless it raises."""
        if not self._running:
            self._moments.clear()
            self._moments.append(self._clock.now())
        self._running += 1
        try:
            yield
            self._moments.append(self._clock.now())
        finally:
            self._running -= 1

    def seconds_for(self, requests: int) -> int:
        """In how many seconds so many more will have ended, if it goes on like this: 1 to 60.

        As long as none has ended, as if one were just ending.
        """
        passed = self._clock.now() - self._moments[0]
        ends = max(len(self._moments) - 1, 1)
        return min(max(math.ceil(requests * passed / ends), 1), MAX_WAIT_SECONDS)
