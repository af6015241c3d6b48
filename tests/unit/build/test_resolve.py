"""What the user left open."""

from __future__ import annotations

import pytest

from radixlm.build.resolve import resolve_pin_budget
from radixlm.core.config import EngineConfig


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
