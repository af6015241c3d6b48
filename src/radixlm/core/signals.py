"""The effect of SIGINT and SIGTERM on a process that takes a while to end."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable

# A supervisor and a terminal may both send one; a person who presses again waits longer.
SECONDS_AS_ONE = 1.0


class EndOnce:
    """The first signal raises KeyboardInterrupt; those within a second of it are taken for the same
    one, and a later one ends the process at once.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._first: float | None = None
        self.take()

    def take(self) -> None:
        """Handle both signals again, where something else has taken them."""
        for each in (signal.SIGINT, signal.SIGTERM):
            signal.signal(each, self._come)

    def _come(self, number: int, _frame: object) -> None:
        if self._first is None:
            self._first = self._now()
            raise KeyboardInterrupt
        if self._now() - self._first > SECONDS_AS_ONE:
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)
