"""Over real sockets: streams that wait or are silent, and what surrounds their bytes."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import httpx
import pytest

from radixlm.assembly import AsyncEngine
from tests.server_support import (
    NAME,
    Client,
    fake_engine,
    idle_and_whole,
    live,
    refused,
    until,
)

STEP = 0.02
LONG = {"prompt": "a", "max_tokens": 1500}
MESSAGES = [{"role": "user", "content": "a"}]
# A request's route and body, and the ping of its stream.
COMMENT, PING = ": ping\n\n", 'event: ping\ndata: {"type":"ping"}\n\n'
STREAMS: dict[str, tuple[dict[str, Any], str]] = {
    "/v1/chat/completions": ({"messages": MESSAGES}, COMMENT),
    "/v1/completions": ({"prompt": "a"}, COMMENT),
    "/v1/responses": ({"input": "a"}, COMMENT),
    "/v1/messages": ({"model": NAME, "messages": MESSAGES, "max_tokens": 9}, PING),
    "/generate": ({"text": "a"}, COMMENT),
}
ROUTES = pytest.mark.parametrize("path", STREAMS)


@pytest.fixture(scope="module")
def slow() -> Iterator[AsyncEngine]:
    """An engine whose step takes STEP seconds, and which runs one request at a time."""
    engine, _ = fake_engine(seconds=STEP, max_running_requests=1)
    yield engine
    assert until(lambda: idle_and_whole(engine))
    asyncio.run(engine.close())


@contextmanager
def busy(engine: AsyncEngine, **flags: Any) -> Iterator[str]:
    """A server that is busy for half a minute, unless the block ends before."""
    with live(engine, **flags) as url, httpx.Client(base_url=url, timeout=60) as client:
        with client.stream("POST", "/v1/completions", json={**LONG, "stream": True}) as answer:
            pieces = answer.iter_raw()
            next(pieces)
            yield url
            pieces.close()
        assert until(lambda: idle_and_whole(engine))


def streamed(url: str, path: str, **more: Any) -> Any:
    body = {**STREAMS[path][0], "stream": True, **more}
    return httpx.stream("POST", url + path, json=body, timeout=60)


def read(pieces: Iterator[str], word: str, times: int) -> str:
    """What has come when a word has come so often."""
    came = ""
    while came.count(word) < times:
        came += next(pieces)
    return came


def exchanged(url: str, request: str) -> bytes:
    """All that comes until the server closes the connection."""
    host, port = url.removeprefix("http://").split(":")
    with closing(socket.create_connection((host, int(port)), timeout=30)) as connection:
        connection.sendall(request.encode())
        answer = b""
        while chunk := connection.recv(65536):
            answer += chunk
    return answer


@ROUTES
def test_the_head_comes_while_the_request_waits_in_the_queue(slow: AsyncEngine, path: str) -> None:
    with busy(slow) as url:
        with streamed(url, path) as answer:
            assert answer.status_code == 200
            assert answer.headers["x-accel-buffering"] == "no"
            assert answer.headers["cache-control"] == "no-cache"
            assert slow.stats().running == slow.stats().waiting == 1
        # Its client has left: so has the request, and nobody waits for the one that runs.
        assert until(lambda: slow.stats().waiting == 0)
        assert slow.stats().running == 1


@ROUTES
def test_a_silent_stream_is_pinged_in_the_words_of_its_api(slow: AsyncEngine, path: str) -> None:
    ping = STREAMS[path][1]
    with busy(slow, sse_keep_alive_interval=0.05) as url, streamed(url, path) as answer:
        came = read(answer.iter_text(), ping, 3)
    assert came.removeprefix(ping * came.count(ping)) == ""


@ROUTES
def test_pings_stand_between_events(path: str) -> None:
    """A step takes longer than silence may last."""
    engine, _ = fake_engine(seconds=0.3)
    body, ping = STREAMS[path]
    bound = "max_output_tokens" if path == "/v1/responses" else "max_tokens"
    few = {"sampling_params": {"max_new_tokens": 3}} if path == "/generate" else {bound: 3}
    quick, _ = fake_engine()
    asked = {**body, "stream": True, **few}
    plain = Client(quick).post(path, **asked).text
    with live(engine, sse_keep_alive_interval=0.1) as url:
        came = httpx.post(url + path, json=asked, timeout=60).text
    for each in (engine, quick):
        asyncio.run(each.close())
    assert came.count(ping) > plain.count(ping)
    events = [text for text in came.split("\n\n") if text + "\n\n" != ping]
    # Of a quick engine several tokens may come in one.
    assert len(events) >= len([text for text in plain.split("\n\n") if text + "\n\n" != ping])
    assert all(text.startswith(("data:", "event:")) for text in events if text)
    assert came.endswith(plain[-14:])


def test_pings_are_a_flag(slow: AsyncEngine) -> None:
    limits = {"sse_keep_alive_interval": 0, "request_timeout": 1.5}
    with busy(slow, **limits) as url, streamed(url, "/v1/chat/completions") as answer:
        assert COMMENT not in answer.read().decode()


def test_a_ping_keeps_nobody_alive_who_has_left(slow: AsyncEngine) -> None:
    with busy(slow, sse_keep_alive_interval=0.05) as url:
        with streamed(url, "/v1/chat/completions") as answer:
            pieces = answer.iter_text()
            read(pieces, COMMENT, 3)
            assert slow.stats().waiting == 1
            pieces.close()
        assert until(lambda: slow.stats().waiting == 0)
        assert slow.stats().running == 1


@ROUTES
def test_what_is_refused_at_once_has_its_own_status(slow: AsyncEngine, path: str) -> None:
    field = {"/generate": "text", "/v1/completions": "prompt", "/v1/responses": "input"}
    name = field.get(path, "messages")
    long = [{"role": "user", "content": "a" * 3000}] if name == "messages" else "a" * 3000
    body = {**STREAMS[path][0], "stream": True}
    assert refused(Client(slow).post(path, **{**body, name: long}))
    assert refused(Client(slow).post(path, **{**body, "model": "another"}), 404)


def test_a_grammar_that_does_not_compile_is_a_400_of_a_stream_too(fake: Client) -> None:
    assert refused(fake.complete("a", stream=True, regex="("))["param"] == "regex"


def test_a_full_queue_is_a_429_of_a_stream_too() -> None:
    engine, _ = fake_engine(seconds=STEP, max_queued_requests=2)
    with busy(engine) as url, streamed(url, "/v1/completions", n=2) as answer:
        assert answer.status_code == 429
        assert "retry-after" in answer.headers
    asyncio.run(engine.close())


ENDS = {
    "/v1/chat/completions": ['data: {"error":', "data: [DONE]"],
    "/v1/completions": ['data: {"error":', "data: [DONE]"],
    "/v1/responses": ["event: response.created", "event: response.failed"],
    "/v1/messages": ["event: error"],
    "/generate": ['data: {"error":', "data: [DONE]"],
}


@ROUTES
def test_an_error_after_the_head_ends_the_stream_as_its_api_does(path: str) -> None:
    engine, runner = fake_engine(seconds=STEP, max_running_requests=1)
    with live(engine) as url, httpx.Client(base_url=url, timeout=60) as client:
        first = threading.Thread(
            target=client.post, args=("/v1/completions",), kwargs={"json": LONG}
        )
        first.start()
        assert until(lambda: engine.stats().running == 1)
        with streamed(url, path) as answer:
            assert answer.status_code == 200
            runner.broken = True
            events = answer.read().decode().split("\n\n")
        first.join()
    assert [event[: len(end)] for event, end in zip(events, ENDS[path], strict=False)] == ENDS[path]
    assert events[len(ENDS[path]) :] == [""]
    asyncio.run(engine.close())


@ROUTES
def test_the_time_limit_ends_a_stream_that_waits(slow: AsyncEngine, path: str) -> None:
    with busy(slow), live(slow, request_timeout=1.5) as url:
        with streamed(url, path) as answer:
            assert answer.status_code == 200
            events = answer.read().decode().split("\n\n")
        assert until(lambda: slow.stats().waiting == 0)
        assert slow.stats().running == 1
    assert [event[: len(end)] for event, end in zip(events, ENDS[path], strict=False)] == ENDS[path]
    assert events[len(ENDS[path]) :] == [""]


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("header", ["", "Connection: keep-alive\r\n"])
def test_a_client_of_http_1_0_gets_no_chunks(fake: Client, stream: bool, header: str) -> None:
    body = json.dumps({"prompt": "a", "max_tokens": 3, "stream": stream})
    request = f"POST /v1/completions HTTP/1.0\r\n{header}Content-Length: {len(body)}\r\n\r\n{body}"
    with live(fake.engine) as url:
        answer = exchanged(url, request)
    head, _, rest = answer.decode().partition("\r\n\r\n")
    assert "transfer-encoding" not in head.lower()
    assert "connection: close" in head.lower()
    if stream:
        assert rest.startswith("data: {")
        assert rest.endswith("\n\ndata: [DONE]\n\n")
        assert all(line.startswith("data: ") for line in rest.split("\n\n")[:-1])
    else:
        assert json.loads(rest)["usage"]["completion_tokens"] == 3


def test_an_answer_of_http_1_0_that_fails_is_whole(fake: Client) -> None:
    with live(fake.engine) as url:
        answer = exchanged(url, "GET /nowhere HTTP/1.0\r\n\r\n")
    head, _, rest = answer.decode().partition("\r\n\r\n")
    assert head.startswith("HTTP/1.1 404 ")
    assert json.loads(rest)["error"]["code"] == "unknown_url"


def test_pages_of_an_allowed_origin_may_ask_a_private_network(fake: Client) -> None:
    client = Client(fake.engine, cors_origin=("https://example.org",))
    asks = {
        "access-control-request-method": "POST",
        "access-control-request-private-network": "true",
    }
    answer = client.request(
        "OPTIONS", "/v1/chat/completions", headers={**asks, "origin": "https://example.org"}
    )
    assert answer.status_code == 200
    assert answer.headers["access-control-allow-private-network"] == "true"
    other = {**asks, "origin": "https://example.com"}
    answer = client.request("OPTIONS", "/v1/chat/completions", headers=other)
    assert answer.status_code == 400
    assert "access-control-allow-origin" not in answer.headers


def test_a_tree_that_is_watched_is_not_buffered_either(fake: Client) -> None:
    with live(fake.engine) as url, httpx.stream("GET", f"{url}/cache/events") as answer:
        assert answer.headers["x-accel-buffering"] == "no"


def test_what_a_parser_holds_back_is_silence() -> None:
    """Spaces before a thought, here."""
    engine, _ = fake_engine(seconds=STEP, script=" " * 1000)
    with live(engine, sse_keep_alive_interval=0.05, reasoning_parser="deepseek-r1") as url:
        with streamed(url, "/v1/chat/completions") as answer:
            pieces = answer.iter_text()
            read(pieces, COMMENT, 3)
            assert engine.stats().running == 1
            pieces.close()
        assert until(lambda: idle_and_whole(engine))
    asyncio.run(engine.close())
