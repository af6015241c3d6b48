"""Batches: in order, side by side, warmed, and cancelled without a trace."""

from __future__ import annotations

import signal
import threading

import pytest

import radixlm as rl
from radixlm.core.errors import ConfigError, ProgramError
from tests.lang_support import FakeBackend, no_threads_left
from tests.server_support import until

SHOTS = "A long beginning that all of them have, longer than sixty-four characters. "


@rl.function
def program(s, question, style="plain"):
    s += SHOTS + f"{question} {style}: "
    s += rl.gen("a")


def test_states_come_in_order():
    backend = FakeBackend(lambda text: text.split()[-2])
    entries = [{"question": f"q{place}"} for place in range(20)]
    states = program.run_batch(entries, backend=backend, num_threads=8, progress_bar=True)
    assert [state["a"] for state in states] == [f"q{place}" for place in range(20)]
    assert 2 <= backend.most <= 8
    assert no_threads_left()
    assert backend.sessions == 0


def test_arguments_may_come_as_lists():
    backend = FakeBackend(lambda text: text.split()[-1])
    states = program.run_batch([["q", "x"], ("r", "y")], backend=backend, temperature=0.5)
    assert [state["a"] for state in states] == ["x:", "y:"]
    assert backend.params[0].temperature == 0.5
    with pytest.raises(ConfigError, match="an entry of a batch"):
        program.run_batch([[1, 2, 3]], backend=backend)
    with pytest.raises(ConfigError, match="num_threads is 1 or more"):
        program.run_batch([["q"]], backend=backend, num_threads=0)
    with pytest.raises(ConfigError, match="run_batch has no parameter colour"):
        program.run_batch([["q"]], backend=backend, colour=1)
    assert program.run_batch([], backend=backend) == []


@pytest.mark.parametrize(
    ("threads", "shares", "computed"), [(4, False, 1), (1, False, 0), (4, True, 0)]
)
def test_the_common_prefix_is_computed_first(threads, shares, computed):
    backend = FakeBackend()
    backend.shares_in_flight = shares
    backend.reply = lambda text: str(len(backend.computed))
    entries = [[f"q{place}"] for place in range(6)]
    states = program.run_batch(entries, backend=backend, num_threads=threads)
    assert backend.computed == [SHOTS + "q"] * computed
    assert {state["a"] for state in states} == {str(computed)}


def test_a_batch_whose_second_program_asks_nothing_is_not_held_up():
    @rl.function
    def some(s, asks):
        s += SHOTS
        if asks:
            s += rl.gen("a")

    backend = FakeBackend()
    states = some.run_batch([[True], [False], [False]], backend=backend)
    assert states[0]["a"]
    assert not backend.computed


def test_a_program_that_fails_leaves_the_others():
    def reply(text):
        if "q1" in text:
            raise ValueError("broken")
        return "ok"

    states = program.run_batch([["q0"], ["q1"], ["q2"]], backend=FakeBackend(reply))
    assert [state.error() is None for state in states] == [True, False, True]
    with pytest.raises(ProgramError, match="broken"):
        states[1]["a"]


def test_an_exception_of_a_program_ends_the_batch():
    backend = FakeBackend(hangs=True)

    @rl.function
    def breaks(s, place):
        if place == 0:
            assert until(lambda: backend.running == 3)
            raise RuntimeError("halt")
        s += "x" * place + rl.gen("a")
        return s["a"]

    backend.shares_in_flight = True
    with pytest.raises(RuntimeError, match="halt"):
        breaks.run_batch([[place] for place in range(50)], backend=backend, num_threads=4)
    assert backend.running == backend.sessions == 0
    assert backend.aborted == len(backend.asked) <= 4
    assert no_threads_left()


def test_a_batch_that_is_left_half_way_leaves_nothing_running():
    backend = FakeBackend(lambda text: text)
    backend.shares_in_flight = True
    states = program.run_batch(
        [[f"q{place}"] for place in range(200)],
        backend=backend,
        num_threads=2,
        generator_style=True,
    )
    assert "q0" in next(states)["a"]
    states.close()
    assert len(backend.asked) < 20
    assert backend.running == backend.sessions == 0
    assert no_threads_left()


@pytest.fixture
def interruptible():
    """A process in the background of a shell is born deaf to interrupts."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_an_interrupt_cancels_a_batch(interruptible):
    backend = FakeBackend(hangs=True)
    backend.shares_in_flight = True

    def interrupt():
        assert until(lambda: backend.running == 2)
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)

    threading.Thread(target=interrupt).start()
    with pytest.raises(KeyboardInterrupt):
        program.run_batch([["a"], ["b"]], backend=backend)
    assert backend.aborted == 2
    assert no_threads_left()


def test_a_program_that_cancels_itself_leaves_the_others():
    @rl.function
    def gives_up(s, place):
        forks = s.fork(2)
        if place == 0:
            s.cancel()
        forks += rl.gen("a")
        forks.join()

    states = gives_up.run_batch([[0], [1], [2]], backend=FakeBackend(), num_threads=1)
    assert [state.error() is None for state in states] == [False, True, True]
    assert states[2]["a"] == ["<0>"] * 2
    with pytest.raises(ProgramError, match="the program was cancelled"):
        states[0]["a"]
    assert no_threads_left()
