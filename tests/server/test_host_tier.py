"""A server with host memory beside its pool says what is there, and answers from it."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from radixlm.assembly import AsyncEngine
from radixlm.core.config import EngineConfig
from tests.server_support import Client, until

BLOCK = 32
PROMPTS = [
    " ".join(f"The {number}th sentence says {word}." for number in range(20))
    for word in ("nothing new", "no word more", "what was said")
]
STORED = 6 * BLOCK  # at least, of each


@contextmanager
def served() -> Iterator[Client]:
    """Its pool has room for one of the prompts."""
    config = EngineConfig(
        kv_tokens=320, max_pinned_tokens=0, host_kv_tokens=2_000, disk_block_tokens=BLOCK
    )
    engine = AsyncEngine.from_config(config)
    try:
        yield Client(engine)
    finally:
        asyncio.run(engine.close())


def metric(client: Client, name: str) -> int:
    [value] = re.findall(rf"^radixlm:{name}{{.*}} (\S+)$", client.get("/metrics").text, re.M)
    return int(float(value))


def tree_at_rest(client: Client) -> dict[str, Any]:
    """The tree, of a moment in which nothing was being copied: the metric said the same before and
    after.
    """
    told: dict[str, Any] = {}

    def at_rest() -> bool:
        before = metric(client, "hicache_host_used_tokens")
        told.update(client.get("/cache/tree").json())
        after = metric(client, "hicache_host_used_tokens")
        return before == told["totals"]["host"] == after

    assert until(at_rest), told["totals"]
    return told


def asked(client: Client, prompt: str) -> dict[str, Any]:
    fields = {"cache_report": True, "return_cached_tokens_details": True}
    return client.complete(prompt=prompt, max_tokens=1, temperature=0, **fields).json()


def test_what_is_in_host_memory_is_said_everywhere():
    with served() as client:
        room = 2_000 - 2_000 % BLOCK
        assert client.get("/model_info").json()["host_tokens"] == room
        assert metric(client, "hicache_host_total_tokens") == room
        answers = {}
        for number, prompt in enumerate(PROMPTS):
            answers[prompt] = asked(client, prompt)
            places = answers[prompt]["cache_report"]["cached_tokens"]
            assert set(places) == {"device", "host"}
            there = (number + 1) * STORED
            assert until(
                lambda there=there: metric(client, "hicache_host_used_tokens") >= there, 30
            )
        told = tree_at_rest(client)
        held = sum(node["on_host"] for node in told["nodes"])
        assert 3 * STORED <= held <= told["totals"]["host"]  # a block that parts counts twice
        assert "host" in {node["state"] for node in told["nodes"]}
        [report] = client.post("/cache/explain", prompt=PROMPTS[0]).json()["reports"]
        assert report["on_host"]["tokens"] > 0
        assert f"{report['on_host']['tokens']} are in host memory" in report["text"]
        answer = asked(client, PROMPTS[0])
        places = answer["cache_report"]["cached_tokens"]
        assert places["host"] > 0
        assert answer["sglext"]["cached_tokens_details"] == places
        assert answer["choices"] == answers[PROMPTS[0]]["choices"]
        assert metric(client, "host_cached_tokens_total") >= places["host"]
        assert metric(client, "load_back_tokens_total") >= places["host"]
        client.post("/flush_cache")
        assert until(lambda: metric(client, "hicache_host_used_tokens") == 0)
