"""What is on disk is read for those that wait, and none of them is stuck behind the disk."""

from __future__ import annotations

from typing import get_args

import pytest

from radixlm.core.config import DiskWritePolicy
from radixlm.core.keys import as_key
from radixlm.core.request import Namespace, RequestOutput
from radixlm.scheduler.restoring import FIRST_PAUSE
from tests.disk_bench import BLOCK, READ_RATE, DiskBench
from tests.engines import make_request
from tests.invariants import check

SHARED = list(range(1, 25))


def filled(capacity: int = 200, *prompts: list[int], **options: object) -> DiskBench:
    """A bench with these prompts on disk, SHARED by default, and an empty pool."""
    bench = DiskBench(capacity, **options)
    for number, prompt in enumerate(prompts or ([*SHARED, 99],)):
        bench.core.add(make_request(f"before {number}", prompt, 1))
        bench.run()
        bench.settle()
    bench.core.flush()
    bench.settle()
    return bench


def answer(bench: DiskBench, key: list[int], name: str = "r", **fields: object) -> RequestOutput:
    """Run a request, among others that wait; its tokens are right."""
    request = make_request(name, key, 3, **fields)
    bench.core.add(request)
    output = bench.run()[name]
    assert list(output.token_ids) == bench.expected(request)
    bench.settle()
    usage = bench.cache.usage()
    assert (usage.private, usage.locked) == (0, 0)
    return output


def test_what_was_evicted_is_read_again() -> None:
    bench = filled()
    assert answer(bench, [*SHARED, 50]).cached_tokens == len(SHARED)
    assert bench.scheduler.counters.computed_tokens == 25 + 3
    assert bench.restoring.restored == len(SHARED)


def test_a_request_goes_on_where_what_is_stored_ends() -> None:
    bench = filled(200, SHARED[:13])
    assert answer(bench, [*SHARED, 50]).cached_tokens == 12


def test_what_is_resident_is_not_read() -> None:
    bench = filled()
    answer(bench, [*SHARED[:9], 50])
    restored = bench.restoring.restored
    assert restored == 8
    assert answer(bench, [*SHARED, 51], "again").cached_tokens == len(SHARED)
    assert bench.restoring.restored - restored == len(SHARED) - 9, "one was computed"


def test_a_block_that_is_resident_in_part_is_read_as_a_whole() -> None:
    """The pool is so small that a part of the second block is evicted."""
    bench = filled(40, SHARED)
    answer(bench, SHARED)
    bench.core.add(make_request("other", list(range(60, 70)), 8))
    bench.run()
    left = bench.cache.match(SHARED, Namespace()).length
    assert left % BLOCK
    assert answer(bench, [*SHARED, 51], "again").cached_tokens == len(SHARED)


def test_a_token_that_two_blocks_bring_is_counted_once() -> None:
    """Paths that part within a block have it twice on disk."""
    fork = [*SHARED[:14], *range(80, 90)]
    bench = filled(200, SHARED, fork)
    answer(bench, [*SHARED, 50])
    assert bench.restoring.restored == len(SHARED)
    answer(bench, [*fork, 50], "the other")
    assert bench.restoring.read == len(SHARED) + 2 * BLOCK
    assert bench.restoring.restored == len(SHARED) + 2 * BLOCK - 2


def test_those_that_share_follow_one_restoration() -> None:
    bench = filled()
    for number in range(3):
        bench.core.add(make_request(f"r{number}", [*SHARED, 50 + number], 2))
    bench.step()
    assert len(bench.restoring.under_way) == 1
    assert {state.follows for state in bench.scheduler.waiting} == set(
        bench.restoring.under_way.values()
    )
    outputs = bench.run()
    assert {output.cached_tokens for output in outputs.values()} == {len(SHARED)}
    assert bench.restoring.restored == len(SHARED)


def test_what_the_step_computes_already_comes_before() -> None:
    """Reading takes 24 us, computing 12: but not after 36 tokens of another."""
    bench = filled(budget=64)
    bench.restoring.pace.computed = 2 * READ_RATE
    bench.core.add(make_request("alone", [*SHARED, 50], 1))
    miss = bench.run()["alone"].miss
    assert miss is not None
    assert "reading takes 0.0 ms and computing 0.0 ms" in miss.computed_because
    bench.core.flush()
    bench.settle()
    bench.core.add(make_request("other", list(range(60, 96)), 2))
    bench.core.add(make_request("r", [*SHARED, 51], 2))
    bench.step()
    assert bench.restoring.under_way
    bench.tiering.turn()
    assert bench.restoring.too_slow == 0
    assert bench.run()["r"].cached_tokens == len(SHARED)


def test_a_disk_that_is_late_for_that_is_given_up_too() -> None:
    bench = filled(budget=64, moves=0)
    bench.restoring.pace.computed = 2 * READ_RATE
    bench.core.add(make_request("other", list(range(60, 96)), 2))
    bench.core.add(make_request("r", [*SHARED, 51], 2))
    bench.step()
    assert bench.restoring.under_way
    bench.time.advance(20e-6)  # the other is computed, and nothing has been read
    bench.tiering.turn()
    assert bench.restoring.too_slow == 1
    assert bench.run()["r"].cached_tokens == 0


def test_others_are_computed_meanwhile() -> None:
    bench = filled(moves=0)
    bench.core.add(make_request("waits", [*SHARED, 50], 2))
    bench.core.add(make_request("other", [70, 71, 72], 2))
    bench.step()
    assert [state.request.request_id for state in bench.scheduler.running] == ["other"]
    assert not bench.core.stuck
    bench.step()
    bench.step()
    assert bench.core.stuck


def test_a_disk_that_is_silent_is_waited_for_a_while() -> None:
    bench = filled(moves=0)
    bench.core.add(make_request("r", [*SHARED, 50], 2))
    bench.step()
    [state] = bench.scheduler.waiting
    assert state.follows is not None
    bench.work()
    bench.time.advance(0.01)
    bench.tiering.turn()
    assert state.follows is not None
    bench.time.advance(1)
    bench.step()
    assert state.follows is None
    assert state.cached_tokens == BLOCK
    assert bench.restoring.too_slow == 1
    bench.run()
    assert bench.cache.usage().private > 0, "the disk may still write there"
    bench.settle()
    assert bench.cache.usage().private == 0


def test_after_a_silence_nothing_is_restored_for_a_while() -> None:
    bench = filled(moves=0)
    bench.core.add(make_request("r", [*SHARED, 50], 2))
    bench.step()
    bench.time.advance(1)
    bench.run()
    bench.settle()
    bench.moves = 1
    bench.core.flush()
    assert answer(bench, [*SHARED, 51], "next").cached_tokens == 0
    bench.core.flush()
    bench.settle()
    bench.time.advance(2 * FIRST_PAUSE)
    assert answer(bench, [*SHARED, 52], "later").cached_tokens == len(SHARED)


def test_a_block_that_is_lost_ends_it_there() -> None:
    bench = filled()
    lost = [key for key in bench.disk.blocks if len(key[1]) == 4 * 3 * BLOCK]
    del bench.disk.blocks[lost[0]]
    assert answer(bench, [*SHARED, 50]).cached_tokens == 2 * BLOCK
    bench.core.flush()
    bench.settle()
    assert answer(bench, [*SHARED, 51], "again").cached_tokens == len(SHARED), "not written again"


def test_a_restoration_without_followers_is_stopped() -> None:
    bench = filled(moves=0)
    bench.core.add(make_request("r", [*SHARED, 50], 2))
    bench.step()
    bench.core.abort("r")
    bench.tiering.turn()
    bench.settle()
    assert not bench.tiering.holds
    assert bench.restoring.restored == 0
    assert bench.cache.usage().free == bench.cache.capacity
    check(bench.scheduler)


def test_running_requests_go_before_what_is_read() -> None:
    """The one that runs needs the slots that blocks are read into."""
    bench = filled(40, SHARED, moves=0, conservativeness=0.0)
    running = make_request("running", [70, 71, 72], 30)
    bench.core.add(running)
    bench.step()
    bench.core.add(make_request("waits", [*SHARED[:20], 50], 2))
    bench.step()
    assert bench.restoring.under_way
    for _ in range(30):
        if bench.core.stuck:
            break
        bench.step()
    assert bench.core.stuck
    bench.moves = 1
    outputs = bench.run()
    assert outputs["running"].finish_reason is not None
    assert bench.scheduler.counters.retractions == 0


def test_salts_are_apart_on_disk_too() -> None:
    bench = filled()
    own = Namespace(cache_salt="own")
    assert answer(bench, [*SHARED, 50], namespace=own).cached_tokens == 0


def test_a_new_process_knows_what_is_on_disk() -> None:
    before = filled()
    bench = DiskBench(200, blocks=before.disk.blocks)
    assert answer(bench, [*SHARED, 50]).cached_tokens == len(SHARED)


@pytest.mark.parametrize("policy", get_args(DiskWritePolicy))
def test_policies_of_writing(policy: DiskWritePolicy) -> None:
    bench = DiskBench(200, write=policy)
    written = []
    for number in range(2):
        bench.core.add(make_request(f"r{number}", [*SHARED, 50 + number], 1))
        bench.run()
        bench.settle()
        written.append(len(bench.disk.blocks))
    wanted = {"all": [6, 6], "selective": [0, 6]}
    assert written == wanted.get(policy, [0, 0])


def test_selective_takes_what_was_evicted_and_computed_again_as_a_second_use() -> None:
    bench = DiskBench(200, write="selective")
    for number in range(2):
        answer(bench, [*SHARED, 50 + number], f"use {number}")
        assert len(bench.disk.blocks) == (len(SHARED) // BLOCK if number else 0)
        bench.evict()


def test_selective_remembers_through_a_restart_what_the_disk_knows() -> None:
    """The disk loses a block; who computes it again is not its first user."""
    bench = DiskBench(200, write="selective", blocks=filled().disk.blocks)
    for key in [key for key in bench.disk.blocks if len(key[1]) >= 4 * 3 * BLOCK]:
        del bench.disk.blocks[key]
    answer(bench, [*SHARED, 50])
    assert len(bench.disk.blocks) == len(SHARED) // BLOCK


def test_a_disk_that_fails_is_not_written_again(caplog: pytest.LogCaptureFixture) -> None:
    bench = filled()
    bench.disk.broken = "no space left on device"
    answer(bench, [60, 61, 62, 63, 64, 65], "written")
    bench.settle()
    assert bench.saving.error == "no space left on device"
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    bench.disk.broken = ""
    blocks = len(bench.disk.blocks)
    answer(bench, [80, 81, 82, 83, 84, 85], "not written")
    bench.settle()
    assert len(bench.disk.blocks) == blocks
    bench.time.advance(100)
    assert answer(bench, [*SHARED, 50]).cached_tokens == len(SHARED), "reads go on"


def test_what_shares_a_beginning_is_written_at_a_stop_with_it() -> None:
    """While that beginning is still being written."""
    bench = DiskBench(200, write="evict")
    prompts = [[*SHARED, 50, *range(60, 70)], [*SHARED, 51, *range(70, 80)]]
    for prompt in prompts:
        answer(bench, prompt)
    bench.tiering.save_all()
    while bench.disk.jobs:
        bench.work()
    for prompt in prompts:
        whole = len(prompt) - len(prompt) % BLOCK
        assert bench.tier.length_of(as_key(prompt), Namespace()) == whole
    assert bench.tier.usage().private == bench.tier.usage().locked == 0


def test_all_is_written_at_a_stop() -> None:
    bench = DiskBench(200, write="selective")
    answer(bench, [*SHARED, 50])
    bench.settle()
    assert not bench.disk.blocks
    bench.tiering.save_all()
    while bench.disk.jobs:
        bench.work()
    assert len(bench.disk.blocks) == 6
