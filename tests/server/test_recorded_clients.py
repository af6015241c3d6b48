"""What clients that nobody here wrote have sent, sent again, so that none of them is needed.

`make clients ARGS='--record'` writes the recordings; long texts in them are cut short.
"""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from radixlm.assembly import DEMO_MODEL, AsyncEngine
from radixlm.core.config import EngineConfig
from scripts.try_clients.recordings import FOLDER, Exchange, events_of, ids_in, load
from scripts.try_clients.sections import SECTIONS
from tests.server_support import idle_and_whole, live, until

NAME = "demo"
ANSWER = 6
CONTEXT = 32_768
# What bounds an answer, by the end of the route's path; the first is what is given where none is.
BOUNDS = {
    "/chat/completions": ("max_tokens", "max_completion_tokens"),
    "/completions": ("max_tokens",),
    "/responses": ("max_output_tokens",),
    "/messages": ("max_tokens",),
    "/generate": ("max_new_tokens",),
}


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[AsyncEngine, str]]:
    """The demo model with room for what agents send, and the address that it is served at."""
    folder = tmp_path_factory.mktemp("model") / "roomy"
    shutil.copytree(DEMO_MODEL, folder)
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    config["max_position_embeddings"] = CONTEXT
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    engine = AsyncEngine.from_config(
        EngineConfig(model=str(folder), dtype="float32", kv_tokens=2 * CONTEXT)
    )
    with live(engine, NAME) as url:
        yield engine, url
    assert until(lambda: idle_and_whole(engine)), engine.stats()
    asyncio.run(engine.close())


def shortened(exchange: Exchange) -> Any:
    """The body with a short answer asked for."""
    body = exchange.body
    route = next((end for end in BOUNDS if exchange.path.partition("?")[0].endswith(end)), None)
    if route is None:
        return body
    first, *others = BOUNDS[route]
    if route == "/generate":
        return {**body, "sampling_params": {**(body.get("sampling_params") or {}), first: ANSWER}}
    asked = next((name for name in (first, *others) if body.get(name) is not None), first)
    return {**body, asked: min(body.get(asked) or ANSWER, ANSWER)}


def replayed(client: httpx.Client, exchange: Exchange, names: dict[str, str]) -> httpx.Response:
    """Send it with the ids that our own answers have; learns those of its answer."""
    text = json.dumps(shortened(exchange)) if exchange.body is not None else ""
    path = exchange.path
    for old, new in names.items():
        text, path = text.replace(old, new), path.replace(old, new)
    answer = client.request(exchange.method, path, headers=exchange.headers, content=text)
    assert answer.status_code == exchange.status, f"{path}: {answer.text[:500]}"
    if answer.status_code == 200 and exchange.asks:
        told = list(events_of(answer.text))
        assert told, path
        names |= dict(zip(exchange.ids, ids_in(told), strict=False))
    return answer


@pytest.mark.slow
@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.jsonl")), ids=lambda path: path.stem)
def test_what_a_client_sent_is_taken_and_its_turns_are_cached(demo, path: Path):
    engine, url = demo
    exchanges = load(path)
    asyncio.run(engine.flush_cache())
    names: dict[str, str] = {}
    found = 0
    with httpx.Client(base_url=url, timeout=60) as client:
        for exchange in exchanges:
            before = engine.stats().cached_tokens
            replayed(client, exchange, names)
            assert until(lambda: idle_and_whole(engine)), engine.stats()
            cached = engine.stats().cached_tokens - before
            # The beginning of any chat may be cached: a few tokens are no turn.
            if exchange.cached and exchange.prompt and exchange.cached > exchange.prompt / 2:
                assert cached > exchange.prompt / 100, f"{exchange.path}: {cached} tokens cached"
                found += 1
    assert found > 0, "no turn of it was cached"


def test_each_client_that_is_recorded_has_a_recording():
    assert sorted(path.stem for path in FOLDER.glob("*.jsonl")) == sorted(SECTIONS)


def test_recordings_are_small_and_name_no_machine():
    for path in FOLDER.glob("*.jsonl"):
        text = path.read_text(encoding="utf-8")
        assert len(text) < 200_000, path
        for word in ("/root/", "-tmp-", "/Users/", "registry", "open-sesame", "Bearer "):
            assert word not in text, (path, word)
