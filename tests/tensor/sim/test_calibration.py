"""What steps take is measured through a real engine."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from radixlm.core.config import EngineConfig
from radixlm.sim import calibration
from radixlm.sim.calibration import measured
from radixlm.sim.calls import Problems, TraceCall, TraceSession
from radixlm.sim.costs import keep_costs, kept_costs
from radixlm.sim.replay import Replay
from radixlm.testing.checkpoints import write_random_checkpoint


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, values in (
        ("SIZES", (1, 32)),
        ("BEFORE", (0, 64)),
        ("ROWS", (1, 4)),
        ("CONTEXTS", (16, 64)),
    ):
        monkeypatch.setattr(calibration, name, values)


@pytest.mark.usefixtures("few")
def test_a_model_is_measured_kept_and_simulated(tmp_path: Path) -> None:
    folder = write_random_checkpoint("tiny", tmp_path / "tiny")
    config = EngineConfig(model=str(folder), kv_tokens=2_000, dtype="float32")
    figures = []
    costs = measured(config, lambda: figures.append(1))
    assert [each[:2] for each in costs.prefill] == [(1, 0), (1, 64), (32, 0), (32, 64)]
    assert [each[:2] for each in costs.decode] == [(1, 16), (1, 64), (4, 16), (4, 64)]
    assert len(figures) == 2 * 8
    assert all(each.seconds >= 0 for each in costs.prefill)
    assert all(each.seconds > 0 for each in costs.decode)
    assert costs.name == "tiny"
    keep_costs(costs, config, tmp_path / "kept")
    assert kept_costs(config, tmp_path / "kept") == costs
    replay = Replay(config, costs, Problems())
    prompt, answer = np.arange(50, dtype=np.int32), np.arange(5, dtype=np.int32)
    replay.run([TraceSession((TraceCall(prompt, answer),))])
    assert 0 < replay.times.first[0] < replay.seconds < 5


@pytest.mark.usefixtures("few")
def test_a_step_that_no_engine_does_is_not_measured(tmp_path: Path) -> None:
    folder = write_random_checkpoint("tiny", tmp_path / "tiny")
    config = EngineConfig(model=str(folder), kv_tokens=80, chunked_prefill_size=16, dtype="float32")
    costs = measured(config)
    assert [each[:2] for each in costs.prefill] == [(1, 0)]
    assert [each[:2] for each in costs.decode] == [(1, 16)]


@pytest.mark.usefixtures("few")
def test_no_request_is_longer_than_pins_let_it_be(tmp_path: Path) -> None:
    folder = write_random_checkpoint("tiny", tmp_path / "tiny")
    config = EngineConfig(model=str(folder), kv_tokens=160, max_pinned_tokens=80, dtype="float32")
    costs = measured(config)
    assert [each[:2] for each in costs.prefill] == [(1, 0), (32, 0)]
    assert [each[:2] for each in costs.decode] == [(1, 16), (4, 16)]
