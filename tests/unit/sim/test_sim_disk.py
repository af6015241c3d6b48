"""A disk below the pool, on the virtual clock."""

from __future__ import annotations

import numpy as np
import pytest

from radixlm.core.config import EngineConfig
from radixlm.core.misses import MissReason, MissReport
from radixlm.sim.calls import Problems, TraceCall, TraceSession
from radixlm.sim.costs import Costs, Timed
from radixlm.sim.replay import Replay
from radixlm.sim.sim_disk import DiskLosses, DiskSize
from tests.invariants import check

# Each new token of a prompt takes a millisecond: a disk of 100,000 a second is far faster.
COSTS = Costs("test", tuple(Timed(n, 0, 0.01 + n * 1e-3) for n in (1, 1_000)), (Timed(1, 1, 0.01),))
FAST = DiskSize(10_000, 1e5)


def session(number: int, at: float, size: int = 400) -> TraceSession:
    prompt = np.arange(1_000 * number, 1_000 * number + size, dtype=np.int32)
    return TraceSession((TraceCall(prompt, np.array([7], dtype=np.int32)),), at)


def replay(*sessions: TraceSession, disk: DiskSize | None = FAST, **flags: object) -> Replay:
    defaults = {"kv_tokens": 1_000, "disk_cache": "simulated", "disk_write_policy": "all"}
    config = EngineConfig(**{**defaults, "disk_block_tokens": 16, **flags})
    made = Replay(config, COSTS, Problems(), disk=disk)
    made.run(sessions)
    check(made.core.cache)
    assert made.core.stats().leaks == 0
    return made


def test_what_was_evicted_comes_back_from_disk():
    """Three prompts of 400 tokens take turns in a pool of 1,000, which keeps parts of them."""
    turns = [session(n % 3, at=2.0 * n) for n in range(9)]
    without, beside = replay(*turns, disk=None).core.stats(), replay(*turns).core.stats()
    assert without.cached_tokens < 6 * 200
    # In whole blocks of 16, but the last token, from the second time on.
    assert beside.cached_tokens >= 6 * 384
    assert beside.disk_restored >= beside.cached_tokens - without.cached_tokens
    assert beside.disk_written >= 3 * 400


def test_reading_takes_its_time():
    turns = [session(n % 2, at=2.0 * n) for n in range(6)]
    made = replay(*turns, kv_tokens=410, disk=DiskSize(10_000, 4_000))
    # 384 tokens at 4,000 a second, and 16 that are computed.
    assert made.times.first[-1] == pytest.approx(0.096 + 0.026, rel=0.1)


def test_a_disk_that_is_slower_than_computing_is_not_waited_for():
    turns = [session(n % 3, at=2.0 * n) for n in range(9)]
    made = replay(*turns, disk=DiskSize(10_000, 500))
    assert made.core.stats().disk_restored == 0
    assert max(made.times.first) <= 0.42


def test_a_small_disk_keeps_what_it_has_room_for():
    turns = [session(n % 6, at=2.0 * n) for n in range(24)]
    small, large = (replay(*turns, disk=DiskSize(room, 1e5)).core.stats() for room in (800, 9_000))
    assert small.disk_tokens <= 800
    assert 0 <= small.disk_restored < large.disk_restored


def test_many_at_once_in_a_small_pool_come_to_an_end():
    crowd = [session(n % 5, at=0.01 * (n // 4), size=300 + n % 7) for n in range(60)]
    made = replay(*crowd, kv_tokens=700)
    assert made.calls == 60


def lost(made: Replay) -> tuple[bool, bool, bool]:
    """Whether tokens were on disk and computed; evicted before they were written; dropped there."""
    [machine] = made.machines
    assert machine.disk is not None
    losses = machine.disk.losses
    return losses.stored_computed > 0, losses.unwritten > 0, losses.dropped > 0


def test_what_the_disk_could_not_help_is_told_apart():
    turns = [session(n % 3, at=2.0 * n) for n in range(9)]
    assert lost(replay(*turns)) == (False, False, False)
    assert lost(replay(*turns, disk=DiskSize(10_000, 500))) == (True, False, False)
    assert lost(replay(*turns, disk_write_policy="off")) == (False, True, False)
    many = [session(n % 6, at=2.0 * n) for n in range(24)]
    assert lost(replay(*many, disk=DiskSize(800, 1e5))) == (False, False, True)


def test_losses_are_of_tokens_that_could_have_been_found():
    """In blocks of 4: 3 tokens are cached, 4 more are on disk, 4 were there once, and 4 never."""
    losses = DiskLosses(4)
    prompt = np.arange(18, dtype=np.int32)
    first, later = (MissReport(18, cached, MissReason.EVICTED, 3, on_disk=5) for cached in (0, 3))
    losses.asked(prompt, b"", first)
    assert (losses.stored_computed, losses.unwritten, losses.dropped) == (0, 0, 0)
    for name in losses.names(prompt, b"")[:3]:
        losses.wrote(name)
    losses.asked(prompt, b"", later)
    assert (losses.stored_computed, losses.unwritten, losses.dropped) == (5, 4, 4)
    losses.asked(prompt, b"salt", later)
    assert (losses.stored_computed, losses.unwritten, losses.dropped) == (5, 4, 4)
