"""Whether others want our processors: noticed at once, believed to be over later and later."""

from __future__ import annotations

import math
import sys
from itertools import pairwise

import pytest

from radixlm.core.clock import VirtualClock
from radixlm.runner.paced import Crowd, seconds_of_others, seconds_waited


class Machine:
    """Threads that wait a share of the time."""

    def __init__(self, spare: int = 0) -> None:
        self.clock = VirtualClock()
        self._waited = {"1": 0.0, "2": 50.0}
        self._others = 7.0
        self.looked = 0
        self.crowd = Crowd(self.read, lambda: self._others, self.clock, spare=spare)

    def read(self) -> dict[str, float]:
        self.looked += 1
        return dict(self._waited)

    def run(
        self,
        seconds: float,
        share: float,
        step: float = 0.01,
        others: float = 1.0,
        idle: bool = False,
    ) -> bool:
        for _ in range(round(seconds / step)):
            self.clock.advance(step)
            self._waited["2"] += share * step
            self._others += others * step
            if not idle:
                self.crowd.stepped()
            crowded = self.crowd.look()
        return crowded


def test_a_crowd_is_noticed_and_its_end() -> None:
    machine = Machine()
    assert not machine.run(3, 0.1)
    assert machine.run(0.3, 0.6)
    assert machine.run(3, 0.2)  # sleeping threads wait less: it is still there
    assert machine.run(0.5, 0)
    assert not machine.run(0.5, 0)


def test_what_others_do_for_a_moment_is_no_crowd() -> None:
    machine = Machine()
    machine.run(1, 0.1)
    for _ in range(10):
        assert not machine.run(0.1, 0.4)
        assert not machine.run(0.5, 0.1)


def test_a_machine_that_is_not_quite_quiet_is_calm_again() -> None:
    machine = Machine()
    assert machine.run(0.3, 0.6)
    assert not machine.run(1.5, 0.07)


def test_threads_of_one_process_are_no_crowd() -> None:
    """HTTP's thread and the engine's wait for each other, and nobody else runs."""
    assert not Machine().run(5, 0.6, others=0.1)


def test_where_nothing_is_known_of_others_waiting_counts() -> None:
    machine = Machine()
    machine.run(0.1, 0, others=math.inf)
    assert machine.run(0.3, 0.6, others=math.inf)
    assert not machine.run(2, 0, step=2, others=math.inf, idle=True)


def test_looking_costs_nothing_most_of_the_time() -> None:
    machine = Machine()
    machine.run(1, 0, step=0.001)
    assert machine.looked <= 12


def test_one_that_comes_back_at_once_is_waited_for_longer() -> None:
    machine = Machine()
    machine.run(0.3, 0.6)
    calm = []
    for _ in range(8):
        calm.append(0)
        while machine.run(0.1, 0):
            calm[-1] += 1
        machine.run(0.3, 0.6)
    assert all(before <= after + 1 for before, after in pairwise(calm))
    assert calm[0] < 15  # tenths of a second
    assert 250 < calm[-1] < 350
    machine.run(40, 0)
    machine.run(0.3, 0.6)  # after a long peace it is a new one
    assert not machine.run(1.5, 0)


def test_idle_time_says_nothing() -> None:
    """One thread that waited while no step was computed is not a crowd."""
    machine = Machine()
    assert not machine.run(30, 0.9, step=10, others=0.3, idle=True)


@pytest.mark.parametrize(("others", "crowded"), [(0.1, False), (0.6, True)])
def test_a_crowd_that_went_while_it_was_idle_is_gone(others: float, crowded: bool) -> None:
    machine = Machine()
    assert machine.run(0.3, 0.6)
    assert machine.run(2, 0, step=2, others=others, idle=True) is crowded


def test_steps_of_a_large_model_tell_of_a_crowd() -> None:
    """A token of it takes longer than others' whole answers."""
    machine = Machine()
    assert machine.run(4, 0.6, step=2)
    assert not machine.run(4, 0, step=2)


@pytest.mark.parametrize("there", [False, True])
def test_threads_may_come_and_go(there: bool) -> None:
    clock = VirtualClock()
    readings = [{"1": 5.0}, {"2": 0.09} if there else {}]
    crowd = Crowd(lambda: readings.pop(0), lambda: math.inf, clock)
    clock.advance(0.1)
    assert crowd.look() is there


@pytest.mark.skipif(sys.platform != "linux", reason="read from /proc")
def test_every_thread_of_this_process_is_counted() -> None:
    waited = seconds_waited()
    assert waited
    assert all(seconds >= 0 for seconds in waited.values())
    assert math.isfinite(seconds_of_others())


@pytest.mark.parametrize(
    ("spare", "others", "crowded"),
    [(0, 0.9, True), (0, 0.3, False), (1, 1.3, False), (1, 1.9, True)],
)
def test_at_first_it_counts_what_others_take(spare: int, others: float, crowded: bool) -> None:
    machine = Machine(spare)
    assert machine.run(3, 0, step=1.0, others=others, idle=True) == crowded
    if crowded:
        assert machine.run(0.3, 0)
        assert not machine.run(0.5, 0), "nobody waited"


def test_who_has_computed_knows_better() -> None:
    machine = Machine(0)
    machine.run(0.01, 0)
    assert not machine.run(3, 0, step=1.0, others=2.0, idle=True)
