"""Models with states beside host memory or a disk: what is stored of many prompts, and found."""

from __future__ import annotations

import random
from typing import Any

import pytest

from tests.disk_bench import BLOCK, DiskBench
from tests.engines import make_request

PROMPTS, SIZE = 12, 268
PER_STATE = 32
# The room of a prompt with one checkpoint, before its last token.
EACH = 264 + BLOCK + PER_STATE * BLOCK


def prompts() -> list[list[int]]:
    draw = random.Random(1)
    return [draw.choices(range(60), k=SIZE) for _ in range(PROMPTS)]


def hits(bench: DiskBench, rounds: int) -> list[int]:
    """How many of the prompts are found in each round, one after the other."""
    found = []
    for turn in range(rounds):
        found.append(0)
        for number, prompt in enumerate(prompts()):
            for floor in bench.tiering.floors:
                floor.restoring.pace.computed = 1.0  # so it pays to read
            request = make_request(f"{turn}-{number}", prompt)
            bench.core.add(request)
            output = bench.run()[request.request_id]
            assert list(output.token_ids) == bench.expected(request)
            found[-1] += output.cached_tokens >= SIZE - BLOCK
    return found


def made(capacity: int, states: int, moves: int = 40, **places: Any) -> DiskBench:
    flags = {"budget": 512, "per_state": PER_STATE, "write": "off", **places}
    return DiskBench(capacity, states=states, moves=moves, **flags)


@pytest.mark.parametrize(("capacity", "states"), [(1_000, 12), (400, 5)])
def test_host_memory_for_one_checkpoint_a_prompt_finds_each(capacity: int, states: int) -> None:
    bench = made(capacity, states, host=PROMPTS * EACH)
    assert hits(bench, 2) == [0, PROMPTS]
    assert bench.core.stats().host_tokens == PROMPTS * EACH
    assert bench.core.stats().host_state_tokens == PROMPTS * (EACH - 264)


@pytest.mark.parametrize("write", ["selective", "evict", "all"])
def test_a_disk_helps_the_second_time(write: str) -> None:
    bench = made(1_000, 12, write=write, room=2 * PROMPTS * EACH)
    assert hits(bench, 2) == [0, PROMPTS]


def test_slow_copies_lose_nothing_that_has_room_in_the_pool() -> None:
    """Places on the way go before ends that are not written yet."""
    bench = made(2_000, 42, moves=28, host=PROMPTS * EACH)
    assert hits(bench, 2) == [0, PROMPTS]
