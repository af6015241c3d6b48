"""The engine's thread, its messages put in before it starts."""

from __future__ import annotations

from queue import SimpleQueue

from radixlm.core.clock import VirtualClock
from radixlm.engine.loop import Abort, Died, EngineThread, Inbound, Outbound, Outputs, Stop, Submit
from tests.engines import Bench, make_request


def test_what_is_aborted_together_is_told_together() -> None:
    """Each message wakes the clients' event loop: thousands may leave in one moment."""
    inbox: SimpleQueue[Inbound] = SimpleQueue()
    outbox: SimpleQueue[Outbound] = SimpleQueue()
    names = [f"r{number}" for number in range(5)]
    inbox.put(Submit(tuple(make_request(name, [1, 2, 3]) for name in names), 0.0))
    for name in names:
        inbox.put(Abort(name))
    inbox.put(Stop())
    thread = EngineThread(Bench().core, inbox, outbox.put, VirtualClock())
    thread.start()
    thread.join(30)
    told = [outbox.get() for _ in range(outbox.qsize())]
    ended, died = told
    assert isinstance(ended, Outputs)
    assert [output.request_id for output in ended.outputs] == names
    assert isinstance(died, Died)
    assert thread.stats.requests_aborted == 5


def test_a_request_has_waited_since_it_came_and_not_since_it_was_read() -> None:
    """The step under way goes on meanwhile: beside a long prompt that is most of the wait."""
    inbox: SimpleQueue[Inbound] = SimpleQueue()
    outbox: SimpleQueue[Outbound] = SimpleQueue()
    clock = VirtualClock(5.0)
    inbox.put(Submit((make_request("r", [1, 2, 3], 1),), at=2.0))
    thread = EngineThread(Bench(200, clock=clock).core, inbox, outbox.put, clock)
    thread.start()
    told = outbox.get(timeout=30)
    inbox.put(Stop())
    thread.join(30)
    assert isinstance(told, Outputs)
    assert [output.queued for output in told.outputs] == [3.0]
