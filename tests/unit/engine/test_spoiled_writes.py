"""Keys and values that are not finite leave the disk's queue with the pool."""

from __future__ import annotations

import numpy as np
import pytest

from radixlm.core.request import Namespace
from tests.disk_bench import BLOCK, DiskBench
from tests.engines import make_request
from tests.invariants import check

PROMPT = np.arange(18, dtype=np.int32)
OTHER = np.arange(100, 118, dtype=np.int32)


def spoil(bench: DiskBench, keep: int) -> None:
    """What the scheduler does when a request fails."""
    bench.tiering.discard(PROMPT, Namespace(), keep)
    bench.cache.discard(PROMPT, Namespace(), keep)
    check(bench.cache)


def stored(bench: DiskBench, key: np.ndarray) -> int:
    """Blocks of a prompt on disk."""
    tokens = key.tobytes()
    return sum(tokens.startswith(name) for _, name in bench.disk.blocks)


@pytest.mark.parametrize("keep", [0, 6])
@pytest.mark.parametrize("moved", range(5))
def test_a_write_in_flight_is_given_up_and_undone(moved: int, keep: int) -> None:
    bench = DiskBench(capacity=8 * 64, moves=0)
    for name, key in (("spoiled", PROMPT), ("other", OTHER)):
        bench.core.add(make_request(name, key, 1))
    bench.run()
    bench.tiering.turn()
    assert [each.blocks.tokens[0] for each in bench.saving.under_way.values()] == [0]
    for _ in range(moved):
        bench.work()
    spoil(bench, keep)
    assert bench.cache.match(PROMPT, Namespace()).length == keep, "a write in flight held it"
    bench.settle()
    assert stored(bench, PROMPT) <= keep // BLOCK
    assert stored(bench, OTHER) == len(OTHER) // BLOCK
    assert bench.tier.length_of(PROMPT, Namespace()) == stored(bench, PROMPT) * BLOCK
    usage = bench.cache.usage()
    assert (usage.private, usage.locked) == (0, 0)


def test_what_was_only_queued_is_never_written() -> None:
    bench = DiskBench(capacity=8 * 64)
    bench.core.add(make_request("spoiled", PROMPT, 1))
    while bench.core.has_work:
        bench.core.step()
    assert not bench.saving.under_way
    spoil(bench, 0)
    bench.settle()
    assert not bench.disk.blocks


def test_what_is_read_of_it_is_given_up() -> None:
    bench = DiskBench()
    bench.store(PROMPT)
    bench.moves = 0
    bench.core.add(make_request("waits", PROMPT, 1))
    bench.step()
    bench.work()
    assert bench.restoring.under_way
    spoil(bench, 0)
    assert not bench.restoring.under_way
    assert bench.cache.match(PROMPT, Namespace()).length == 0
    output = bench.run()["waits"]
    assert (output.cached_tokens, output.finish_reason is not None) == (0, True)


def test_what_is_stored_of_it_is_deleted_though_nothing_is_written_any_more() -> None:
    """Else the next start would find it."""
    bench = DiskBench(capacity=8 * 64)
    bench.store(PROMPT)
    assert stored(bench, PROMPT) == len(PROMPT) // BLOCK
    bench.saving.turn_off("a disk that failed once")
    spoil(bench, 0)
    bench.settle()
    assert not bench.disk.blocks
