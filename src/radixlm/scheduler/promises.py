"""The steps that are scheduled and whose tokens nobody knows yet."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace

from radixlm.cache import Lease
from radixlm.core.batch import ScheduledBatch, ScheduledRow, StepResult
from radixlm.scheduler.state import RequestState


class Promises:
    """The rows of steps under way, with their owners, and what these steps promise:

        step k      tokens ... t8        draws t9, which is promised while k is under way
        step k+1    tokens ... t8 | ?    is scheduled and launched before t9 is known

    A promise lasts as long as `promised`: between two calls of the scheduler nobody sees one.
    """

    def __init__(self) -> None:
        self._rows: dict[ScheduledRow, tuple[RequestState, Lease]] = {}

    def begin(self, rows: Iterable[ScheduledRow], states: Iterable[RequestState]) -> None:
        """A step with these rows is scheduled."""
        for row, state in zip(rows, states, strict=True):
            self._rows[row] = state, state.running_lease

    def owner(self, row: ScheduledRow) -> RequestState | None:
        """The request of a row; None where it has ended or was retracted since."""
        state, lease = self._rows[row]
        return state if state.lease is lease else None

    def end(self, rows: Iterable[ScheduledRow]) -> Iterator[tuple[int, ScheduledRow, RequestState]]:
        """A step is over: the place of each of its rows that has an owner, the row, and that."""
        for place, row in enumerate(rows):
            state, lease = self._rows.pop(row)
            if state.lease is lease:
                yield place, row, state

    def without_ended(self, batch: ScheduledBatch, result: StepResult) -> StepResult:
        """The result, without tokens for those that have ended or were retracted since."""
        ended = {place for place, row in enumerate(batch.rows) if self.owner(row) is None}
        if not ended:
            return result
        return replace(
            result,
            tokens=tuple(None if i in ended else each for i, each in enumerate(result.tokens)),
            hidden={place: its for place, its in result.hidden.items() if place not in ended},
        )

    @contextmanager
    def promised(self, rows: Iterable[ScheduledRow]) -> Iterator[frozenset[str]]:
        """Inside, requests are as they will be after these rows of a step under way, as if they
        went on; the names of those that will have all tokens that they may have.
        """
        states = [(state, row) for row in rows if (state := self.owner(row)) is not None]
        for state, row in states:
            state.computed, state.promised = row.known, int(row.samples)
            state.n_tokens += state.promised
        try:
            yield frozenset(state.request.request_id for state, _ in states if not state.room)
        finally:
            for state, _ in states:
                state.n_tokens -= state.promised
                state.promised = 0
