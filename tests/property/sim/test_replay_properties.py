"""Steps that stand for many are as good as these many."""

from __future__ import annotations

from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from radixlm.core.config import EngineConfig
from radixlm.sim.calls import Problems, TraceCall, TraceSession
from radixlm.sim.costs import made_up
from radixlm.sim.replay import Replay
from radixlm.sim.sim_machine import Machine
from tests.invariants import check


class OneByOne(Machine):
    """Gives no token ahead."""

    @property
    def room(self) -> int:
        return 0


def ids(first: int, size: int) -> np.ndarray:
    return np.arange(first, first + size, dtype=np.int32)


@st.composite
def traces(draw) -> list[TraceSession]:
    sessions, at = [], 0.0
    for number in range(draw(st.integers(1, 12))):
        at += draw(st.sampled_from([0.0, 0.003, 0.05, 1.0]))
        shared, own = draw(st.integers(0, 40)), draw(st.integers(1, 30))
        calls, prompt = [], np.concatenate((ids(0, shared), ids(1_000 * (number + 1), own)))
        for place in range(draw(st.integers(1, 3))):
            answer = ids(100_000 + 1_000 * number + 100 * place, draw(st.integers(1, 60)))
            allowed = draw(st.sampled_from([0, 80]))
            calls.append(TraceCall(prompt, answer, gap=0.02 * place, max_tokens=allowed))
            prompt = np.concatenate((prompt, answer, ids(500_000 + 100 * number, 3)))
        sessions.append(TraceSession(tuple(calls), at))
    return sessions


@pytest.mark.slow  # runs two simulations a case
@settings(deadline=None, max_examples=60)
@given(traces(), st.sampled_from([400, 900, 5_000]), st.sampled_from([1, 4]))
def test_the_same_is_cached_and_it_takes_as_long(sessions, pool, page_size):
    config = EngineConfig(kv_tokens=pool, page_size=page_size, chunked_prefill_size=64)
    runs = []
    for kind in (Machine, OneByOne):
        with patch("radixlm.sim.replay.Machine", kind):
            made = Replay(config, made_up("node"), Problems())
        made.run(sessions)
        check(made.core.cache)
        runs.append(made)
    fast, slow = runs
    assert fast.core.stats().steps <= slow.core.stats().steps
    assert (fast.calls, fast.generated) == (slow.calls, slow.generated)
    # A request that comes meanwhile waits for the end of a step, which is not the very same one.
    assert abs(fast.seconds - slow.seconds) <= 0.03 * len(sessions)
    if pool == 5_000:  # nothing is evicted
        assert fast.core.stats().computed_tokens == slow.core.stats().computed_tokens
