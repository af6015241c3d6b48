"""Time comes from the clock given at construction. Tests give a virtual one."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Seconds since an arbitrary origin; never goes back."""

    def now(self) -> float: ...


class WallClock:
    """The machine's monotonic clock."""

    def now(self) -> float:
        return time.monotonic()
