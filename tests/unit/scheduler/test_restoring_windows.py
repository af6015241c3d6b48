"""What is read for requests of models in which some layers see a window."""

from __future__ import annotations

import random

import pytest

from radixlm.cache.components.window_slots import WindowSize
from radixlm.core.keys import as_key
from radixlm.core.moves import News
from radixlm.core.request import Namespace, RequestOutput
from radixlm.core.sampling import SamplingParams
from tests.disk_bench import BLOCK, DiskBench
from tests.engines import make_request

WINDOW = 9
PROMPT = random.Random(0).choices(range(200), k=61)


def bench_of(spare: int = 40) -> DiskBench:
    """With PROMPT on disk, and nothing in the pool."""
    size = WindowSize(WINDOW, 0, 16, BLOCK)
    bench = DiskBench(200, windows=size._replace(capacity=size.least(1) + spare))
    bench.store(PROMPT)
    return bench


def served(bench: DiskBench, prompt: list[int], **options: object) -> RequestOutput:
    request = make_request("r", prompt, 3, **options)  # type: ignore[arg-type]
    bench.core.add(request)
    output = bench.run()["r"]
    assert list(output.token_ids) == bench.expected(request)
    return output


def windows_read(bench: DiskBench) -> list[int]:
    """How many tokens' windows each read has filled, by a look at what is submitted."""
    return [int((job.windows >= 0).sum()) for job, _ in bench.disk.jobs]


def test_only_the_last_window_takes_window_slots() -> None:
    bench = bench_of()
    bench.core.add(make_request("r", PROMPT, 3))
    bench.core.step()
    [(job, _)] = bench.disk.jobs
    assert (job.start, job.slots.size) == (0, 60)
    assert windows_read(bench) == [WINDOW]
    output = bench.run()["r"]
    assert (output.cached_tokens, output.miss.from_disk) == (60, 60)


def test_where_only_the_window_is_gone_its_blocks_alone_are_read() -> None:
    bench = bench_of()
    served(bench, PROMPT)
    windows, before = bench.cache.windows, bench.restoring.read
    bench.settle()
    windows.evict(windows.evictable)
    output = served(bench, PROMPT)
    assert output.cached_tokens == 60
    assert bench.restoring.read - before == 3 * BLOCK  # tokens 51 to 60 lie in three blocks


def test_a_request_that_may_take_less_reads_no_farther() -> None:
    """Else what it can go on from were never there, and the same read again and again."""
    bench = bench_of()
    params = SamplingParams(max_tokens=3, temperature=0, prompt_logprobs=1, logprob_start_len=30)
    bench.core.add(make_request("r", PROMPT, 3, params=params))
    bench.run(limit=200)
    assert bench.restoring.read == 28
    assert bench.core.stats().cached_tokens >= 28


def test_one_that_shares_less_has_a_window_of_its_own_read() -> None:
    bench = bench_of()
    longer, shorter = make_request("a", PROMPT, 1), make_request("b", [*PROMPT[:34], 201], 1)
    bench.core.add(longer)
    bench.core.add(shorter)
    outputs = bench.run()
    assert (outputs["a"].cached_tokens, outputs["b"].cached_tokens) == (60, 32)


def test_host_memory_and_then_the_disk() -> None:
    """What the disk has beyond host memory is read after that, from the window on."""
    size = WindowSize(WINDOW, 0, 16, BLOCK)
    windows = size._replace(capacity=size.least(1) + 40)
    bench = DiskBench(200, windows=windows, host=8 * BLOCK, copy="all")
    served(bench, PROMPT[:33])
    bench.settle()
    served(bench, PROMPT)
    bench.settle()
    bench.evict()
    for floor in bench.tiering.floors:
        floor.restoring.pace.computed = 1.0
    on_host = bench.host_tier.restorable(as_key(PROMPT), Namespace())
    on_disk = bench.tier.restorable(as_key(PROMPT), Namespace())
    output = served(bench, PROMPT)
    assert 0 < on_host < on_disk == 60
    assert output.cached_tokens == 60
    assert output.miss.from_host == on_host


@pytest.mark.parametrize("said", [False, True])
def test_blocks_that_have_lost_their_windows_are_not_deleted(*, said: bool) -> None:
    """Another process has written them anew. said: that is known before they are read."""
    bench = bench_of()
    blocks = bench.disk.blocks
    for name in list(blocks)[-3:]:
        blocks[name] = blocks[name][:1]
    if said:
        bench.tiering.take(News(bench.disk.paths()))
        bench.step()
    output = served(bench, PROMPT)
    assert output.cached_tokens == 48
    assert len(blocks) == 15
    assert bench.tier.length_of(as_key(PROMPT), Namespace()) == 60


def test_none_follows_a_read_whose_windows_come_after_what_it_shares() -> None:
    bench = bench_of()
    for name, prompt in (("a", PROMPT), ("b", [*PROMPT[:34], 201]), ("c", [*PROMPT, 202])):
        bench.core.add(make_request(name, prompt, 1))
    bench.core.step()
    assert [job.tokens.size for job, _ in bench.disk.jobs] == [60, 32]
    assert windows_read(bench) == [9, 9]
    assert bench.run()["b"].cached_tokens == 32


@pytest.mark.parametrize("room", [15 * BLOCK, 4_096])
def test_what_was_written_without_windows_gets_them_when_it_is_computed_again(room: int) -> None:
    size = WindowSize(WINDOW, 0, 16, BLOCK)
    size = size._replace(capacity=size.least(1) + 40)
    bench = DiskBench(200, windows=size, room=room, moves=0)
    served(bench, PROMPT)
    windows = bench.cache.windows
    windows.evict(windows.evictable)
    bench.settle()
    tier, key = bench.tier, as_key(PROMPT)
    assert tier.length_of(key, Namespace()) == 60 > tier.restorable(key, Namespace())
    served(bench, PROMPT)
    bench.settle()
    assert tier.restorable(key, Namespace()) == 60
    assert (tier.usage().private, tier.usage().locked, len(bench.disk.blocks)) == (0, 0, 15)
