"""A server with a disk cache says what is there, also after a restart."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from radixlm.assembly import AsyncEngine
from radixlm.core.config import EngineConfig
from tests.server_support import Client, until

BLOCK = 32
PROMPT = " ".join(f"The {number}th sentence says nothing new." for number in range(20))
ON_DISK = 7 * BLOCK  # of 250 tokens


@contextmanager
def served(folder: Path) -> Iterator[Client]:
    config = EngineConfig(
        kv_tokens=2_000,
        disk_cache=str(folder),
        disk_cache_gb=0.1,
        disk_block_tokens=BLOCK,
        disk_write_policy="all",
    )
    engine = AsyncEngine.from_config(config)
    try:
        yield Client(engine)
    finally:
        asyncio.run(engine.close())


def metric(client: Client, name: str) -> int:
    [value] = re.findall(rf"^radixlm:{name}{{.*}} (\S+)$", client.get("/metrics").text, re.M)
    return int(float(value))


def asked(client: Client) -> dict[str, Any]:
    fields = {"cache_report": True, "return_cached_tokens_details": True}
    return client.complete(prompt=PROMPT, max_tokens=1, **fields).json()


def test_what_is_on_disk_is_said_everywhere(tmp_path):
    with served(tmp_path / "cache") as client:
        info = client.get("/model_info").json()
        assert info["disk_cache"] == str(tmp_path / "cache")
        assert info["disk_tokens"] == metric(client, "max_total_num_disk_tokens")
        assert asked(client)["cache_report"]["cached_tokens"] == {"device": 0, "disk": 0}
        assert until(lambda: metric(client, "num_disk_tokens") >= ON_DISK)
        written = metric(client, "num_disk_tokens")
        assert metric(client, "backuped_tokens_total") == written
        assert written < metric(client, "max_total_num_disk_tokens")
        told = client.get("/cache/tree").json()
        assert sum(node["on_disk"] for node in told["nodes"]) == told["totals"]["disk"] == written
        assert {node["state"] for node in told["nodes"]} == {"cached"}
    with served(tmp_path / "cache") as client:
        assert until(lambda: metric(client, "num_disk_tokens") >= written)
        told = client.get("/cache/tree").json()
        assert {node["state"] for node in told["nodes"] if node["tokens"]} == {"disk"}
        [report] = client.post("/cache/explain", prompt=PROMPT).json()["reports"]
        assert report["on_disk"]["tokens"] == report["evicted_tokens"] == written
        assert (
            f"had been, though never in this pool; of these {written} are on disk" in report["text"]
        )
        answer = asked(client)
        places = answer["cache_report"]["cached_tokens"]
        cached = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
        assert places["device"] + places["disk"] == cached
        details = {"device": places["device"], "host": 0, "storage": places["disk"]}
        assert answer["sglext"]["cached_tokens_details"] == details
        assert metric(client, "disk_cached_tokens_total") == places["disk"]
        assert metric(client, "prefetched_tokens_total") >= places["disk"]
