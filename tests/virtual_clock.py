"""A clock that tests move."""

from __future__ import annotations


class VirtualClock:
    """A clock that moves only by `advance`."""

    def __init__(self, start: float = 0.0) -> None:
        self._now = start

    def now(self) -> float:
        return self._now

    def advance(self, seconds: float) -> None:
        if seconds < 0:
            raise ValueError(f"time does not go back: {seconds} s")
        self._now += seconds
