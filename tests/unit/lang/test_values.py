"""Values: settled once, and waking only who waits for what has come."""

from __future__ import annotations

import threading

from radixlm.lang import values
from radixlm.lang.values import Value
from tests.server_support import until


def test_who_waits_for_the_end_is_not_woken_by_each_piece(monkeypatch):
    woken = []

    class Event(threading.Event):
        def set(self):
            woken.append(self)
            super().set()

    monkeypatch.setattr(values.threading, "Event", Event)
    value, read = Value(), []
    reader = threading.Thread(target=lambda: read.append(value.get()), daemon=True)
    reader.start()
    assert until(lambda: value._watchers)
    woken.clear()  # the thread's own, of its start
    for piece in ("a", "b", "c"):
        value.grow(piece)
    assert not woken
    value.settle("abc")
    reader.join()
    assert read == ["abc"]
    assert len(woken) == 1
