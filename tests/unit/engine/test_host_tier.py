"""What the pool gives up goes on in host memory, and beyond that on disk, one after the other."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from radixlm.core.misses import MissReason, MissReport
from radixlm.core.moves import Ended, Place
from radixlm.core.request import RequestOutput
from radixlm.engine.saving import PAUSE
from radixlm.engine.tiering import PATIENCE
from tests.disk_bench import BLOCK, DiskBench
from tests.engines import make_request

PROMPT = list(range(26))
STORED = 24  # its whole blocks


def bench_with(*, host: int, disk: int, **options: Any) -> DiskBench:
    """As many of the prompt's tokens are in host memory and on disk; none in the pool."""
    bench = DiskBench(**{"host": 4_096, "copy": "all", **options})
    asked(bench, "before")
    bench.settle()
    bench.evict()
    request = make_request("r", PROMPT, 1)
    for tier, stored in ((bench.host_tier, host), (bench.tier, disk)):
        tier.gone(request.key, request.namespace, stored)
    bench.settle()
    for floor in bench.tiering.floors:
        floor.restoring.pace.computed = 1.0  # so it pays to read
    return bench


def asked(bench: DiskBench, name: str = "again", prompt: list[int] = PROMPT) -> RequestOutput:
    request = make_request(name, prompt, 1)
    bench.core.add(request)
    output = bench.run()[name]
    assert list(output.token_ids) == bench.expected(request)
    return output


def miss_of(output: RequestOutput) -> MissReport:
    assert output.miss is not None
    return output.miss


def give_way(bench: DiskBench) -> None:
    """A request that is alone has waited for copies as long as it may."""
    assert bench.tiering.give_way(alone=True)
    assert bench.tiering.seconds_left() == pytest.approx(PATIENCE)
    bench.time.advance(PATIENCE)
    assert bench.tiering.give_way(alone=True)


@pytest.mark.parametrize(
    ("host", "disk", "read"),
    [
        (STORED, 0, (STORED, 0)),
        (STORED, STORED, (STORED, 0)),
        (8, STORED, (8, STORED - 8)),
        (0, STORED, (0, STORED)),
        (STORED, 8, (STORED, 0)),
    ],
)
def test_each_token_comes_from_the_fastest_place_that_has_it(
    host: int, disk: int, read: tuple[int, int]
) -> None:
    bench = bench_with(host=host, disk=disk)
    report = miss_of(asked(bench))
    assert report.cached == STORED
    assert (report.from_host, report.from_disk) == read
    stats = bench.core.stats()
    assert (stats.host_cached_tokens, stats.disk_cached_tokens) == read
    assert (stats.host_read, stats.disk_read) == read
    again = miss_of(asked(bench, "in the pool"))
    assert (again.cached, again.from_host, again.from_disk) == (len(PROMPT) - 1, 0, 0)


def test_all_that_wait_follow_from_one_place_to_the_next() -> None:
    bench = bench_with(host=8, disk=STORED, capacity=200)
    requests = [make_request(f"r{last}", [*PROMPT, last], 2) for last in range(4)]
    for request in requests:
        bench.core.add(request)
    outputs = bench.run()
    for request in requests:
        output = outputs[request.request_id]
        assert list(output.token_ids) == bench.expected(request)
        assert output.cached_tokens >= STORED
    assert (bench.core.stats().host_read, bench.core.stats().disk_read) == (8, STORED - 8)


def test_what_is_evicted_next_is_copied_before() -> None:
    """Prompts that are twice the pool are all found again, in order."""
    bench = DiskBench(64, host=1_024, moves=8, write="off")
    prompts = [[first] * 20 for first in range(1, 9)]
    for floor in bench.tiering.floors:
        floor.restoring.pace.computed = 1.0
    for number, prompt in enumerate([*prompts, *prompts]):
        output = asked(bench, f"r{number}", prompt)
        bench.settle()
        if number >= len(prompts):
            assert output.cached_tokens >= 16
    usage = bench.host_tier.usage()
    assert usage.locked + usage.evictable == len(bench.host.blocks) * BLOCK


def test_a_pool_that_holds_one_prompt_waits_until_that_is_copied() -> None:
    bench = DiskBench(36, host=1_024, write="off")
    prompts = [[first] * 20 for first in range(1, 9)]
    cached = []
    for number, prompt in enumerate([*prompts, *prompts]):
        for floor in bench.tiering.floors:
            floor.restoring.pace.computed = 1.0
        cached.append(asked(bench, f"r{number}", prompt).cached_tokens)
    assert min(cached[len(prompts) :]) >= 2 * BLOCK  # of which one is written at a time


def test_a_pool_with_room_is_not_copied() -> None:
    bench = DiskBench(1_000, host=1_024)
    asked(bench)
    bench.settle()
    assert not bench.host.blocks


def test_host_memory_keeps_to_its_room() -> None:
    bench = DiskBench(64, host=4 * BLOCK, copy="all", moves=8)
    for first in range(1, 9):
        asked(bench, f"r{first}", [first] * 20)
        bench.settle()
        assert 0 < len(bench.host.blocks) <= 4
    assert bench.core.stats().host_tokens == len(bench.host.blocks) * BLOCK
    assert bench.core.stats().host_capacity == 4 * BLOCK


def test_a_flush_empties_host_memory_and_not_the_disk() -> None:
    bench = bench_with(host=STORED, disk=STORED)
    bench.core.flush()
    bench.settle()
    assert not bench.host.blocks
    report = miss_of(asked(bench))
    assert (report.from_host, report.from_disk) == (0, STORED)


def test_a_stop_copies_nothing_to_host_memory() -> None:
    bench = DiskBench(64, host=1_024, write="selective")
    asked(bench)
    bench.tiering.save_all()
    bench.settle()
    assert (len(bench.host.blocks), len(bench.disk.blocks)) == (0, STORED // BLOCK)


def test_why_it_is_computed_names_both() -> None:
    bench = bench_with(host=8, disk=STORED)
    for floor in bench.tiering.floors:
        floor.restoring.pace.computed = 1e12
    report = miss_of(asked(bench))
    assert (report.reason, report.cached) == (MissReason.EVICTED, 0)
    assert (report.on_host, report.on_disk) == (8, STORED - 8)
    assert (
        "8 are in host memory, 0.0 ms to read, 16 are on disk, 0.0 ms to read, computed instead "
        "because reading takes 0.0 ms and computing 0.0 ms"
    ) in str(report)


def test_when_memory_is_short_neither_goes_on() -> None:
    bench = bench_with(host=8, disk=STORED)
    bench.moves = 0
    bench.core.add(make_request("again", PROMPT, 1))
    bench.step()
    assert bench.tiering.holds
    give_way(bench)
    bench.settle()
    bench.step()
    assert not bench.tiering.holds
    assert bench.core.stats().computed_tokens > len(PROMPT)


def test_when_memory_is_short_copies_to_both_end_for_a_while() -> None:
    bench = DiskBench(64, host=1_024, copy="all", moves=0)
    asked(bench)
    bench.tiering.turn()
    assert bench.host.jobs
    assert bench.disk.jobs
    give_way(bench)
    bench.settle()
    assert not bench.tiering.holds
    assert not bench.host.blocks
    assert not bench.disk.blocks
    bench.time.advance(2)
    bench.settle()
    assert bench.host.blocks
    assert bench.disk.blocks


def test_a_copy_that_fails_ends_the_copying_and_no_other(caplog: pytest.LogCaptureFixture) -> None:
    bench = DiskBench(64, host=1_024, copy="all")
    bench.host.broken = "RuntimeError: CUDA error"
    with caplog.at_level(logging.WARNING):
        asked(bench)
        bench.settle()
    assert "nothing is written to host memory any more: RuntimeError" in caplog.text
    stats = bench.core.stats()
    assert (stats.host_writing_off, stats.host_failed_writes) == (1, 1)
    assert (stats.disk_writing_off, stats.disk_written) == (0, STORED)


def test_places_are_asked_in_order_whatever_came_first() -> None:
    bench = DiskBench(host=64)
    assert [tier.place for tier in bench.cache.tiers] == [Place.HOST, Place.DISK]


def test_host_memory_is_asked_again_while_the_disk_does_not_answer() -> None:
    bench = DiskBench(host=4_096, copy="all", moves=0)
    asked(bench, "first")
    bench.tiering.turn()
    bench.tiering.give_way(alone=False)
    host, disk = bench.tiering.floors
    while bench.host.jobs:
        for report in bench.host.work():
            bench.tiering.take(report)
    assert (len(host.saving.under_way), len(disk.saving.under_way)) == (0, 1)
    bench.time.advance(PAUSE)
    asked(bench, "second", [*PROMPT[::-1]])
    bench.tiering.turn()
    [ticket] = host.saving.under_way
    bench.tiering.give_way(alone=False)
    assert bench.host.work() == [Ended(ticket, 0, cancelled=True)]
