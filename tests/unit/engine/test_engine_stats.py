"""Several engines' numbers together."""

from __future__ import annotations

from radixlm.core.misses import MissReason
from radixlm.core.reports import Tally
from radixlm.engine import EngineStats


def test_numbers_add_up_and_the_hit_rate_is_that_of_all() -> None:
    one = EngineStats(
        prompt_tokens=100,
        cached_tokens=90,
        hit_rate=0.9,
        expected_tokens=(1, 2, 3, 4),
        reuse_age=Tally((1, 2), 5),
        endings={MissReason.NEW: 2},
    )
    other = EngineStats(
        prompt_tokens=300,
        expected_tokens=(1, 1, 1, 1),
        reuse_age=Tally((1, 0, 4), 9),
        endings={MissReason.NEW: 1, MissReason.DIVERGED: 3},
    )
    both = EngineStats.summed([one, other])
    assert (both.prompt_tokens, both.cached_tokens, both.hit_rate) == (400, 90, 0.225)
    assert both.expected_tokens == (2, 3, 4, 5)
    assert both.reuse_age == Tally((2, 2, 4), 14)
    assert both.endings == {MissReason.NEW: 3, MissReason.DIVERGED: 3}
    assert EngineStats.summed([]) == EngineStats()
