"""What requests and figures say of the disk: read from there, or why it was not."""

from __future__ import annotations

from typing import Any

import pytest

from radixlm.core.keys import as_key
from radixlm.core.misses import MissReason, MissReport
from radixlm.core.moves import Damaged
from radixlm.core.request import RequestOutput
from radixlm.engine.saving import PAUSE
from radixlm.scheduler.restoring import MOST_AT_ONCE
from tests.disk_bench import BLOCK, DiskBench
from tests.engines import make_request

PROMPT = list(range(18))
ON_DISK = 16  # its whole blocks


def written(**options: Any) -> DiskBench:
    """A bench whose disk has the prompt, and whose pool has nothing."""
    bench = DiskBench(**options)
    bench.store(PROMPT)
    return bench


def asked(bench: DiskBench, name: str = "again") -> RequestOutput:
    bench.core.add(make_request(name, PROMPT, 1))
    return bench.run()[name]


def miss_of(output: RequestOutput) -> MissReport:
    assert output.miss is not None
    return output.miss


def test_what_was_read_for_a_request_is_counted_apart_from_what_was_there() -> None:
    bench = written()
    first = miss_of(asked(bench))
    assert (first.cached, first.from_disk, first.on_disk) == (ON_DISK, ON_DISK, 0)
    second = miss_of(asked(bench, "in memory"))
    assert (second.cached, second.from_disk) == (len(PROMPT) - 1, 0)
    stats = bench.core.stats()
    assert stats.disk_cached_tokens == ON_DISK
    assert (stats.disk_read, stats.disk_restored) == (ON_DISK, ON_DISK)


def test_a_part_that_was_in_the_pool_is_not_from_disk() -> None:
    bench = written()
    bench.core.add(make_request("beginning", PROMPT[: BLOCK + 2], 1))
    bench.run()
    report = miss_of(asked(bench))
    assert (report.cached, report.from_disk) == (ON_DISK, ON_DISK - BLOCK - 2)


def test_figures_follow_the_tier() -> None:
    bench = written(room=6 * BLOCK)
    stats = bench.core.stats()
    usage = bench.tier.usage()
    assert stats.disk_capacity == 6 * BLOCK
    assert stats.disk_tokens == usage.locked + usage.evictable == ON_DISK
    assert stats.disk_written == ON_DISK
    assert (stats.disk_failed_reads, stats.disk_failed_writes, stats.disk_writing_off) == (0, 0, 0)


def test_without_a_store_there_are_no_figures_and_no_place() -> None:
    bench = DiskBench()
    bench.core.tiering = bench.scheduler.tiers = None
    assert asked(bench).miss == MissReport(len(PROMPT), 0, MissReason.NEW, 0)
    assert bench.core.stats().disk_capacity == 0


def test_a_block_that_is_missing_is_a_failed_read() -> None:
    bench = written()
    bench.disk.blocks.clear()
    asked(bench)
    stats = bench.core.stats()
    assert (stats.disk_failed_reads, stats.disk_writing_off) == (1, 0)


def test_a_disk_that_fails_turns_writing_off() -> None:
    bench = DiskBench()
    bench.disk.broken = "no room left"
    asked(bench)
    bench.settle()
    stats = bench.core.stats()
    assert (stats.disk_failed_writes, stats.disk_writing_off, stats.disk_tokens) == (1, 1, 0)


def test_a_disk_with_less_room_than_was_thought_takes_what_comes_later() -> None:
    bench = DiskBench()
    bench.disk.most = ON_DISK // BLOCK
    for prompt in (PROMPT, PROMPT[::-1]):
        for _ in range(2):
            bench.core.add(make_request("one", prompt, 1))
            bench.run()
            bench.settle()
            bench.time.advance(PAUSE)
    first = as_key(PROMPT[::-1][:BLOCK]).tobytes()
    assert any(tokens == first for _, tokens in bench.disk.blocks)


def because(bench: DiskBench) -> str:
    """Why what is on disk is computed, after what is on disk was named."""
    report = miss_of(asked(bench))
    assert (report.reason, report.from_disk, report.on_disk) == (MissReason.EVICTED, 0, ON_DISK)
    assert report.read_seconds == pytest.approx(ON_DISK / bench.restoring.pace.read)
    words = f"{ON_DISK} are on disk, {1e3 * report.read_seconds:.1f} ms to read, computed instead"
    assert f", {words} because {report.computed_because}" in str(report)
    return report.computed_because


def test_a_disk_slower_than_computing_is_named() -> None:
    bench = written()
    bench.restoring.pace.computed = 1e12
    assert because(bench) == "reading takes 0.0 ms and computing 0.0 ms"


def test_a_disk_that_failed_while_reading_is_named() -> None:
    bench = written()
    bench.disk.broken = "input/output error"
    assert because(bench) == "the disk failed"
    assert bench.core.stats().disk_failed_reads == 1


def test_too_many_reads_at_once_are_named() -> None:
    bench = written(capacity=400, budget=400)
    bench.moves = 0
    for first in range(MOST_AT_ONCE):
        other = make_request(f"other {first}", [100 + first] * len(PROMPT), 1)
        bench.tier.stored(other.key, other.namespace, 0, ON_DISK)
        bench.core.add(other)
    bench.core.add(make_request("again", PROMPT, 1))
    [output] = bench.step()
    assert output.request_id == "again"
    assert miss_of(output).computed_because == f"{MOST_AT_ONCE} others are being read"


def test_damaged_blocks_are_counted_as_the_store_counts_them() -> None:
    bench = written()
    for blocks in (1, 3):
        bench.tiering.take(Damaged(blocks))
    assert bench.core.stats().disk_damaged == 3
