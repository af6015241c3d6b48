"""Models in which some layers see a window: the same answers, and as much that is found again, with
host memory and a disk as without; layers with a window keep their own, smaller memory.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from radixlm import Engine, SamplingParams
from radixlm.core.request import RequestOutput
from radixlm.testing.reference import make_checkpoint
from tests.server_support import until, wait_for_copies

BLOCK = 8
LONG = [2 + number * 7 % 60 for number in range(90)]
PROMPTS = [LONG, [*LONG[:45], *range(2, 40)], [7, 8, 9], [*LONG, 5, 6, 7]]
FOUND_WARM = [89, 82, 2, 92]
# Three times as many tokens as the pool has.
FILLERS = [[first, *reversed(LONG)] for first in (0, 1, 3, 62, 63)]
PARAMS = SamplingParams(max_tokens=10, temperature=0, ignore_eos=True)
FLAGS: dict[str, Any] = {
    "dtype": "float32",
    "kv_tokens": 1_000,
    "max_pinned_tokens": 0,
    "chunked_prefill_size": 32,
    "swa_full_tokens_ratio": 0.15,
}
OTHERS = ("gpt_oss", "cohere2", "llama4_text", "gemma4_text")
families = pytest.mark.parametrize(
    "family", ["gemma3_text", *(pytest.param(name, marks=pytest.mark.slow) for name in OTHERS)]
)


@pytest.fixture(autouse=True)
def reading_pays(always_read: None) -> None:
    """In all of them."""


def on_disk(folder: Path, policy: str = "all") -> dict[str, Any]:
    sizes = {"disk_block_tokens": BLOCK, "disk_cache_gb": 0.1}
    return {"disk_cache": str(folder), "disk_write_policy": policy, **sizes}


@contextmanager
def opened(model: Path, **flags: Any) -> Iterator[Engine]:
    """At the end no window slot is held for anything."""
    with Engine(str(model), **{**FLAGS, **flags}) as engine:
        yield engine

        def held() -> int:
            stats = engine.stats()
            return stats.swa_private + stats.swa_locked

        assert until(lambda: not held())
        stats = engine.stats()
        free = stats.swa_free + stats.swa_evictable
        assert (free, stats.leaks) == (stats.swa_capacity, 0)


def answers(engine: Engine) -> list[RequestOutput]:
    return [engine.generate(prompt, PARAMS)[0] for prompt in PROMPTS]


def tokens(outputs: list[RequestOutput]) -> list[object]:
    return [output.token_ids for output in outputs]


def cached(outputs: list[RequestOutput]) -> list[int]:
    return [output.cached_tokens for output in outputs]


def restored(model: Path, folder: Path, stored: int, **flags: Any) -> list[RequestOutput]:
    """The answers of a new engine that has found so many tokens on disk at least."""
    with opened(model, **on_disk(folder, "off"), **flags) as engine:
        assert until(lambda: engine.stats().disk_tokens >= stored), engine.stats().disk_tokens
        return answers(engine)


@families
@pytest.mark.parametrize("kept", ["auto", "int8"])
def test_the_same_answers_from_disk(tmp_path: Path, family: str, kept: str) -> None:
    model, folder = make_checkpoint(tmp_path / "model", family), tmp_path / "disk"
    flags = {"kv_cache_dtype": kept}
    with opened(model, **flags) as engine:
        cold, memory = answers(engine), engine.info.kv_bytes
        assert cached(answers(engine)) == FOUND_WARM
    with opened(model, **on_disk(folder), **flags) as engine:
        assert engine.info.kv_bytes == memory
        first = answers(engine)
        assert (tokens(first), cached(first)) == (tokens(cold), cached(cold))
        warm = answers(engine)
        assert (tokens(warm), cached(warm)) == (tokens(cold), FOUND_WARM)
    read = restored(model, folder, 160, **flags)
    assert (tokens(read), cached(read)) == (tokens(cold), [88, 80, 0, 90])


@families
def test_the_same_answers_from_host_memory_and_a_small_pool(tmp_path: Path, family: str) -> None:
    model = make_checkpoint(tmp_path / "model", family)
    small = {"kv_tokens": 180, "swa_full_tokens_ratio": 0.6}
    with opened(model, **small) as engine:
        cold, capacity = answers(engine), engine.stats().swa_capacity
    host = {"host_kv_tokens": 1_600, "disk_block_tokens": BLOCK}
    with opened(model, **small, **host) as engine:
        assert engine.stats().swa_capacity == capacity
        assert tokens(answers(engine)) == tokens(cold)
        for prompt in ([*LONG, *range(2, 48)], *FILLERS):
            engine.generate(prompt, PARAMS)
            wait_for_copies(engine)
        again = answers(engine)
        assert tokens(again) == tokens(cold)
        assert again[0].miss is not None
        assert (again[0].cached_tokens, again[0].miss.from_host) == (88, 88)


WRITER = """
import sys
from pathlib import Path
from tests.tensor.test_window_places import answers, on_disk, opened
from tests.server_support import until, wait_for_copies
model, folder = map(Path, sys.argv[1:])
with opened(model, **on_disk(folder)) as engine:
    answers(engine)
    assert until(lambda: engine.stats().disk_tokens >= 96)
    print("written", flush=True)
    while True:
        answers(engine)
"""


@families
def test_the_same_answers_after_a_kill(tmp_path: Path, family: str) -> None:
    model, folder = make_checkpoint(tmp_path / "model", family), tmp_path / "disk"
    with opened(model) as engine:
        cold = answers(engine)
    command = [sys.executable, "-c", WRITER, str(model), str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as writer:  # noqa: S603
        assert writer.stdout is not None
        assert writer.stdout.readline() == "written\n"
        os.kill(writer.pid, signal.SIGKILL)
    read = restored(model, folder, 96)
    assert (tokens(read), read[0].cached_tokens) == (tokens(cold), 88)
