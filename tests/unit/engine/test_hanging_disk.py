"""A disk that does not answer: requests compute, nothing stays locked, and it is told."""

from __future__ import annotations

from queue import SimpleQueue

import pytest

from radixlm.engine.loop import EngineThread, Inbound, Stop
from radixlm.engine.tiering import SECONDS_OF_GRACE, SECONDS_TO_ANSWER
from radixlm.scheduler.restoring import FIRST_PAUSE
from tests.disk_bench import BLOCK, DiskBench
from tests.engines import make_request
from tests.invariants import check
from tests.server_support import until

PROMPT = list(range(18))
ON_DISK = 16


def answered(bench: DiskBench, name: str, prompt: list[int] = PROMPT) -> int:
    """Its tokens are right; how many were cached."""
    request = make_request(name, prompt, 2)
    bench.core.add(request)
    output = bench.run()[name]
    assert list(output.token_ids) == bench.expected(request)
    return output.cached_tokens


def hang(bench: DiskBench) -> None:
    """Nothing is moved for as long as it is waited for."""
    bench.moves = 0
    for seconds in (SECONDS_TO_ANSWER, SECONDS_OF_GRACE):
        bench.tiering.turn()
        bench.time.advance(seconds)
    bench.tiering.turn()
    check(bench.cache)


def all_free(bench: DiskBench) -> bool:
    pool, stored = bench.cache.usage(), bench.tier.usage()
    return (pool.private, pool.locked, stored.private, stored.locked) == (0, 0, 0, 0)


def test_a_write_that_hangs_lets_go(caplog: pytest.LogCaptureFixture) -> None:
    bench = DiskBench(moves=0)
    answered(bench, "first")
    bench.tiering.turn()
    assert bench.saving.under_way
    assert not all_free(bench)
    assert bench.tiering.seconds_left() is not None, "an idle engine would wait for ever"
    hang(bench)
    assert all_free(bench)
    stats = bench.core.stats()
    assert (stats.disk_hung, stats.disk_writing_off, stats.disk_failed_writes) == (1, 1, 0)
    own = [each for each in caplog.records if each.name.startswith("radixlm")]
    assert ["has not ended" in each.getMessage() for each in own] == [True]
    bench.moves = 1
    bench.settle()
    assert not bench.disk.blocks, "its slots may hold other tokens by now"
    assert bench.core.stats().disk_tokens == 0


def test_an_idle_engine_says_that_it_let_go() -> None:
    """It waits for ever afterwards: nothing else would make it look."""
    bench = DiskBench(moves=0)
    answered(bench, "first")
    bench.tiering.turn()
    bench.time.advance(SECONDS_TO_ANSWER)
    bench.tiering.turn()
    bench.time.advance(SECONDS_OF_GRACE)
    inbox: SimpleQueue[Inbound] = SimpleQueue()
    thread = EngineThread(bench.core, inbox, lambda _: None, bench.time)
    thread.start()
    assert until(lambda: thread.stats.disk_hung == 1)
    assert thread.stats.kv_locked == 0
    inbox.put(Stop())
    thread.join(30)


def test_a_read_that_hangs_lets_go_and_none_follows_until_it_ends() -> None:
    bench = DiskBench()
    bench.store(PROMPT)
    bench.moves = 0
    bench.core.add(make_request("waits", PROMPT, 2))
    bench.step()
    assert bench.restoring.under_way
    hang(bench)
    assert all_free(bench)
    assert bench.core.stats().disk_hung == 1
    bench.run()
    bench.core.flush()
    bench.time.advance(1_000)
    assert answered(bench, "while it hangs") == 0
    assert not bench.restoring.under_way
    bench.moves = 1
    bench.settle()
    bench.core.flush()
    bench.time.advance(2 * FIRST_PAUSE)
    assert answered(bench, "afterwards") == ON_DISK


def test_why_it_is_computed_is_said() -> None:
    bench = DiskBench()
    bench.store(PROMPT)
    bench.moves = 0
    bench.core.add(make_request("waits", PROMPT, 2))
    bench.step()
    hang(bench)
    bench.run()
    bench.core.flush()
    bench.core.add(make_request("again", PROMPT, 1))
    miss = bench.run()["again"].miss
    assert miss is not None
    assert (miss.on_disk, miss.computed_because) == (ON_DISK, "the disk does not answer")


def test_a_process_that_stood_still_does_not_blame_the_disk() -> None:
    bench = DiskBench(moves=0)
    answered(bench, "first")
    bench.tiering.turn()
    bench.time.advance(100 * SECONDS_TO_ANSWER)
    bench.tiering.turn()
    bench.work()
    bench.time.advance(SECONDS_OF_GRACE)
    bench.tiering.turn()
    assert bench.saving.under_way
    assert bench.core.stats().disk_hung == 0


def test_a_request_that_needs_the_slots_gets_them() -> None:
    """A write and a pool that it locks in part, and a request that takes all of it."""
    bench = DiskBench(capacity=2 * ON_DISK, moves=0)
    answered(bench, "first", PROMPT[:ON_DISK])
    bench.tiering.turn()
    assert bench.saving.under_way
    request = make_request("large", list(range(50, 50 + 2 * ON_DISK - 2)), 2)
    bench.core.add(request)
    given = []
    for _ in range(100):
        bench.time.advance(0.5)
        given += [token for output in bench.step() for token in output.token_ids]
    assert given == bench.expected(request)
    assert bench.saving.error
    assert BLOCK
