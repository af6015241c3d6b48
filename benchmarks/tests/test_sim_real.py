"""What is compared in benchmarks.sim_real is the same load."""

from __future__ import annotations

from benchmarks.sim_real import LOADS, Seen, compare, sessions_of


def test_loads_fit_the_context():
    for load in LOADS.values():
        sessions = sessions_of(load, 30.0, longest=4_000, seed=0)
        assert sessions
        assert all((session.at or 0.0) < 30.0 for session in sessions)
        calls = [call for session in sessions for call in session.calls]
        assert all(call.prompt.size + call.answer.size <= 4_000 for call in calls)


def test_what_is_wanted():
    real = Seen(0.5, 100.0, 50.0, 10, 1.0)
    near = compare("chats", real, Seen(0.504, 114.0, 54.0, 10, 1.0))
    assert near["as wanted"]
    for far in (
        Seen(0.506, 100.0, 50.0, 10, 1.0),
        Seen(0.5, 116.0, 50.0, 10, 1.0),
        Seen(0.5, 100.0, 44.0, 10, 1.0),
    ):
        assert not compare("chats", real, far)["as wanted"]
