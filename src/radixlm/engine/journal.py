"""What happens to requests, noted for those who watch; and nothing while nobody does."""

from __future__ import annotations

from typing import NamedTuple

from radixlm.core.events import Arrived, Event, Finished, RequestEvent, Retracted, Scheduled

MAX_EVENTS = 2_000


class Noted(NamedTuple):
    """lost: how many events more there were than are kept."""

    events: tuple[RequestEvent, ...] = ()
    lost: int = 0

    def after(self, n: int) -> Noted:
        """Without the first `n`."""
        return Noted(self.events[n:], self.lost - max(n - len(self.events), 0))


class Journal:
    """The scheduler's sink. Written and read by the engine's thread."""

    def __init__(self) -> None:
        self.open = False
        self._events: list[RequestEvent] = []
        self._lost = 0

    def __len__(self) -> int:
        """How many were noted since it was last asked, those that are not kept too."""
        return len(self._events) + self._lost

    def note(self, event: Event) -> None:
        """An EventSink."""
        if not self.open or not isinstance(event, Arrived | Scheduled | Retracted | Finished):
            return
        if len(self._events) < MAX_EVENTS:
            self._events.append(event)
        else:
            self._lost += 1

    def take(self) -> Noted:
        """What was noted since it was last asked."""
        noted = Noted(tuple(self._events), self._lost)
        self._events, self._lost = [], 0
        return noted
