"""Aborts by the client's name, health by generating, server info, loads, vLLM's reset."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Awaitable, Callable
from contextlib import closing
from typing import Any

import httpx
import pytest

from radixlm.server.sglang import sglang_routes as native_routes
from tests.server_support import Client, events, fake_engine, idle_and_whole, live, refused, until

STEP = 0.01
LONG = {"max_new_tokens": 1500}


@pytest.fixture(scope="module")
def slow():
    """A client of an engine whose step takes STEP seconds."""
    engine, _ = fake_engine(seconds=STEP)
    yield Client(engine)
    assert until(lambda: idle_and_whole(engine))
    asyncio.run(engine.close())


def while_running(
    client: Client,
    bodies: list[dict[str, Any]],
    running: int,
    act: Callable[[httpx.AsyncClient], Awaitable[Any]],
    path: str = "/generate",
) -> tuple[list[httpx.Response], Any]:
    """Send `bodies` at once, act when so many requests run, and wait for all the answers."""

    async def go() -> tuple[list[httpx.Response], Any]:
        transport = httpx.ASGITransport(client.app, raise_app_exceptions=False)
        async with (
            httpx.AsyncClient(transport=transport, base_url="http://test") as http,
            asyncio.timeout(120),
        ):
            sent = [asyncio.create_task(http.post(path, json=body)) for body in bodies]
            while client.engine.stats().running < running:
                await asyncio.sleep(STEP)
            did = await act(http)
            return list(await asyncio.gather(*sent)), did

    return asyncio.run(go())


def aborting(**body: Any) -> Callable[[httpx.AsyncClient], Awaitable[Any]]:
    async def act(http: httpx.AsyncClient) -> Any:
        return (await http.post("/abort_request", json=body)).json()

    return act


@pytest.mark.parametrize("stream", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_a_request_is_aborted_by_its_name(slow, stream):
    bodies = [
        {"text": "a", "sampling_params": LONG, "rid": "mine", "stream": stream},
        {"text": "b", "sampling_params": {"max_new_tokens": 30}, "rid": "mine_too"},
    ]
    (mine, other), said = while_running(slow, bodies, 2, aborting(rid="mine"))
    assert said == {"aborted": 1}
    last = events(mine)[-1] if stream else mine.json()
    assert last["meta_info"]["finish_reason"] == {"type": "abort", "message": "Aborted"}
    assert last["meta_info"]["completion_tokens"] == len(last["output_ids"]) < 1500
    assert last["meta_info"]["prompt_tokens"] == 1
    assert other.json()["meta_info"]["finish_reason"] == {"type": "length", "length": 30}
    assert until(lambda: idle_and_whole(slow.engine))
    assert slow.post("/abort_request", rid="mine").json() == {"aborted": 0}


@pytest.mark.parametrize(("name", "gone"), [("all", [0, 1]), ("all_1", [1])])
def test_a_list_is_aborted_together_or_one_by_one(slow, name, gone):
    params = {"max_new_tokens": 40}
    body = {"text": ["a", "b"], "sampling_params": params, "rid": "all"}
    [answer], said = while_running(slow, [body], 2, aborting(rid=name))
    kinds = [one["meta_info"]["finish_reason"]["type"] for one in answer.json()]
    assert [place for place, kind in enumerate(kinds) if kind == "abort"] == gone
    assert said == {"aborted": len(gone)}
    assert until(lambda: idle_and_whole(slow.engine))


def test_unknown_names_abort_nothing(slow):
    body = {"text": "a", "sampling_params": {"max_new_tokens": 20}, "rid": "other"}
    [answer], said = while_running(slow, [body], 1, aborting(rid="oth"))
    assert said == {"aborted": 0}
    assert answer.json()["meta_info"]["finish_reason"]["type"] == "length"


def test_all_are_aborted_whatever_they_came_as(slow):
    bodies = [{"prompt": text, "max_tokens": 1500} for text in ("a", "b")]
    answers, said = while_running(
        slow, bodies, 2, aborting(rid="", abort_all=True), "/v1/completions"
    )
    assert said == {"aborted": 2}
    assert [one.json()["choices"][0]["finish_reason"] for one in answers] == ["abort"] * 2
    assert until(lambda: idle_and_whole(slow.engine))


@pytest.mark.slow
def test_a_waiting_request_is_aborted_too():
    engine, _ = fake_engine(seconds=STEP, max_running_requests=1)
    # Enough tokens that "a" still runs when the abort comes, also on a busy machine.
    one, other = (
        {"text": text, "sampling_params": {"max_new_tokens": 400}, "rid": text} for text in "ab"
    )

    async def act(http: httpx.AsyncClient) -> Any:
        waiting = asyncio.create_task(http.post("/generate", json=other))
        while not engine.stats().waiting:
            await asyncio.sleep(STEP)
        return await aborting(rid="b")(http), await waiting

    [first], (said, second) = while_running(Client(engine), [one], 1, act)
    assert said == {"aborted": 1}
    assert first.json()["meta_info"]["finish_reason"]["type"] == "length"
    assert second.json()["meta_info"]["finish_reason"]["type"] == "abort"
    assert second.json()["output_ids"] == []
    assert until(lambda: idle_and_whole(engine))
    asyncio.run(engine.close())


@pytest.mark.parametrize("stream", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_a_name_is_taken_while_its_request_runs(slow, stream):
    body = {"text": "a", "sampling_params": {"max_new_tokens": 30}, "rid": "one"}

    async def act(http: httpx.AsyncClient) -> Any:
        return await http.post("/generate", json={**body, "stream": stream})

    [answer], second = while_running(slow, [body], 1, act)
    assert refused(second)["param"] == "rid"
    assert answer.json()["meta_info"]["finish_reason"]["type"] == "length"
    assert slow.post("/generate", **body).status_code == 200


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_ends_its_requests_and_frees_its_names(stream):
    engine, _ = fake_engine(seconds=STEP)
    body = {"text": "a", "sampling_params": {**LONG, "n": 2}, "stream": stream, "rid": "gone"}
    data = json.dumps(body).encode()
    with live(engine) as url:
        host, port = url.removeprefix("http://").split(":")
        with closing(socket.create_connection((host, int(port)))) as connection:
            head = f"POST /generate HTTP/1.1\r\nHost: x\r\nContent-Length: {len(data)}\r\n\r\n"
            connection.sendall(head.encode() + data)
            assert until(lambda: engine.stats().running == 2)
            if stream:
                assert connection.recv(100)
        assert until(lambda: engine.stats().requests_aborted == 2)
        assert until(lambda: idle_and_whole(engine))
        again = {**body, "sampling_params": {"max_new_tokens": 1}, "stream": False}
        assert httpx.post(f"{url}/generate", json=again).status_code == 200
    asyncio.run(engine.close())


def test_health_generates_a_token(fake):
    before = fake.engine.stats().output_tokens
    assert fake.get("/health_generate").json() == {"status": "ok"}
    assert fake.engine.stats().output_tokens == before + 1


def test_health_fails_when_no_token_comes_in_time(monkeypatch):
    monkeypatch.setattr(native_routes, "HEALTH_SECONDS", 0.05)
    engine, _ = fake_engine(seconds=0.2)
    client = Client(engine)
    error = refused(client.get("/health_generate"), 503)
    assert "no token was generated in 0.05 s" in error["message"]
    assert until(lambda: idle_and_whole(engine))
    asyncio.run(engine.close())


@pytest.mark.slow
def test_a_full_queue_is_not_ill_while_it_moves():
    engine, _ = fake_engine(seconds=STEP, max_queued_requests=1)
    body = {"text": "a", "sampling_params": {"max_new_tokens": 40}}

    async def act(http: httpx.AsyncClient) -> Any:
        return (await http.get("/health_generate")).status_code

    [answer], status = while_running(Client(engine), [body], 1, act)
    assert status == 200
    assert answer.status_code == 200
    asyncio.run(engine.close())


def test_the_server_tells_its_flags_and_numbers(fake):
    info = fake.get("/server_info").json()
    assert info["max_running_requests"] == fake.engine.config.max_running_requests
    assert info["schedule_policy"] == "lpm"
    assert info["served_model_name"] == "test-model"
    assert info["max_total_num_tokens"] == info["kv_tokens"] == 4000
    # What was left open is told as it is, not as "auto" or null.
    assert (info["dtype"], info["device"]) == ("float32", "cpu")
    assert info["context_length"] == fake.engine.info.context_length
    assert info["model"] == info["tokenizer"] == info["model_path"]
    assert info["threads"] >= 1
    assert info["max_pinned_tokens"] == 0
    assert info["version"]
    [state] = info["internal_states"]
    assert state["kv_capacity"] == state["kv_free"] + state["kv_evictable"] == 4000
    assert state["hit_rate"] == 0.0
    assert fake.get("/get_server_info").json().keys() == info.keys()
    assert fake.get("/model_info").json() == fake.get("/get_model_info").json()


def test_loads_count_what_runs(slow):
    async def act(http: httpx.AsyncClient) -> Any:
        return (await http.get("/v1/loads")).json()["loads"]

    body = {"text": "abc", "sampling_params": {"max_new_tokens": 30}}
    _, [load] = while_running(slow, [body], 1, act)
    assert load["dp_rank"] == 0
    assert (load["num_running_reqs"], load["num_waiting_reqs"]) == (1, 0)
    assert load["num_used_tokens"] >= 3
    assert load["max_total_num_tokens"] == 4000
    assert load["token_usage"] == load["num_used_tokens"] / 4000
    assert load["utilization"] == 1 / load["max_running_requests"]
    assert until(lambda: idle_and_whole(slow.engine))
    [load] = slow.get("/v1/loads").json()["loads"]
    assert load["num_running_reqs"] == load["num_used_tokens"] == 0


def test_the_prefix_cache_is_reset(slow):
    prompt = list(range(1, 50))
    fields = {"input_ids": prompt, "sampling_params": {"max_new_tokens": 1}}
    slow.post("/generate", **fields)
    assert slow.post("/reset_prefix_cache").json() == {"success": True}
    assert slow.post("/generate", **fields).json()["meta_info"]["cached_tokens"] == 0

    async def act(http: httpx.AsyncClient) -> Any:
        return (await http.post("/reset_prefix_cache")).json()

    body = {"text": "a", "sampling_params": {"max_new_tokens": 20}}
    assert while_running(slow, [body], 1, act)[1] == {"success": False}
