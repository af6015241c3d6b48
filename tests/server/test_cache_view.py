"""GET /cache/...: the tree as it is served, whatever is in it and whoever asks."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from tests.server_support import Client, fake_engine, refused

LONG = 60.0
KEYS = ("sk-first", "sk-second")
NASTY = '<script>alert(1)</script>\u202e\u200f\x00\x1b[31m"\n'


@pytest.fixture(scope="module")
def engine():
    engine, _ = fake_engine()
    yield engine
    asyncio.run(engine.close())


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


@pytest.mark.parametrize("q", ["%ED%A0%80", "%FF", "a%ED%BF%BF", "\\ud800", "%5Cud800"])
def test_a_search_for_what_is_no_text_finds_nothing(fake, q):
    answer = fake.get(f"/cache/search?q={q}")
    assert answer.status_code == 200, answer.text
    assert answer.json()["matches"] == []


def test_markup_and_marks_are_plain_json(fake):
    fake.complete(NASTY + "and more", max_tokens=1)
    answer = fake.get("/cache/tree")
    assert answer.headers["content-type"] == "application/json"
    shown = [node for node in answer.json()["nodes"] if node["text"].startswith(NASTY)]
    assert len(shown) == 1
    node = fake.get(f"/cache/node/{shown[0]['id']}").json()
    assert node["text"].startswith(NASTY + "and more")
    found = fake.request("GET", "/cache/search", params={"q": NASTY}).json()["matches"]
    assert [match["node_id"] for match in found] == [shown[0]["id"]]
    assert found[0]["match"] == NASTY


@pytest.mark.parametrize("path", ["tree", "search?q=more", "node/{node}"])
def test_pages_are_not_written_where_prompts_are_read(fake, path):
    """In asyncio's own pool, which is full here: so no page takes a thread of it."""
    fake.complete("some text and more", max_tokens=1)
    node = fake.get("/cache/tree").json()["nodes"][-1]["id"]

    async def main() -> httpx.Response:
        taken = threading.Event()
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
        hanging = asyncio.create_task(asyncio.to_thread(taken.wait))
        await asyncio.sleep(0)
        transport = httpx.ASGITransport(fake.app)
        try:
            async with httpx.AsyncClient(transport=transport, base_url="http://test") as http:
                async with asyncio.timeout(LONG):
                    return await http.get(f"/cache/{path.format(node=node)}")
        finally:
            taken.set()
            await hanging

    assert asyncio.run(main()).status_code == 200


@pytest.mark.parametrize("name", ["999999999", "0", "x", "-1", "1" * 40])
def test_a_node_that_is_not_there_is_404(fake, name):
    refused(fake.get(f"/cache/node/{name}"), 404)


def test_a_key_sees_its_own_texts_only(engine):
    client = Client(engine, api_key=KEYS, isolate_by_key=True)
    for key, text in zip(KEYS, ("the first's secret", "the second's secret"), strict=True):
        body = {"prompt": text, "max_tokens": 1}
        client.request("POST", "/v1/completions", json=body, headers=bearer(key))

    def get(path: str, key: str):
        return client.request("GET", path, headers=bearer(key))

    own = get("/cache/tree", KEYS[0])
    assert "first's secret" in own.text
    assert "second's" not in own.text
    [theirs] = [n for n in get("/cache/tree", KEYS[1]).json()["nodes"] if "second's" in n["text"]]
    refused(get(f"/cache/node/{theirs['id']}", KEYS[0]), 404)
    refused(get(f"/cache/tree?node={theirs['id']}", KEYS[0]), 404)
    refused(get(f"/cache/events?node={theirs['id']}", KEYS[0]), 404)
    assert get("/cache/search?q=secret", KEYS[0]).json()["matches"][0]["before"] == "the first's "
    assert len(get("/cache/search?q=secret", KEYS[0]).json()["matches"]) == 1
    for path in (
        "/cache/tree",
        "/cache/events",
        f"/cache/node/{theirs['id']}",
        "/cache/search?q=a",
    ):
        refused(client.get(path), 401)


def test_keys_that_share_a_cache_are_told_nothing_unless_an_admin_s(engine):
    client = Client(engine, api_key=KEYS, admin_api_key=("sk-admin",))
    assert client.request("GET", "/cache/tree", headers=bearer(KEYS[0])).status_code == 403
    assert client.request("GET", "/cache/tree", headers=bearer("sk-admin")).status_code == 200


def test_a_salt_is_a_secret_among_those_who_share_a_key(engine):
    """Where nobody is an admin, nobody is shown it, nor what was sent under it."""

    def shown(key: str, **flags: Any) -> str:
        client = Client(engine, **flags)
        body = {"prompt": "behind a salt", "max_tokens": 1, "cache_salt": "nobody knows"}
        client.request("POST", "/v1/completions", json=body, headers=bearer(key))
        body = {"prompt": "in front of all", "max_tokens": 1}
        client.request("POST", "/v1/completions", json=body, headers=bearer(key))
        paths = ("/cache/tree", "/cache/search?q=a")
        return "".join(client.request("GET", path, headers=bearer(key)).text for path in paths)

    for keys, isolated in ((KEYS, False), (KEYS[:1], False), (KEYS, True)):
        told = shown(KEYS[0], api_key=keys, isolate_by_key=isolated)
        assert "in front of all" in told
        assert "nobody knows" not in told
        assert "behind a" not in told
    for key, flags in (("sk-admin", {"api_key": KEYS, "admin_api_key": ("sk-admin",)}), ("", {})):
        told = shown(key, **flags)
        assert "nobody knows" in told
        assert "behind a salt" in told


@pytest.mark.parametrize(
    "path", ["/cache/tree?", "/cache/events?", "/cache/node/1?", "/cache/search?q=a&"]
)
def test_one_engine_has_no_replicas(fake, path):
    answer = fake.request("GET", f"{path}replica=x")
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "replica"
