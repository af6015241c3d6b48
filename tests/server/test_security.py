"""Over real sockets and in process: what somebody who means harm sends, with and without a key."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from radixlm.server.app import API_ROUTES
from tests.server_support import Client, fake_engine, idle_and_whole, live, refused, until

KEY = "sk-first"
CHUNKED = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n"
BEARER = f"Authorization: Bearer {KEY}\r\n".encode()
FEW = 4 * 2**20
SECRET = [61, 7, 44, 19, 90, 3, 3, 58]


@pytest.fixture(scope="module")
def engine():
    engine, _ = fake_engine()
    yield engine
    assert until(lambda: idle_and_whole(engine))
    asyncio.run(engine.close())


def connect(url: str) -> socket.socket:
    host, port = url.removeprefix("http://").split(":")
    return socket.create_connection((host, int(port)), timeout=60)


def answer_to(url: str, sent: bytes) -> bytes:
    """All that comes back until the server closes."""
    answer = b""
    with contextlib.closing(connect(url)) as connection, contextlib.suppress(ConnectionError):
        connection.sendall(sent)
        while chunk := connection.recv(65536):
            answer += chunk
    return answer


def swallowed(connection: socket.socket, block: bytes) -> int:
    """How many bytes the server takes before it ends the connection, FEW at most."""
    taken = 0
    with contextlib.suppress(ConnectionError):
        while taken < FEW:
            connection.sendall(block)
            taken += len(block)
            time.sleep(0.001)  # so that the end of the connection is seen
    return taken


@pytest.mark.parametrize("key", [b"", BEARER], ids=["without a key", "with a key"])
@pytest.mark.parametrize(
    ("begin", "block"),
    [
        (b"0\r\n", b"a: b\r\n" * 10_000),
        (b"0\r\na: ", b"b" * 60_000),
        (b"1;a=", b"b" * 60_000),
    ],
    ids=["many trailers", "one trailer", "a chunk's extension"],
)
def test_what_stands_beside_a_body_has_an_end(engine, key, begin, block):
    with (
        live(engine, api_key=(KEY,)) as url,
        contextlib.closing(connect(url)) as connection,
    ):
        connection.sendall(CHUNKED + key + b"\r\n" + begin)
        assert swallowed(connection, block) < FEW


def test_trailers_are_no_headers(engine):
    """A key behind the body opens nothing, and an answer has one id."""
    with live(engine, api_key=(KEY,)) as url:
        sent = CHUNKED + b"Connection: close\r\n\r\n0\r\n" + BEARER + b"\r\n"
        assert answer_to(url, sent).startswith(b"HTTP/1.1 401 ")
        trailer = b"2\r\n{}\r\n0\r\nx-request-id: late\r\n\r\n"
        sent = CHUNKED + BEARER + b"Connection: close\r\n\r\n" + trailer
        answer = answer_to(url, sent)
        assert answer.startswith(b"HTTP/1.1 400 ")
        assert b"late" not in answer


def test_small_chunks_of_a_long_body_are_no_attack(engine):
    text = b'{"prompt": "a", "max_tokens": 1, "metadata": "' + b"x" * 70_000 + b'"}'
    chunks = b"".join(b"1\r\n" + text[i : i + 1] + b"\r\n" for i in range(len(text)))
    with live(engine) as url:
        answer = answer_to(url, CHUNKED + b"Connection: close\r\n\r\n" + chunks + b"0\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize(
    "head",
    [
        b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n",
        b"Transfer-Encoding: chunked\r\nContent-Length: 5\r\n",
        b"Content-Length: 5\r\nContent-Length: 6\r\n",
        b"Content-Length: +5\r\n",
        b"Transfer-Encoding: xchunked\r\n",
        b"Transfer-Encoding : chunked\r\n",
        b"X-Request-Id: a\rSet-Cookie: b\r\n",
        b"X-Request-Id: a\nSet-Cookie: b\r\n",
        b"X-Request-Id: a\x00b\r\n",
        b"X-Request-Id: a\r\n b\r\n",
    ],
)
def test_a_request_that_two_servers_could_read_differently_is_refused(engine, head):
    """Answered once, and the connection ends: nothing behind it is taken for a second request."""
    behind = b"0\r\n\r\nGET /ping HTTP/1.1\r\nHost: x\r\n\r\n"
    with live(engine) as url:
        answer = answer_to(
            url, b"POST /v1/completions HTTP/1.1\r\nHost: x\r\n" + head + b"\r\n" + behind
        )
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert answer.count(b"HTTP/1.1") == 1
    assert b"set-cookie" not in answer.lower()


def test_there_are_no_pages_of_documentation(engine):
    client = Client(engine)
    for path in ("/docs", "/redoc"):
        assert client.get(path).status_code == 404


@pytest.mark.parametrize("path", ["/v1/models/../../etc/passwd", "/v1/models/%2e%2e%2fconfig.json"])
def test_a_model_s_name_is_no_path(engine, path):
    assert Client(engine).get(path).status_code == 404
    assert Client(engine).complete(model="../" + path).status_code == 404


@pytest.mark.parametrize("name", ["cache_salt", "extra_key"])
def test_salts_are_short(engine, name):
    client = Client(engine)
    assert client.complete(**{name: "x" * 1_024}).status_code == 200
    for send in (client.complete, client.generate, client.chat):
        error = refused(send(**{name: "x" * 1_025}))
        assert error["param"] == name
        assert len(error["message"]) < 300


def test_who_has_no_key_is_not_told_why_the_engine_died():
    engine, runner = fake_engine()
    locked, open_ = Client(engine, api_key=(KEY,)), Client(engine)
    runner.broken = True
    assert open_.complete().status_code == 503
    assert "the fuse blew" in refused(open_.get("/health"), 503)["message"]
    assert "fuse" not in refused(locked.get("/health"), 503)["message"]
    asyncio.run(engine.close())


def test_no_label_of_a_metric_comes_from_a_request(engine):
    client = Client(engine, api_key=(KEY,))
    headers = {"Authorization": f"Bearer {KEY}"}

    def names() -> set[str]:
        text = client.request("GET", "/metrics", headers=headers).text
        return {line.rpartition(" ")[0] for line in text.splitlines()}

    before = names()
    body = {"prompt": "a", "max_tokens": 1, "cache_salt": "mark", "user": "mark"}
    marked = {**headers, "x-request-id": "mark", "user-agent": "mark"}
    assert client.request("POST", "/v1/completions", json=body, headers=marked).is_success
    client.request("GET", "/mark", headers=marked)
    assert names() == before


def test_server_info_tells_no_key(engine):
    client = Client(engine, api_key=(KEY,))
    headers = {"Authorization": f"Bearer {KEY}"}
    for path in ("/server_info", "/model_info", "/metrics", "/v1/loads", "/tokenizer_info"):
        answer = client.request("GET", path, headers=headers)
        assert isinstance(answer, httpx.Response)
        assert answer.status_code == 200
        assert KEY not in answer.text


@pytest.mark.parametrize(
    ("path", "begin", "item", "end"),
    [
        ("/v1/chat/completions", '{"messages": [', '{"role": "user", "content": ""}', "]}"),
        (
            "/v1/chat/completions",
            '{"messages": [{"role": "user", "content": [',
            '{"type": "text", "text": ""}',
            "]}]}",
        ),
        ("/v1/completions", '{"prompt": "a", "metadata": [', "{}", "]}"),
        ("/tokenize", '{"messages": [', '{"role": "user", "content": ""}', "]}"),
    ],
    ids=["messages", "parts", "what is not looked at", "tokenize"],
)
def test_half_a_million_objects_hold_up_nobody(engine, path, begin, item, end):
    content = begin + ",".join([item] * 500_000) + end
    began = time.process_time()
    client = Client(engine, max_request_bytes=2**25)
    error = refused(client.request("POST", path, content=content))
    assert "more than 32768 objects" in error["message"]
    assert time.process_time() - began < 1


Look = Callable[[Client, str, list[list[int]]], list[int]]


def read_token_by_token(
    client: Client, victim: str, attacker: str, look: Look, **fields: str
) -> list[int]:
    """What the attacker learns of a prompt of the victim's, one request for each token: all tokens
    that may come next are asked at once, and the answers say how much of each was cached.
    """
    client.request("POST", "/flush_cache", headers=bearer(victim))
    secret = {"input_ids": SECRET, "sampling_params": {"max_new_tokens": 1}, **fields}
    ask(client, victim, "/generate", secret)
    known: list[int] = []
    for _ in SECRET[:-1]:
        # The 0 is never a guess: what was asked before is in the cache too.
        guesses = [[*known, token, 0] for token in range(1, 97)]
        cached = look(client, attacker, guesses)
        hits = [guess[-2] for guess, n in zip(guesses, cached, strict=True) if n > len(known)]
        if len(hits) != 1:
            return known
        known += hits
    return known


def by_sending(client: Client, key: str, guesses: list[list[int]]) -> list[int]:
    """How much of each prompt was cached when it was sent."""
    body = {"input_ids": guesses, "sampling_params": {"max_new_tokens": 0}}
    return [each["meta_info"]["cached_tokens"] for each in ask(client, key, "/generate", body)]


def by_asking_why(client: Client, key: str, guesses: list[list[int]]) -> list[int]:
    """The same, without sending them."""
    told = ask(client, key, "/cache/explain", {"prompt": guesses})
    return [report["cached_tokens"]["device"] for report in told["reports"]]


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


def ask(client: Client, key: str, path: str, body: dict[str, object]) -> Any:
    answer = client.request("POST", path, json=body, headers=bearer(key))
    assert answer.status_code == 200, answer.text
    return answer.json()


@pytest.mark.slow
@pytest.mark.parametrize("look", [by_sending, by_asking_why])
def test_whoever_shares_a_cache_can_read_it(engine, look):
    """As the manual says: this is what --isolate-by-key and cache_salt are there for."""
    keys = (KEY, "sk-second")
    shared = Client(engine, api_key=keys)
    assert read_token_by_token(shared, *keys, look) == SECRET[:-1]
    assert read_token_by_token(shared, *keys, look, cache_salt="the victim's own") == []
    assert read_token_by_token(Client(engine, api_key=keys, isolate_by_key=True), *keys, look) == []


def tree_of(client: Client, key: str) -> dict[str, Any]:
    return client.request("GET", "/cache/tree", headers=bearer(key)).json()


def test_asking_why_leaves_no_trace(engine):
    client = Client(engine, api_key=(KEY,))
    ask(client, KEY, "/v1/completions", {"prompt": SECRET, "max_tokens": 1})
    before = tree_of(client, KEY)
    ask(client, KEY, "/cache/explain", {"prompt": [SECRET, [*SECRET[:4], 9, 9]]})
    assert tree_of(client, KEY) == before


def test_isolated_keys_see_of_others_in_the_tree_only_numbers_of_the_pool(engine):
    client = Client(engine, api_key=(KEY, "sk-second"), isolate_by_key=True)
    ask(client, KEY, "/v1/completions", {"prompt": SECRET, "max_tokens": 1})
    before = tree_of(client, KEY)
    ask(client, "sk-second", "/v1/completions", {"prompt": SECRET, "max_tokens": 1})
    after = tree_of(client, KEY)
    assert after["totals"] != before["totals"]
    pool = {name: after[name] for name in ("totals", "version", "uses")}
    assert {**before, **pool} == after


def test_every_route_of_the_api_needs_a_key(engine):
    client = Client(engine, api_key=(KEY,))
    for route in API_ROUTES:
        for method in route.methods:
            answer = client.request(method, route.path_format)
            assert (answer.status_code == 401) == (route.path_format != "/health"), route
