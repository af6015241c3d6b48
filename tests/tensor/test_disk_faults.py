"""A disk that fails while an engine uses it: the right tokens, an end, and no slot lost.

Kills and whole servers: `fuzz.disk_kills`, `fuzz.disk_faults`.
"""

from __future__ import annotations

import errno
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from radixlm import Engine, SamplingParams
from radixlm.engine import tiering
from radixlm.engine.engine_stats import EngineStats
from radixlm.testing.reference import make_checkpoint

BLOCK = 8
SHARED = [2 + number * 7 % 60 for number in range(120)]
PARAMS = SamplingParams(max_tokens=6, temperature=0, ignore_eos=True, logprobs=2)
PATIENCE = 60.0


class Files:
    """What the system says about blocks in files, as a test wants it. A slow disk holds nothing in
    memory. may: what hangs goes on.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.read_seconds = self.write_seconds = 0.0
        self.full = self.hangs = False
        self.may = threading.Event()
        self._read, self._write = os.preadv, os.pwritev
        monkeypatch.setattr(os, "preadv", self.preadv)
        monkeypatch.setattr(os, "pwritev", self.pwritev)

    def preadv(self, file: int, parts: Sequence[memoryview], at: int, flags: int = 0) -> int:
        if (self.read_seconds or self.hangs) and flags & os.RWF_NOWAIT:
            raise BlockingIOError(errno.EAGAIN, "not in memory")
        self._wait(self.read_seconds)
        return self._read(file, parts, at, flags)

    def pwritev(self, file: int, parts: Sequence[memoryview], at: int) -> int:
        if self.full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self._wait(self.write_seconds)
        return self._write(file, parts, at)

    def _wait(self, seconds: float) -> None:
        time.sleep(seconds)
        if self.hangs:
            assert self.may.wait(PATIENCE)


@pytest.fixture
def files(monkeypatch: pytest.MonkeyPatch) -> Iterator[Files]:
    files = Files(monkeypatch)
    yield files
    files.may.set()


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return make_checkpoint(tmp_path / "model", "llama")


def opened(model: Path, disk: Path, policy: str = "all") -> Engine:
    return Engine(
        str(model),
        dtype="bfloat16",
        deterministic=True,
        kv_tokens=1_000,
        disk_cache=str(disk),
        disk_cache_gb=0.1,
        disk_block_tokens=BLOCK,
        disk_write_policy=policy,
    )


def asked(engine: Engine, *, first: int = 0) -> list[object]:
    """Tokens and log-probabilities of three prompts that share a beginning."""
    prompts = [[*SHARED, 3 + first + number] for number in range(3)]
    outputs = [engine.generate(prompt, PARAMS)[0] for prompt in prompts]
    return [(output.token_ids, output.logprobs) for output in outputs]


def until(engine: Engine, holds: Callable[[EngineStats], bool]) -> EngineStats:
    """What an engine says of itself once that holds."""
    end = time.monotonic() + PATIENCE
    while not holds(stats := engine.stats()):
        assert time.monotonic() < end, stats
        time.sleep(0.01)
    return stats


def all_free(stats: EngineStats) -> bool:
    used = stats.kv_private + stats.kv_locked
    return used == 0 and stats.kv_free + stats.kv_evictable == stats.kv_capacity


def filled(model: Path, disk: Path) -> list[object]:
    """A folder that has the shared beginning; the right answers."""
    with opened(model, disk) as engine:
        return asked(engine)


def test_a_slow_disk_is_not_waited_for(model: Path, tmp_path: Path, files: Files) -> None:
    right = filled(model, tmp_path / "disk")
    files.read_seconds = 1.0
    with opened(model, tmp_path / "disk", "off") as engine:
        until(engine, lambda stats: stats.disk_tokens >= len(SHARED))
        assert asked(engine) == right
        stats = engine.stats()
        assert stats.disk_read < len(SHARED), "it would have taken 15 s"
        assert stats.disk_slow_reads + stats.disk_failed_reads >= 1
        files.read_seconds = 0.0
        assert until(engine, all_free).leaks == 0


def test_a_slow_disk_is_written_to_all_the_same(model: Path, tmp_path: Path, files: Files) -> None:
    files.write_seconds = 0.02
    right = filled(model, tmp_path / "disk")
    files.write_seconds = 0.0
    with opened(model, tmp_path / "disk", "off") as engine:
        assert until(engine, lambda stats: stats.disk_tokens > 0).disk_failed_writes == 0
        assert asked(engine) == right


def test_a_full_disk_ends_only_the_writing(
    model: Path, tmp_path: Path, files: Files, caplog: pytest.LogCaptureFixture
) -> None:
    right = filled(model, tmp_path / "disk")
    files.full = True
    with opened(model, tmp_path / "disk") as engine:
        more = asked(engine, first=20)
        engine.generate(range(2, 60), PARAMS)
        until(engine, lambda stats: stats.disk_writing_off == 1)
        engine.flush_cache()
        assert asked(engine) == right
        assert asked(engine, first=20) == more
        assert until(engine, all_free).disk_failed_writes == 1
    warned = [each.getMessage() for each in caplog.records if "written" in each.getMessage()]
    assert len(warned) == 1
    assert "No space left on device" in warned[0]


@pytest.mark.parametrize("what", ["read", "write"])
def test_a_disk_that_hangs_lets_go(
    what: str,
    model: Path,
    tmp_path: Path,
    files: Files,
    monkeypatch: pytest.MonkeyPatch,
    always_read: None,
) -> None:
    right = filled(model, tmp_path / "disk")
    monkeypatch.setattr(tiering, "SECONDS_TO_ANSWER", 0.3)
    monkeypatch.setattr(tiering, "SECONDS_OF_GRACE", 0.1)
    with opened(model, tmp_path / "disk", "all" if what == "write" else "off") as engine:
        until(engine, lambda stats: stats.disk_tokens >= len(SHARED))
        files.hangs = True
        if what == "write":
            engine.generate(range(2, 60), PARAMS)
        assert asked(engine) == right
        stats = until(engine, lambda stats: stats.disk_hung > 0 and all_free(stats))
        assert stats.disk_writing_off == 1
        files.may.set()
        files.hangs = False
        assert asked(engine) == right


def test_a_clock_that_jumps_changes_nothing(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, always_read: None
) -> None:
    """The time of day; what is measured is measured by a clock that does not go back."""
    right = filled(model, tmp_path / "disk")
    now, days = time.time, iter([3, -400, 30_000, 0, -1, 2] * 10_000)
    monkeypatch.setattr(time, "time", lambda: now() + 86_400 * next(days))
    with opened(model, tmp_path / "disk") as engine:
        until(engine, lambda stats: stats.disk_tokens >= len(SHARED))
        assert asked(engine) == right
        more = asked(engine, first=20)
        stats = until(engine, all_free)
        assert (stats.disk_hung, stats.disk_slow_reads, stats.disk_writing_off) == (0, 0, 0)
    with opened(model, tmp_path / "disk", "off") as engine:
        assert asked(engine, first=20) == more
