"""What a request has used, added up as its outputs come."""

from __future__ import annotations

from typing import Any

import pytest

from radixlm.core.misses import MissReason, MissReport
from radixlm.core.request import FinishReason, RequestOutput
from radixlm.observe.causes import Finding, cause_of
from radixlm.server.insight.usage import CacheReport, UsageMeter, as_report


def test_an_end_that_knows_no_prompt_leaves_what_was_known() -> None:
    """A server that stops ends its requests without their numbers."""
    meter = UsageMeter(1)
    meter.add(0, RequestOutput("a", token_ids=(7, 8), prompt_tokens=5, cached_tokens=3))
    meter.add(0, RequestOutput("a", finish_reason=FinishReason.ABORT))
    assert (meter.prompt_tokens, meter.completion_tokens, meter.cached_tokens) == (5, 2, 3)


def test_cached_tokens_by_where_they_were() -> None:
    meter = UsageMeter(1)
    assert meter.details() == {"device": 0, "host": 0}
    for prompt, (host, disk) in enumerate(((None, None), (5, 30), (0, 0))):
        miss = MissReport(50, 40, MissReason.NEW, 40, from_host=host, from_disk=disk)
        meter.add(prompt, RequestOutput("a", prompt_tokens=50, cached_tokens=40, miss=miss))
    assert meter.details() == {"device": 85, "host": 5, "storage": 30}


def reported(**fields: Any) -> CacheReport:
    miss = MissReport(40, 10, MissReason.EVICTED, 10, evicted=29, **fields)
    cause = cause_of(miss)
    assert cause is not None
    return as_report(0, miss, Finding(cause, 10), shows_text=True)


def test_without_a_disk_cache_a_report_does_not_speak_of_it() -> None:
    report = reported(evicted_ago=2.0, hits=1)
    assert report["cached_tokens"] == {"device": 10}
    assert "on_host" not in report
    assert "on_disk" not in report
    assert report["text"] == (
        "10 of 40 tokens were cached; 29 from token 10 on had been, but had to make room 2.0 s ago"
    )


@pytest.mark.parametrize(
    ("ago", "went"), [(2.0, "but had to make room 2.0 s ago"), (None, "though never in this pool")]
)
def test_what_is_on_disk_and_was_computed_is_told(ago: float | None, went: str) -> None:
    report = reported(
        evicted_ago=ago,
        on_disk=24,
        read_seconds=0.0123,
        computed_because="8 others are being read",
        from_disk=4,
    )
    assert report["cached_tokens"] == {"device": 6, "disk": 4}
    assert (report["evicted_tokens"], report.get("evicted_seconds_ago")) == (29, ago)
    assert report["on_disk"] == {
        "tokens": 24,
        "read_seconds": 0.0123,
        "computed_because": "8 others are being read",
    }
    assert report["text"] == (
        f"10 of 40 tokens were cached; 29 from token 10 on had been, {went}; of these 24 are on "
        "disk, 12.3 ms to read, computed instead because 8 others are being read"
    )


def test_what_is_in_host_memory_is_told_before_the_disk() -> None:
    report = reported(
        evicted_ago=2.0,
        hits=1,
        on_host=16,
        host_seconds=0.001,
        on_disk=8,
        read_seconds=0.0123,
        computed_because="memory is short",
        from_host=3,
        from_disk=4,
    )
    assert report["cached_tokens"] == {"device": 3, "host": 3, "disk": 4}
    why = {"computed_because": "memory is short"}
    assert report["on_host"] == {"tokens": 16, "read_seconds": 0.001, **why}
    assert report["on_disk"] == {"tokens": 8, "read_seconds": 0.0123, **why}
    assert report["text"].endswith(
        "of these 16 are in host memory, 1.0 ms to read, 8 are on disk, 12.3 ms to read, computed "
        "instead because memory is short"
    )
