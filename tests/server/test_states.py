"""A hybrid model over HTTP: a miss for want of a state, the advice, and the tree's checkpoints."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from radixlm.assembly import AsyncEngine
from radixlm.core.config import EngineConfig
from radixlm.testing.reference import make_checkpoint
from tests.server_support import Client, idle_and_whole, until

PROMPT = [2 + number * 7 % 300 for number in range(60)]
SHORTER = [*PROMPT[:40], *range(5, 15)]
# Of a prompt and what runs: no place in front of the prompt's end is kept.
FEW = {"max_mamba_cache_size": 2, "max_running_requests": 1, "kv_tokens": 1_000}


@pytest.fixture(scope="module")
def hybrid(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    folder: Path = make_checkpoint(tmp_path_factory.mktemp("model") / "hybrid", "qwen3_5_text")
    engine = AsyncEngine.from_config(EngineConfig(model=str(folder), dtype="float32", **FEW))
    yield Client(engine, "hybrid")
    assert until(lambda: idle_and_whole(engine)), engine.stats()
    asyncio.run(engine.close())


def got(client: Client, path: str, **options: Any) -> dict[str, Any]:
    answer = client.request("GET", path, **options)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def test_a_miss_for_want_of_a_state_and_what_follows(hybrid: Client) -> None:
    def posted(path: str, prompt: list[int], **more: Any) -> dict[str, Any]:
        answer = hybrid.post(path, prompt=prompt, max_tokens=2, **more)
        assert answer.status_code == 200, answer.text
        found: dict[str, Any] = answer.json()
        return found

    posted("/v1/completions", PROMPT)
    (told,) = posted("/cache/explain", SHORTER)["reports"]
    report = posted("/v1/completions", SHORTER, cache_report=True)["cache_report"]
    assert told == report
    assert (report["reason"], report["computed_tokens"]) == ("no_state", 50)
    assert (report["cached_tokens"], report["evicted_tokens"]) == ({"device": 0}, 40)
    assert "--max-mamba-cache-size" in report["advice"]

    first, *_ = got(hybrid, "/cache/advice")["advice"]
    assert (first["cause"], first["requests"], first["tokens"]) == ("no_state", 1, 40)
    assert "40 tokens computed again" in first["text"]
    assert "--max-mamba-cache-size" in first["text"]

    # Where the prompts part, for the next one, and where the last one ends.
    nodes = got(hybrid, "/cache/tree")["nodes"]
    ends = {
        each["start"] + each["tokens"]: each["checkpoint_bytes"]
        for each in nodes
        if "checkpoint_bytes" in each
    }
    info = hybrid.engine.info
    assert ends == dict.fromkeys((40, 51), info.mamba_bytes // info.mamba_slots)
    again = posted("/v1/completions", [*PROMPT[:40], 9, 9], cache_report=True)["cache_report"]
    assert again["cached_tokens"] == {"device": 40}
