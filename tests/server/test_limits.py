"""Bodies too long or too slow, requests that take too long, a queue that is full."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from contextlib import closing
from dataclasses import replace

import httpx
import pytest

from radixlm.cache import RadixCache
from radixlm.core.clock import VirtualClock
from radixlm.core.errors import ConfigError, QueueFullError
from radixlm.core.request import RequestOutput, TokenLogprob
from radixlm.server.config.server_config import ServerConfig
from radixlm.server.openai.completions import CompletionWriter
from radixlm.server.pipeline.answer import MANY_LOGPROBS
from radixlm.server.pipeline.under_way import UnderWay
from tests.server_support import Client, events, fake_engine, idle_and_whole, live, under_way, until

COMPLETIONS = "/v1/completions"
CHAT = "/v1/chat/completions"


@pytest.fixture(scope="module")
def slow():
    """An engine whose step takes a while; nothing may leak in it."""
    engine, _ = fake_engine(seconds=0.02)
    yield engine
    assert until(lambda: idle_and_whole(engine))
    asyncio.run(engine.close())


@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
def test_the_longest_body_is_a_flag(fake, path):
    client = Client(fake.engine, max_request_bytes=300)
    if path == CHAT:
        body = {"messages": [{"role": "user", "content": "a" * 20}], "max_tokens": 1}
    else:
        body = {"prompt": "a" * 20, "max_tokens": 1}
    assert client.request("POST", path, json=body).status_code == 200
    answer = client.request("POST", path, json={**body, "user": "x" * 300})
    assert answer.status_code == 413
    assert "300 bytes" in answer.json()["error"]["message"]


def head(length: int) -> bytes:
    return f"POST {COMPLETIONS} HTTP/1.1\r\nHost: x\r\nContent-Length: {length}\r\n\r\n".encode()


def test_a_body_that_does_not_come_is_a_408_and_the_connection_ends(slow):
    with live(slow, body_timeout=0.2) as url:
        host, port = url.removeprefix("http://").split(":")
        with closing(socket.create_connection((host, int(port)), timeout=60)) as connection:
            connection.sendall(head(100) + b'{"prompt"')
            answer = b""
            while chunk := connection.recv(4096):  # until the server closes
                answer += chunk
    assert answer.startswith(b"HTTP/1.1 408 ")
    assert b"\r\nx-request-id: " in answer
    assert b"\r\nconnection: close\r\n" in answer.lower()
    error = json.loads(answer.split(b"\r\n\r\n", 1)[1])["error"]
    assert error["code"] == "body_timeout"
    assert "--body-timeout 0.2 s" in error["message"]


def test_a_body_that_comes_in_drops_may_not_take_longer(slow):
    """Each piece comes soon after the last: it is the whole that has a limit."""
    with live(slow, body_timeout=0.3) as url:
        host, port = url.removeprefix("http://").split(":")
        with closing(socket.create_connection((host, int(port)), timeout=0.05)) as connection:
            connection.sendall(head(10_000))
            answer = b""
            for _ in range(200):
                connection.sendall(b" ")
                try:
                    answer = connection.recv(4096)
                    break
                except TimeoutError:
                    continue
    assert answer.startswith(b"HTTP/1.1 408 ")


def test_without_a_limit_a_slow_body_is_waited_for(slow):
    body = json.dumps({"prompt": "a", "max_tokens": 1}).encode()
    with live(slow, body_timeout=0) as url:
        host, port = url.removeprefix("http://").split(":")
        with closing(socket.create_connection((host, int(port)), timeout=60)) as connection:
            connection.sendall(head(len(body)) + body[:5])
            connection.settimeout(0.3)
            with pytest.raises(TimeoutError):
                connection.recv(1)
            connection.settimeout(60)
            connection.sendall(body[5:])
            assert connection.recv(100).startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
@pytest.mark.parametrize("n", [3, pytest.param(1, marks=pytest.mark.slow)])
def test_a_request_that_takes_too_long_is_a_504(slow, path, n):
    client = Client(slow, request_timeout=0.3)
    aborted = slow.stats().requests_aborted
    send = client.complete if path == COMPLETIONS else client.chat
    answer = send("a", max_tokens=1500, n=n)
    assert answer.status_code == 504
    error = answer.json()["error"]
    assert error["code"] == "request_timeout"
    assert error["type"] == "timeout_error"
    assert "--request-timeout 0.3 s" in error["message"]
    assert until(lambda: slow.stats().requests_aborted == aborted + n)
    assert until(lambda: idle_and_whole(slow))


@pytest.mark.parametrize("n", [3, pytest.param(1, marks=pytest.mark.slow)])
def test_a_stream_that_takes_too_long_ends_with_an_error_event(slow, n):
    aborted = slow.stats().requests_aborted
    with live(slow, request_timeout=1) as url:  # ample for a first chunk
        body = {"prompt": "a", "max_tokens": 1500, "stream": True, "n": n}
        answer = httpx.post(f"{url}{COMPLETIONS}", json=body, timeout=60)
    assert answer.status_code == 200
    *chunks, last = events(answer)
    assert chunks
    assert all("error" not in chunk for chunk in chunks)
    assert last["error"]["code"] == "request_timeout"
    assert until(lambda: slow.stats().requests_aborted == aborted + n)
    assert until(lambda: idle_and_whole(slow))


@pytest.mark.slow
def test_a_request_that_waits_in_the_queue_times_out_too():
    engine, _ = fake_engine(seconds=0.02, max_running_requests=1)
    client = Client(engine, request_timeout=0.5)

    async def both() -> list[httpx.Response]:
        transport = httpx.ASGITransport(client.app)
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as http:
            bodies = [{"prompt": name, "max_tokens": 1500} for name in "ab"]
            return await asyncio.gather(*(http.post(COMPLETIONS, json=body) for body in bodies))

    assert [answer.status_code for answer in asyncio.run(both())] == [504, 504]
    assert until(lambda: idle_and_whole(engine))
    asyncio.run(engine.close())


@pytest.mark.slow
def test_a_client_that_does_not_read_holds_no_slots():
    engine, _ = fake_engine(seconds=0.002)
    with live(engine, request_timeout=0.5) as url:
        host, port = url.removeprefix("http://").split(":")
        body = json.dumps({"prompt": "a", "max_tokens": 1900, "stream": True}).encode()
        with closing(socket.create_connection((host, int(port)))) as connection:
            connection.sendall(head(len(body)) + body)
            assert until(lambda: engine.stats().running == 1)
            assert until(lambda: idle_and_whole(engine))
    asyncio.run(engine.close())


def test_in_time_is_in_time(slow):
    client = Client(slow, request_timeout=30)
    assert client.complete("a", max_tokens=2).status_code == 200
    assert len(events(client.complete("a", max_tokens=2, stream=True))) == 2


@pytest.mark.parametrize("stream", [False, True])
def test_a_full_queue_says_when_to_come_again(stream):
    engine, _ = fake_engine(seconds=0.01, max_queued_requests=2)
    with under_way(engine):
        answer = Client(engine).complete(["a"] * 2, stream=stream)
    assert answer.status_code == 429
    assert answer.headers["retry-after"] == "1"
    assert answer.json()["error"]["type"] == "rate_limit_exceeded"
    assert until(lambda: idle_and_whole(engine))
    asyncio.run(engine.close())


def test_a_full_queue_refuses_before_it_tries_a_grammar():
    engine, _ = fake_engine(seconds=0.01, max_queued_requests=2)
    client = Client(engine)
    wrong = {"regex": "("}  # which only compiling it finds
    assert client.complete(["a"] * 2, **wrong).status_code == 400
    with under_way(engine):
        assert client.complete(["a"] * 2, **wrong).status_code == 429
    asyncio.run(engine.close())


@pytest.mark.slow
def test_a_stream_is_not_ended_while_its_writer_writes(monkeypatch):
    """What has many log-probabilities is written in a thread, which can not be cancelled."""
    engine, _ = fake_engine()
    pushed, seen = CompletionWriter.push, []

    def push(self, choice, output):
        if output.logprobs:
            time.sleep(1)
        seen.append("pushed")
        return pushed(self, choice, output)

    async def stream(requests):
        begun = RequestOutput(requests[0].request_id, "a", (1,), 1)
        yield begun
        yield replace(begun, logprobs=(TokenLogprob(1, -1.0),) * (MANY_LOGPROBS + 1))

    monkeypatch.setattr(CompletionWriter, "push", push)
    monkeypatch.setattr(engine.client, "stream", stream)
    answer = Client(engine, request_timeout=0.5).complete("a", stream=True)
    assert events(answer)[-1]["error"]["code"] == "request_timeout"
    assert seen == ["pushed", "pushed"]
    asyncio.run(engine.close())


def run_one(pace: UnderWay, clock: VirtualClock, seconds: float) -> None:
    with pace.held("", ["a"]) as ended:
        clock.advance(seconds)
        ended()


def test_the_wait_follows_queue_and_pace():
    clock = VirtualClock()
    pace = UnderWay(clock)
    assert pace.seconds_for(1000) == 1
    with pace.held("", ["a"]):
        clock.advance(4)
        assert pace.seconds_for(1) == 4  # as if one were just ending
        assert pace.seconds_for(3) == 12
        for _ in range(4):
            run_one(pace, clock, 0.5)
        assert pace.seconds_for(1) == 2  # 4 ends in 6 s
        assert pace.seconds_for(10) == 15
        assert pace.seconds_for(1000) == 60
        for _ in range(100):  # what was long ago is forgotten
            run_one(pace, clock, 0.1)
        assert pace.seconds_for(100) == 10
        clock.advance(60)  # nothing ends any more
        assert pace.seconds_for(100) == 60


def test_an_idle_time_does_not_count_as_slow():
    clock = VirtualClock()
    pace = UnderWay(clock)
    run_one(pace, clock, 1)
    clock.advance(3600)
    with pace.held("", ["a"]):
        assert pace.seconds_for(5) == 1


def test_refused_requests_are_no_ends():
    clock = VirtualClock()
    pace = UnderWay(clock)
    with pace.held("", ["a"]):
        clock.advance(10)
        for _ in range(50):
            with pytest.raises(RuntimeError), pace.held("", ["a"]):
                raise RuntimeError
        assert pace.seconds_for(2) == 20


@pytest.mark.parametrize(
    ("flags", "text"),
    [
        ({"max_request_bytes": 0}, "--max-request-bytes is an integer of at least 1, got 0"),
        ({"max_request_bytes": 1.5}, "got 1.5"),
        ({"max_request_bytes": True}, "got True"),
        ({"max_queued_requests_per_key": 0}, "--max-queued-requests-per-key is an integer"),
        ({"max_queued_requests_per_key": 5}, "--max-queued-requests-per-key needs --api-key"),
        ({"request_timeout": -1}, "--request-timeout is a number of seconds"),
        ({"request_timeout": float("nan")}, "got nan"),
        ({"request_timeout": float("inf")}, "got inf"),
        ({"header_timeout": -1}, "--header-timeout is a number of seconds"),
        ({"keep_alive_timeout": -1}, "--keep-alive-timeout is a number of seconds"),
        ({"body_timeout": "soon"}, "--body-timeout is a number of seconds.*got 'soon'"),
        ({"body_timeout": True}, "got True"),
        ({"log_format": "xml"}, "--log-format is one of"),
        ({"root_path": "llm"}, "--root-path is a path like /llm"),
        ({"root_path": "/llm/"}, "--root-path is a path like /llm"),
        ({"root_path": "/ü"}, "--root-path is a path like /llm"),
        ({"root_path": "/a\n"}, "--root-path is a path like /llm"),
        ({"ssl_keyfile": "key.pem"}, "--ssl-keyfile needs --ssl-certfile"),
    ],
)
def test_wrong_flags_are_refused(flags, text):
    with pytest.raises(ConfigError, match=text):
        ServerConfig(**flags)


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions", "/generate"])
def test_a_full_queue_refuses_without_reading(path):
    engine, _ = fake_engine(seconds=0.02, max_queued_requests=1)
    large = b"x" * 3_000_000
    with live(engine) as url, httpx.Client(base_url=url) as client:
        body = {"prompt": "a", "max_tokens": 1000, "stream": True}
        with client.stream("POST", "/v1/completions", json=body):
            refused = client.post(path, content=large)
            assert refused.status_code == 429
            assert refused.headers["retry-after"]
            assert client.get("/health").status_code == 200
        assert until(lambda: idle_and_whole(engine))
        assert client.post(path, content=large).status_code == 400


@pytest.mark.parametrize(
    ("context", "longest"),
    [(2_000, 4 * 2**20), (131_072, 8 * 2**20), (10**7, 32 * 2**20)],
)
def test_the_longest_body_follows_the_context(context, longest):
    engine, _ = fake_engine(context_length=context)
    client = Client(engine)
    length = {"Content-Length": str(longest + 1)}
    answer = client.request("POST", COMPLETIONS, content=b"", headers=length)
    assert answer.status_code == 413
    assert f"longer than {longest} bytes" in answer.json()["error"]["message"]
    asyncio.run(engine.close())


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


@pytest.mark.parametrize("path", [COMPLETIONS, CHAT, "/generate"])
def test_a_key_has_its_own_limit_of_requests(path):
    engine, _ = fake_engine(seconds=0.02)
    flags = {"api_key": ("first", "second"), "max_queued_requests_per_key": 2}
    body = {"prompt": ["a", "b"], "max_tokens": 1000, "stream": True}
    with live(engine, **flags) as url, httpx.Client(base_url=url) as client:
        with client.stream("POST", COMPLETIONS, json=body, headers=bearer("first")) as stream:
            assert stream.status_code == 200
            answer = client.post(path, content=b"not read", headers=bearer("first"))
            assert answer.status_code == 429
            assert answer.headers["retry-after"]
            assert "--max-queued-requests-per-key 2" in answer.json()["error"]["message"]
            assert (
                client.post(path, content=b"not read", headers=bearer("second")).status_code == 400
            )
        assert until(lambda: idle_and_whole(engine))
        assert client.post(path, content=b"not read", headers=bearer("first")).status_code == 400
    asyncio.run(engine.close())


def test_more_choices_than_a_key_may_have_are_refused_whole():
    engine, _ = fake_engine()
    client = Client(engine, api_key=("first",), max_queued_requests_per_key=2)
    for count, status in ((3, 400), (2, 200)):
        body = {"prompt": ["a"] * count, "max_tokens": 1}
        answer = client.request("POST", COMPLETIONS, json=body, headers=bearer("first"))
        assert answer.status_code == status
    asyncio.run(engine.close())


def test_a_key_s_limit_holds_for_those_that_come_together():
    queues = UnderWay(VirtualClock(), 3)
    with queues.held("a", "12"):
        with pytest.raises(QueueFullError), queues.held("a", "34"):
            pass
        with queues.held("a", "3"), queues.held("b", "456"):
            pass
    assert queues.of("") == ()
    queues.check("a", 3)
    with UnderWay(VirtualClock()).held("a", range(100)):
        pass


def test_a_prompt_of_the_whole_context_is_scored_and_nothing_more():
    engine, _ = fake_engine(context_length=500)
    client = Client(engine)
    body = {"prompt": [1] * 500, "max_tokens": 0, "echo": True, "logprobs": 1}
    answer = client.complete(**body)
    assert answer.status_code == 200, answer.text
    assert answer.json()["usage"]["total_tokens"] == 500
    assert client.complete(**{**body, "prompt": [1] * 501}).status_code == 400
    asked = {"input_ids": [1] * 500, "return_logprob": True, "logprob_start_len": 0}
    answer = client.generate(None, **asked, sampling_params={"max_new_tokens": 0})
    assert answer.json()["meta_info"]["prompt_tokens"] == 500
    asyncio.run(engine.close())


def test_what_may_be_pinned_is_no_room_of_a_request_on_any_route():
    engine, _ = fake_engine(context_length=200, cache=RadixCache(200, 1, pin_budget=50))
    client, longest = Client(engine), 150
    anthropic = {"anthropic-version": "2023-06-01"}
    [card] = client.get("/v1/models").json()["data"]
    [info] = client.request("GET", "/v1/models", headers=anthropic).json()["data"]
    assert (card["max_model_len"], info["max_tokens"]) == (longest, longest)
    assert client.post("/tokenize", prompt="x").json()["max_model_len"] == longest
    assert client.get("/server_info").json()["max_req_input_len"] == longest - 1
    assert client.get("/get_model_info").json()["max_model_len"] == longest
    strict = Client(engine, strict_fields=True)
    schemas = strict.get("/openapi.json").json()["components"]["schemas"]
    [ranged] = [e for e in schemas["ChatBody"]["properties"]["max_tokens"]["anyOf"] if len(e) > 1]
    assert ranged["maximum"] == longest - 1

    turns = [{"role": role, "content": 40 * "x"} for role in 4 * ("user", "assistant")]
    answer = client.post("/v1/responses", input=turns, truncation="auto")
    assert answer.status_code == 200, answer.text
    answer = client.generate(None, input_ids=[1] * 60).json()["meta_info"]
    assert answer["prompt_tokens"] + answer["completion_tokens"] == longest
    asyncio.run(engine.close())
