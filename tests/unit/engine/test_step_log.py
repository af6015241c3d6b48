"""The log line of every few seconds of work."""

from __future__ import annotations

import logging

import pytest

from radixlm.core.clock import VirtualClock
from radixlm.engine.engine_stats import EngineStats, StepLog


def test_idle_time_is_no_work(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "radixlm.engine")
    clock = VirtualClock()
    log = StepLog(clock, interval=5.0)
    with log.idle():
        clock.advance(3600)
    log.record(EngineStats(output_tokens=1))
    assert not caplog.messages
    clock.advance(5)
    log.record(EngineStats(running=2, output_tokens=50))
    [line] = caplog.messages
    assert line.startswith("running 2, waiting 0 | new tokens 50 (10.0/s)")
