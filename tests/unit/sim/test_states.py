"""Models with states in the simulator."""

from __future__ import annotations

import numpy as np

from radixlm.core.config import EngineConfig
from radixlm.sim.calls import Problems, TraceCall, TraceSession
from radixlm.sim.costs import made_up
from radixlm.sim.replay import Replay


def replayed(states: int | None) -> Replay:
    draw = np.random.default_rng(1)
    prefix = draw.integers(0, 1_000, 500, dtype=np.int32)
    prompts = [np.concatenate((prefix, draw.integers(0, 1_000, 50, np.int32))) for _ in range(3)]
    answer = np.array([5], np.int32)
    sessions = [
        TraceSession((TraceCall(prompt, answer),), 10.0 * at) for at, prompt in enumerate(prompts)
    ]
    config = EngineConfig(kv_tokens=4_000, max_mamba_cache_size=states)
    replay = Replay(config, made_up("node"), Problems())
    replay.run(sessions)
    return replay


def test_what_is_computed_again_for_want_of_a_state() -> None:
    with_states, without = replayed(32), replayed(None)
    assert (without.cached, without.no_state_tokens) == ([0, 500, 500], 0)
    assert with_states.cached == [0, 448, 500]
    assert with_states.no_state_tokens == 52
