"""/abort_request where keys share nothing: nobody ends, or learns of, another key's requests."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest

from tests.server_support import Client, fake_engine, idle_and_whole, until

STEP = 0.01
KEYS = ("sk-first", "sk-second")
NATIVE = {"text": "a", "sampling_params": {"max_new_tokens": 30}, "rid": "mine"}
CHAT = {"messages": [{"role": "user", "content": "a"}], "max_tokens": 30}


@pytest.fixture(scope="module")
def slow():
    engine, _ = fake_engine(seconds=STEP)
    yield engine
    assert until(lambda: idle_and_whole(engine))
    asyncio.run(engine.close())


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


def run(
    client: Client, bodies: list[tuple[str, str, dict[str, Any]]], key: str, **abort: Any
) -> tuple[list[Any], Any]:
    """Send each body to its path with its key, then an abort with `key`; all the answers."""

    async def go() -> tuple[list[Any], Any]:
        transport = httpx.ASGITransport(client.app, raise_app_exceptions=False)
        async with (
            httpx.AsyncClient(transport=transport, base_url="http://test") as http,
            asyncio.timeout(120),
        ):
            sent = [
                asyncio.create_task(http.post(path, json=body, headers=bearer(own)))
                for own, path, body in bodies
            ]
            while client.engine.stats().running < len(bodies):
                await asyncio.sleep(STEP)
            said = await http.post("/abort_request", json=abort, headers=bearer(key))
            return [one.json() for one in await asyncio.gather(*sent)], said.json()

    return asyncio.run(go())


def reason(answer: dict[str, Any]) -> str:
    if "meta_info" in answer:
        return answer["meta_info"]["finish_reason"]["type"]
    return answer["choices"][0]["finish_reason"]


def test_another_key_s_name_is_not_there(slow):
    client = Client(slow, api_key=KEYS, isolate_by_key=True)
    [answer], said = run(client, [(KEYS[0], "/generate", NATIVE)], KEYS[1], rid="mine")
    assert said == {"aborted": 0}
    assert reason(answer) == "length"


def test_two_keys_may_use_one_name(slow):
    client = Client(slow, api_key=KEYS, isolate_by_key=True)
    bodies = [(key, "/generate", NATIVE) for key in KEYS]
    answers, said = run(client, bodies, KEYS[1], rid="mine")
    assert said == {"aborted": 1}
    assert [reason(answer) for answer in answers] == ["length", "abort"]


@pytest.mark.slow
def test_all_are_those_of_the_key_whatever_they_came_as(slow):
    client = Client(slow, api_key=KEYS, isolate_by_key=True)
    bodies = [
        (key, path, body)
        for key in KEYS
        for path, body in (
            ("/generate", NATIVE),
            ("/v1/chat/completions", CHAT),
            ("/v1/completions", {"prompt": "a", "max_tokens": 30, "n": 1}),
        )
    ]
    answers, said = run(client, bodies, KEYS[0], abort_all=True)
    assert said == {"aborted": 3}
    assert [reason(answer) for answer in answers] == ["abort"] * 3 + ["length"] * 3
    assert until(lambda: idle_and_whole(slow))
    [answer], said = run(client, [(KEYS[1], "/generate", NATIVE)], KEYS[0], abort_all=True)
    assert said == {"aborted": 0}
    assert reason(answer) == "length"


def test_keys_that_share_may_abort_each_other_s(slow):
    client = Client(slow, api_key=KEYS)
    [answer], said = run(client, [(KEYS[0], "/generate", NATIVE)], KEYS[1], rid="mine")
    assert said == {"aborted": 1}
    assert reason(answer) == "abort"
    _, said = run(client, [(KEYS[0], "/v1/chat/completions", CHAT)], KEYS[1], abort_all=True)
    assert said == {"aborted": 1}
