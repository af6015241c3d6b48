"""What happens is noted while it is open, and no more than is kept."""

from __future__ import annotations

from radixlm.core.reports import Arrived
from radixlm.engine.watching import MAX_EVENTS, Journal

EVENT = Arrived("r", 3, None)


def test_nothing_is_noted_while_nobody_looks():
    journal = Journal()
    journal.note(EVENT)
    assert not journal


def test_what_happened_to_requests_is_told_once():
    journal = Journal()
    journal.open = True
    journal.note(EVENT)
    assert journal
    assert journal.take() == ((EVENT,), 0)
    assert not journal
    assert journal.take() == ((), 0)


def test_what_is_too_much_is_counted():
    journal = Journal()
    journal.open = True
    for _ in range(MAX_EVENTS + 5):
        journal.note(EVENT)
    events, lost = journal.take()
    assert (len(events), lost) == (MAX_EVENTS, 5)
