"""What a scheduler asks of the places beside the pool, which it is given when it is made."""

from __future__ import annotations

from radixlm.cache import RadixCache
from radixlm.cache.components.window_slots import WindowSize
from radixlm.core.keys import Key
from radixlm.core.misses import MissReport
from radixlm.core.request import Namespace
from radixlm.scheduler import Scheduler, WaitingRoom, make_order
from radixlm.scheduler.state import RequestState
from radixlm.testing.fake_runner import FakeRunner
from tests.engines import VOCAB, make_request


class Patient:
    """Lets a request wait for one step, as if something were read for it."""

    def __init__(self, room: WaitingRoom) -> None:
        self.room = room
        self.asked: list[str] = []

    def begin(self, state: RequestState, before: int) -> bool:
        assert before == 0
        assert state in self.room.states
        self.asked.append(state.request.request_id)
        if len(self.asked) > 1:
            return False
        self.room.drop(state)
        return True

    def waits(self, state: RequestState) -> bool:
        return False

    def reported(self, state: RequestState, miss: MissReport) -> MissReport:
        self.asked.append(f"{state.request.request_id} is admitted")
        return miss

    def discard(self, key: Key, namespace: Namespace, keep: int) -> None:
        raise AssertionError

    def give_way(self, *, alone: bool) -> bool:
        self.asked.append(f"give way, {alone=}")
        return alone


def test_the_tiers_that_it_is_given_are_asked() -> None:
    room = WaitingRoom(RadixCache(64), make_order("fcfs"))
    tiers = Patient(room)
    scheduler = Scheduler(room, chunked_prefill_size=16, max_running_requests=2, tiers=tiers)
    runner = FakeRunner(64, 2, VOCAB)
    for name in ("first", "second"):
        scheduler.add(make_request(name, range(10), 1))
    batch = scheduler.schedule()
    assert [row.request.request_id for row in batch.rows] == ["second"]
    [output] = scheduler.update(batch, runner.execute(batch), {})
    assert output.request_id == "second"
    assert tiers.asked == ["first", "second", "second is admitted"]


def test_a_request_that_is_alone_has_copies_give_way() -> None:
    cache = RadixCache(64, windows=WindowSize(8, 36, 16))
    room = WaitingRoom(cache, make_order("fcfs"))
    tiers = Patient(room)
    tiers.asked.append("before")  # it lets nobody wait
    scheduler = Scheduler(room, chunked_prefill_size=16, max_running_requests=2, tiers=tiers)
    lease = cache.acquire(list(range(36)), None)
    assert lease.extend(36) is not None  # as a copy holds all window slots
    scheduler.add(make_request("alone", range(40, 56), 1))
    assert not scheduler.schedule().rows
    assert tiers.asked == ["before", "alone", "give way, alone=True"]
