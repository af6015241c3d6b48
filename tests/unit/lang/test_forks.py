"""Forks run side by side, from what was said before them, and bring their variables back."""

from __future__ import annotations

import pytest

import radixlm as rl
from radixlm.core.errors import ProgramError
from tests.lang_support import FakeBackend, no_threads_left


@pytest.fixture
def backend():
    made = FakeBackend(lambda text: text[-1])
    yield made
    assert no_threads_left()
    assert made.running == 0


def run(backend, body):
    return rl.function(lambda s: body(s)).run(backend=backend)


def test_forks_run_at_once_and_their_variables_are_gathered(backend):
    def body(s):
        s += "root "
        forks = s.fork(4)
        assert len(forks) == 4
        forks += "tip "
        forks += lambda place: str(place)
        forks += rl.gen("tip")
        forks += ["a", "b", "c", "d"]
        forks += [rl.gen("end") for _ in forks]
        forks.join("gather_variable")
        s += "best: " + s["tip"][2] + rl.gen("last")

    state = run(backend, body)
    assert state["tip"] == ["0", "1", "2", "3"]
    assert state["end"] == ["a", "b", "c", "d"]
    assert state.text() == "root best: 22"
    assert state.get_meta_info("tip") == [{"chars": 1}] * 4
    assert backend.most >= 4


@pytest.mark.parametrize(
    ("size", "shares", "computed"), [(3, False, 1), (3, True, 0), (1, False, 0)]
)
def test_what_forks_share_is_computed_before_them(backend, size, shares, computed):
    backend.shares_in_flight = shares

    def body(s):
        s += "root "
        forks = s.fork(size)
        forks += rl.gen("a")
        forks.join()

    run(backend, body).sync()
    assert backend.computed == ["root "] * computed


def test_forks_are_states_of_their_own(backend):
    def body(s):
        s += "a" + rl.gen("before")
        forks = s.fork(2)
        for place, fork in enumerate(forks):
            with fork.user():
                fork += f"{fork['before']}{place}"
            inner = fork.fork(2)
            inner += rl.gen("deep")
            inner.join()
        forks[1] += "only"
        assert [fork.text() for fork in forks] == ["aaUSER:a0\n", "aaUSER:a1\nonly"]
        assert forks[0].messages() == [{"role": "user", "content": "a0"}]
        assert s.text() == "aa"
        forks.join()

    assert run(backend, body)["deep"] == [["\n", "\n"], ["\n", "\n"]]


def test_forks_are_joined_once(backend):
    def body(s):
        forks = s.fork(2)
        forks += rl.gen("a")
        forks.join()
        first = forks
        with pytest.raises(
            ProgramError, match=r"these forks were joined before, by test_forks"
        ) as caught:
            first.join()  # again
        assert "# again" in caught.value.line
        with pytest.raises(ProgramError, match="this fork was joined, by"):
            forks[0] += "more"

    run(backend, body)


def test_an_error_before_the_fork_is_each_fork_s(backend):
    def reply(text):
        raise ValueError("broken")

    backend.reply = reply

    def body(s):
        s += rl.gen("a")
        forks = s.fork(2)
        forks += rl.gen("b")
        forks.join()

    state = run(backend, body)
    with pytest.raises(ProgramError, match="broken"):
        state["b"]
    assert len(backend.asked) == 1


def test_an_error_in_one_fork_leaves_the_others(backend):
    def reply(text):
        if text == "0":
            raise ValueError("broken")
        return text

    backend.reply = reply

    def body(s):
        forks = s.fork(2)
        forks += lambda place: str(place) + rl.gen("a")
        assert forks[1]["a"] == "1"
        forks.join()

    state = run(backend, body)
    assert state.text() == ""
    with pytest.raises(ProgramError, match="broken"):
        state["a"]


def test_a_fork_of_a_joined_fork_is_refused_and_leaves_nothing(backend):
    def body(s):
        forks = s.fork(2)
        forks.join()
        with pytest.raises(ProgramError, match="this fork was joined, by"):
            forks[0].fork(2)

    run(backend, body).sync()


def test_a_fork_of_a_cancelled_state_fails(backend):
    def body(s):
        s.cancel()
        assert s.error() is not None
        forks = s.fork(2)
        forks += rl.gen("a")
        forks.join()

    with pytest.raises(ProgramError, match="the program was cancelled"):
        run(backend, body)["a"]


def test_forks_are_asked_for_as_few_answers_as_their_origin(backend):
    backend.calls_cost = True
    backend.reply = lambda text: "1;2;"

    @rl.function(num_api_spec_tokens=40)
    def program(s):
        forks = s.fork(1)
        forks += rl.gen("a", stop=";") + ";" + rl.gen("b", stop=";")
        forks.join()

    assert program.run(backend=backend)["b"] == ["2"]
    assert len(backend.asked) == 1


def test_forks_of_a_second_round_bring_back_their_own_values(backend):
    def body(s):
        for place in "01":
            forks = s.fork(2)
            forks += place + rl.gen("a")
            forks.join()
            s += s["a"][0]

    state = run(backend, body)
    assert state["a"] == ["1", "1"]
    assert state.text() == "01"
