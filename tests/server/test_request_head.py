"""Over real sockets: heads of requests that are rare, or meant to be read in two ways."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import socket
import time
from collections.abc import Iterator

import pytest

from tests.server_support import fake_engine, idle_and_whole, live, until

KEY = "sk-first"
HOST = b"Host: x\r\n"
BODY = b'{"prompt": "a", "max_tokens": 1}'
LENGTH = b"Content-Length: %d\r\n" % len(BODY)
CHUNKED = b"Transfer-Encoding: chunked\r\n"
CHUNKS = b"%x\r\n%s\r\n0\r\n\r\n" % (len(BODY), BODY)
POST = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer sk-first\r\n"
GET = b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n"
# As curl --http2, Java's HttpClient and Ktor send it to a server that they do not know.
H2C = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\n"
WEBSOCKET = b"Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    engine, _ = fake_engine()
    with live(engine, api_key=(KEY,), keep_alive_timeout=1, header_timeout=1) as at:
        yield at
        assert until(lambda: idle_and_whole(engine))
    asyncio.run(engine.close())


@pytest.fixture(autouse=True)
def no_tracebacks(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    yield
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []


def answers(url: str, *parts: bytes, count: int) -> list[int]:
    """The statuses of the answers: until there are `count`, and no more in the time after."""
    host, port = url.removeprefix("http://").split(":")
    found = b""
    with contextlib.closing(socket.create_connection((host, int(port)), timeout=60)) as connection:
        for place, part in enumerate(parts):
            time.sleep(0.02 if place else 0)  # a packet of its own
            connection.sendall(part)
        with contextlib.suppress(TimeoutError, ConnectionError):
            while chunk := connection.recv(65536):
                found += chunk
                if len(re.findall(rb"HTTP/1\.1 [2-5]", found)) >= count:
                    connection.settimeout(0.1)
    return [int(status) for status in re.findall(rb"HTTP/1\.1 (\d+) ", found)]


@pytest.mark.parametrize(
    "parts",
    [
        [POST + H2C + LENGTH + b"\r\n" + BODY],
        [POST + H2C + LENGTH + b"\r\n", BODY],
        [POST + H2C + LENGTH + b"\r\n" + BODY[:9], BODY[9:]],
        [POST + H2C + CHUNKED + b"\r\n", CHUNKS],
        [POST + H2C + CHUNKED + b"\r\n" + CHUNKS],
        [POST + WEBSOCKET + LENGTH + b"\r\n", BODY],
        [POST + b"Connection: close, Upgrade\r\nUpgrade: h2c\r\n" + LENGTH + b"\r\n", BODY],
        [POST + b"Expect: 100-continue\r\n" + H2C + LENGTH + b"\r\n", BODY],
        [POST.replace(b"1.1", b"1.0") + H2C + LENGTH + b"\r\n", BODY],
        [GET[:-2] + WEBSOCKET + b"\r\n"],
        [GET[:-2] + H2C + b"\r\n"],
    ],
)
def test_an_offer_to_upgrade_is_passed_over(url: str, parts: list[bytes]) -> None:
    assert [status for status in answers(url, *parts, count=1) if status != 100] == [200]


@pytest.mark.parametrize("kind", [H2C, WEBSOCKET])
def test_the_body_of_an_offer_to_upgrade_is_no_request(url: str, kind: bytes) -> None:
    """A proxy has seen one request, and lets nobody without a key at the second one."""
    head = POST + kind + b"Content-Length: %d\r\n\r\n" % len(GET)
    assert answers(url, head, GET, count=1) == [400]
    assert answers(url, head + GET, count=1) == [400]
    assert answers(url, head + GET + GET, count=2) == [400, 200]
    assert answers(url, POST + kind + b"Content-Length: 0\r\n\r\n" + GET, count=2) == [400, 200]


@pytest.mark.slow
def test_thousands_of_offers_in_one_packet(url: str) -> None:
    offer = GET[:-2] + b"Connection: Upgrade\r\nUpgrade: a\r\n\r\n"
    assert answers(url, offer * 2000, count=2000) == [200] * 2000


def target(text: bytes, method: bytes = b"GET") -> bytes:
    return b"%s %s HTTP/1.1\r\n%s\r\n" % (method, text, HOST)


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (target(b"a.b:80", b"CONNECT"), 405),
        (target(b"/health", b"CONNECT"), 405),
        (target(b"/" + b"a" * 70_000), 414),
        (target(b"/" + b"a" * 65_530), 431),
        (target(b"/" + b"a" * 60_000), 401),
        (target(b"http://x/health"), 200),
        (target(b"http://x"), 307),
        (target(b"http://x?a"), 307),
        (target(b"http://x", b"OPTIONS"), 405),
        (target(b"*", b"OPTIONS"), 404),
        (target(b"*"), 401),
        (target(b"http://u:p@x:99999/health"), 400),
        (target(b"javascript:alert(1)"), 400),
        (target(b"a.b:80"), 400),
        (target(b"?a"), 400),
        (target(b"/h\xe9alth"), 400),
        (target(b"/%00"), 401),
        (target(b"/%zz%ff"), 401),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400),
        (GET.replace(b"HTTP/1.1", b"HTTP/2.0"), 505),
        (b"GET /health\r\n\r\n", 505),
        (GET.replace(b"HTTP/1.1", b"HTTP/1.2"), 400),
        (GET[:-2] + HOST + b"\r\n", 400),
        (GET[:-2] + b"X: " + b"a" * 70_000 + b"\r\n\r\n", 431),
        (GET[:-2] + b"X: a\r\n" * 1_500 + b"\r\n", 431),
        (POST + LENGTH + b"X: " + b"a" * 70_000 + b"\r\n\r\n" + BODY, 431),
        (POST + b"Transfer-Encoding: gzip, chunked\r\n\r\n" + CHUNKS, 400),
        (POST + b"Transfer-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n\r\n" + CHUNKS, 400),
        (POST + b"Transfer-Encoding: chunked;q=1\r\n\r\n" + CHUNKS, 400),
        (POST + b"Transfer-Encoding: chunked, chunked\r\n\r\n" + CHUNKS, 400),
        (POST.replace(b"1.1", b"1.0") + CHUNKED + b"\r\n" + CHUNKS, 400),
        (POST + b"Transfer-Encoding: \tChunked \r\n\r\n" + CHUNKS, 200),
    ],
)
def test_each_is_answered_once(url: str, sent: bytes, status: int) -> None:
    assert answers(url, sent, count=1) == [status]


def test_an_old_client_is_not_told_to_go_on(url: str) -> None:
    old = POST.replace(b"1.1", b"1.0") + LENGTH + b"Expect: 100-continue\r\n\r\n"
    assert answers(url, old, BODY, count=1) == [200]


def test_what_is_no_request_is_answered_behind_the_one_before(url: str) -> None:
    """In its middle, or before it, it would be taken for that one's answer."""
    assert answers(url, POST + LENGTH + b"\r\n" + BODY + b"\x00garbage", count=2) == [200, 400]
    assert answers(url, POST + LENGTH + b"\r\n" + BODY + b"\x00", GET, count=2) == [200, 400]
    assert answers(url, GET + POST + CHUNKED + b"\r\nx\r\n", count=2)[:1] in ([200], [])


@pytest.mark.slow
@pytest.mark.parametrize("kept", [b"\r\n", b"\r\n\r\n"])
def test_ends_of_lines_hold_no_connection(url: str, kept: bytes) -> None:
    host, port = url.removeprefix("http://").split(":")
    with contextlib.closing(socket.create_connection((host, int(port)), timeout=60)) as connection:
        connection.sendall(GET + kept)
        while connection.recv(65536):
            connection.sendall(kept)
