"""Sessions on a virtual clock, through the engine's own core."""

from __future__ import annotations

from itertools import count

import numpy as np
import pytest

from radixlm.core.config import EngineConfig
from radixlm.core.keys import as_key
from radixlm.sim.calls import Problems, TraceCall, TraceSession
from radixlm.sim.costs import Costs, Timed, made_up
from radixlm.sim.replay import Replay
from tests.invariants import check

# A step takes 10 ms, and each new token of a prompt 1 ms.
COSTS = Costs(
    "test",
    tuple(Timed(n, 0, 0.01 + n * 1e-3) for n in (1, 1_000)),
    (Timed(1, 1, 0.01), Timed(64, 1, 0.01)),
)
NUMBERS = count(1_000_000)


def call(prompt: range | list[int], out: int = 1, **more: object) -> TraceCall:
    answer = np.array([next(NUMBERS) for _ in range(out)], dtype=np.int32)
    return TraceCall(np.array(prompt, dtype=np.int32), answer, **more)


def replay(
    *sessions: TraceSession, costs: Costs = COSTS, problems: Problems | None = None, **flags
):
    users = flags.pop("users", 8)
    config = EngineConfig(**{"kv_tokens": 10_000, **flags})
    made = Replay(config, costs, problems or Problems(), users=users)
    made.run(sessions)
    check(made.core.cache)
    return made


def test_a_request_takes_what_its_steps_cost():
    made = replay(TraceSession((call(range(100), out=11),), at=5.0))
    assert made.times.first[0] == pytest.approx(0.11, rel=0.02)
    assert made.times.between[0] == pytest.approx(0.01)
    assert made.seconds == pytest.approx(5.21, rel=1e-3)
    # The first token's step, and one that stands for those of all others.
    assert made.core.stats().steps == 2


def test_a_call_comes_a_gap_after_the_one_before_and_finds_it():
    first = call(range(100), out=3)
    again = [*range(100), *first.answer.tolist(), 7]
    made = replay(TraceSession((first, call(again, gap=2.0)), at=0.0))
    assert made.seconds == pytest.approx(0.11 + 0.02 + 2.0 + 0.012, rel=0.01)
    # The answer's last token is not computed.
    assert made.core.stats().cached_tokens == 102


def test_sessions_without_a_time_begin_when_a_user_is_free():
    made = replay(*(TraceSession((call([n] * 50),)) for n in range(6)), users=2)
    assert made.calls == 6
    assert max(made.times.queued) == 0
    # Two at a time share a step: 10 ms for it, and 100 for their tokens.
    assert made.seconds == pytest.approx(3 * 0.11, rel=0.02)


def test_replicas_report_by_their_own_clock_also_when_they_rest():
    first = call(range(100), out=11)
    sessions = [TraceSession((first,), at=0.0), TraceSession((call([7] * 10),), at=5.0)]
    made = Replay(EngineConfig(kv_tokens=10_000), COSTS, Problems(), replicas=2)
    made.run(sessions)
    key = as_key([*range(100), *first.answer.tolist()])
    found = made.routing.router.tree.find(first.namespace, key)
    assert max(found.held(number) for number in range(2)) == 110


def test_one_that_comes_during_a_step_waits_for_its_end():
    long = TraceSession((call(range(1_000)),), at=0.0)
    made = replay(long, TraceSession((call([5] * 10),), at=0.5))
    assert made.times.queued[1] == pytest.approx(0.51, rel=0.01)


def test_steps_that_stand_for_many_end_when_another_request_comes():
    stream = TraceSession((call(range(10), out=1_000),), at=0.0)
    made = replay(stream, TraceSession((call([5] * 10),), at=3.0))
    assert made.times.queued[1] <= 0.01
    assert made.core.stats().steps < 10
    assert made.seconds == pytest.approx(10.02, rel=0.01)


def test_a_request_that_can_never_fit_is_left_out_and_its_session_goes_on():
    problems = Problems()
    calls = (call(range(200), where="t:1"), call(range(50), gap=1.0))
    made = replay(TraceSession(calls, at=0.0), problems=problems, kv_tokens=100)
    assert made.calls == 1
    (reason,) = problems.shown
    assert reason.startswith(
        "t:1: the engine refuses it: This model's maximum context length is 100"
    )
    assert "all that the KV pool holds" in reason


def test_a_request_beyond_the_context_is_refused_as_by_a_server():
    problems = Problems()
    calls = (call(range(90), out=20), call(range(90), out=5, max_tokens=80, gap=1.0))
    made = replay(TraceSession(calls, at=0.0), problems=problems, context_length=100)
    assert (made.calls, made.generated) == (1, 5)
    (reason,) = problems.shown
    assert "maximum context length is 100 tokens. However, you requested 110 tokens" in reason


def test_all_sizes_are_in_tokens_that_stand_for_many():
    config = EngineConfig(kv_tokens=10_000, max_pinned_tokens=5_000, context_length=8_000)
    problems = Problems()
    made = Replay(config, COSTS, problems, scale=10)
    made.run([TraceSession((call(range(size)),), at=0.0) for size in (400, 600)])
    assert (made.calls, problems.count) == (1, 1)
    assert "maximum context length is 500 tokens" in problems.shown[0]


def test_more_than_may_be_queued_are_refused():
    problems = Problems()
    sessions = [TraceSession((call([n] * 50),), at=0.0) for n in range(5)]
    made = replay(*sessions, problems=problems, max_queued_requests=3)
    assert (made.calls, problems.count) == (3, 2)


def test_namespaces_do_not_share():
    same = range(100)
    namespaces = ["a", "a", "b"]
    sessions = [
        TraceSession(
            (call(same, namespace=type(call(same).namespace)(cache_salt=name)),), at=float(at)
        )
        for at, name in enumerate(namespaces)
    ]
    assert replay(*sessions).core.stats().cached_tokens == 99


def test_where_nothing_takes_time_requests_come_one_after_the_other():
    sessions = [TraceSession((call([n % 3] * 60, out=5),), at=float(n)) for n in range(9)]
    made = replay(*sessions, costs=made_up("none"), kv_tokens=150)
    assert made.seconds == 8
    assert max(made.times.first) == 0


def test_an_answer_that_ends_early_is_expected_to_be_as_long_as_it_may():
    """Of what a request allows half is reserved at first: so two of these do not fit together."""
    sessions = [TraceSession((call([n] * 10, out=4, max_tokens=80),), at=0.0) for n in range(2)]
    made = replay(*sessions, kv_tokens=90)
    assert made.generated == 8
    assert max(made.times.queued) > 0.03
