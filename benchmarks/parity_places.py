"""The same greedy tokens of models with windows or states, wherever these are stored."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from benchmarks.parity_settings import BLOCK, COPIES_TAKE, compared, settled
from radixlm import Engine, Namespace, SamplingParams
from radixlm.core.errors import ConfigError
from radixlm.engine.engine_stats import EngineStats
from radixlm.testing.hybrids import HYBRIDS
from radixlm.testing.reference import Greedy

FAMILIES = ("gemma3_text", "gpt_oss", "cohere2", *HYBRIDS)
_PLACES = {"none": (), "host memory": ("host",), "disk": ("disk",), "both": ("host", "disk")}
_NOTHING = "–"
# A pool that holds all, and one that holds few prompts.
_LARGE = {"kv_tokens": 6_000, "swa_full_tokens_ratio": 0.5}
_SMALL = {"kv_tokens": 320, "swa_full_tokens_ratio": 0.5, "max_running_requests": 2}
_FLAGS = {"dtype": "float32", "max_pinned_tokens": 0, "chunked_prefill_size": 32}


@dataclass(frozen=True)
class _Model:
    folder: Path
    prompts: list[list[int]]
    expected: Greedy

    def asked(self, engine: Engine, salt: str = "") -> int:
        """How many answers to all prompts are right."""
        steps = len(self.expected.tokens[0])
        params = SamplingParams(max_tokens=steps, temperature=0, ignore_eos=True)
        outputs = engine.generate(self.prompts, params, namespace=Namespace(cache_salt=salt))
        equal, ties, _ = compared(outputs, self.expected)
        return equal + ties

    def row(self, place: tuple[str, ...], ranks: int, disk: Path) -> dict[str, object]:
        """cold, warm: of a pool that holds all. restored: of one that holds few, what another
        engine left on disk and what was evicted, until every place was read. killed: the same, when
        that engine was killed while it wrote.
        """
        flags: dict[str, Any] = _FLAGS | {"tp_size": ranks}
        if place:
            flags["disk_block_tokens"] = BLOCK
        if "host" in place:
            flags["host_kv_tokens"] = 20_000
        on_disk: list[dict[str, Any]] = [{}, {}]
        if "disk" in place:
            on_disk = [{"disk_cache": str(disk / name), "disk_cache_gb": 0.1} for name in "ab"]
        writes = {"disk_write_policy": "all"} if "disk" in place else {}
        row: dict[str, object] = dict.fromkeys(("cold", "warm", "restored", "killed"), _NOTHING)
        row |= {"slots": _NOTHING, "held at rest": _NOTHING}
        try:
            engine = Engine(str(self.folder), **flags, **_LARGE, **on_disk[0], **writes)
        except ConfigError:  # ranks have no places
            return row | {"cold": "refused"}
        n = len(self.prompts)
        with engine:
            row["cold"] = f"{self.asked(engine)} of {n}"
            row["warm"] = f"{self.asked(engine)} of {n}"
            row["slots"] = engine.stats().swa_capacity + engine.stats().mamba_capacity
            row["held at rest"] = _held(engine)
        if place:
            row["restored"] = self._restored(place, flags | on_disk[0])
        if writes:
            _written_and_killed(self, flags | _LARGE | on_disk[1] | writes)
            row["killed"] = self._restored(place, flags | on_disk[1])
        return row

    def _restored(self, place: tuple[str, ...], flags: dict[str, Any]) -> str:
        if "disk" in place:
            flags = flags | {"disk_write_policy": "off"}
        with Engine(str(self.folder), **flags, **_SMALL) as engine:
            if "disk" in place:
                settled(lambda: engine.stats().disk_tokens)
            rounds, right = 0, 0
            while rounds < 2 or (rounds < 20 and not _read(engine, place)):
                right, rounds = right + self.asked(engine), rounds + 1
                time.sleep(rounds / 10)  # after a shortage nothing is copied for a second
            assert not _held(engine)
            assert _read(engine, place)
        return f"{right} of {rounds * len(self.prompts)}"


def _read(engine: Engine, place: tuple[str, ...]) -> bool:
    """Whether tokens were read from every place."""
    stats = engine.stats()
    return all({"host": stats.host_restored, "disk": stats.disk_restored}[each] for each in place)


def _held(engine: Engine) -> int:
    """Slots of windows or states that are held when nothing is copied any more; the others are all
    there.
    """
    end = time.monotonic() + COPIES_TAKE
    while (held := _taken(stats := engine.stats())) and time.monotonic() < end:
        time.sleep(0.01)
    there = stats.swa_free + stats.swa_evictable + stats.mamba_free + stats.mamba_evictable
    assert held + there == stats.swa_capacity + stats.mamba_capacity
    assert stats.leaks == 0
    return held


def _taken(stats: EngineStats) -> int:
    return stats.swa_private + stats.swa_locked + stats.mamba_private + stats.mamba_locked


def _writes(model: _Model, flags: dict[str, Any], begun: Connection) -> None:
    with Engine(str(model.folder), **flags) as engine:
        model.asked(engine)
        settled(lambda: engine.stats().disk_tokens)
        begun.send("written")
        for number in count():  # something new is written all the time
            model.asked(engine, salt=str(number))


def _written_and_killed(model: _Model, flags: dict[str, Any]) -> None:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    writer = context.Process(target=_writes, args=(model, flags, theirs))
    writer.start()
    ours.recv()
    writer.kill()
    writer.join()


def rows(
    folder: Path, scratch: Path, prompts: list[list[int]], expected: Greedy
) -> Iterator[dict[str, object]]:
    """A row for each number of ranks and place."""
    model = _Model(folder, prompts, expected)
    for ranks in (1, 2):
        for name, place in _PLACES.items():
            disk = scratch / f"{folder.name}-{ranks}-{name}"
            first: dict[str, object] = {"model": folder.name, "place": name, "ranks": ranks}
            yield first | model.row(place, ranks, disk)
