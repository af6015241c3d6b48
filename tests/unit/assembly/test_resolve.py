"""What the user left open."""

from __future__ import annotations

import pytest

from radixlm.assembly import resolve
from radixlm.assembly.resolve import resolve_threads
from radixlm.core.config import EngineConfig
from radixlm.core.errors import ConfigError
from radixlm.engine.wiring import resolve_pin_budget


@pytest.mark.parametrize(
    ("flags", "capacity", "budget"),
    [
        ({}, 8_000, 2_000),
        ({}, 1_100, 100),  # the longest request has 1,000 tokens, and must still fit
        ({}, 500, 0),
        ({"max_pinned_tokens": 7}, 500, 7),
        ({"max_pinned_tokens": 0}, 8_000, 0),
        ({"disable_radix_cache": True}, 8_000, 0),
    ],
)
def test_a_quarter_may_be_pinned(flags, capacity, budget):
    assert resolve_pin_budget(EngineConfig(**flags), capacity, context=1_000) == budget


@pytest.mark.parametrize(
    ("asked", "torchs", "allowed", "threads"),
    [(None, 4, 8.0, 4), (None, 4, 1.5, 2), (None, 1, 8.0, 1), (6, 4, 1.5, 6)],
)
def test_threads_are_as_many_as_processors_and_quota_allow(
    monkeypatch, asked, torchs, allowed, threads
):
    """torch's own number is OMP_NUM_THREADS where the user set it; the flag is above both."""
    monkeypatch.setattr(resolve, "processors_allowed", lambda: allowed)
    assert resolve_threads(EngineConfig(threads=asked), torchs) == threads


@pytest.mark.parametrize("threads", [0, 1025, 100_000, 3_000_000_000, True])
def test_threads_that_no_machine_has_are_refused(threads):
    """OpenMP ends the process over them, and says nothing."""
    with pytest.raises(ConfigError, match="--threads"):
        EngineConfig(threads=threads)
