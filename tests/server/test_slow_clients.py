"""Over real sockets: clients that send in drops, too much, or half of what they should."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import time
from collections.abc import Iterator

import httpx
import pytest

from tests.server_support import fake_engine, idle_and_whole, live, until

BODY = json.dumps({"prompt": "a", "max_tokens": 2}).encode()
HEAD = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(BODY)}\r\n\r\n".encode()
LONG = json.dumps({"prompt": "a", "max_tokens": 1500, "stream": True}).encode()


@pytest.fixture(scope="module")
def slow():
    """An engine whose step takes a while."""
    engine, _ = fake_engine(seconds=0.02)
    yield engine
    asyncio.run(engine.close())


@pytest.fixture(autouse=True)
def unharmed(slow):
    """After each of them no slot is lost."""
    yield
    assert until(lambda: idle_and_whole(slow))


@contextlib.contextmanager
def connected(url: str) -> Iterator[socket.socket]:
    """A connection; when it is left the server still answers others."""
    host, port = url.removeprefix("http://").split(":")
    with contextlib.closing(socket.create_connection((host, int(port)), timeout=60)) as connection:
        yield connection
    assert httpx.post(f"{url}/v1/completions", content=BODY).status_code == 200


def drip(connection: socket.socket, data: bytes, pause: float = 0.05) -> bytes:
    """Send it a byte at a time until something comes back; what that is, to its end."""
    connection.settimeout(pause)
    for place in range(len(data)):
        try:
            connection.sendall(data[place : place + 1])
            answer = connection.recv(4096)
            break
        except TimeoutError:
            continue
        except ConnectionError:
            return b""
    else:
        pytest.fail("the server took it all")
    connection.settimeout(60)
    return answer + rest(connection)


def rest(connection: socket.socket) -> bytes:
    """What comes until the server closes."""
    answer = b""
    with contextlib.suppress(ConnectionError):
        while chunk := connection.recv(65536):
            answer += chunk
    return answer


def one_answer(connection: socket.socket) -> bytes:
    """What comes until an answer is whole; the connection may go on."""
    connection.settimeout(60)
    answer = b""
    while True:
        answer += connection.recv(65536)
        head, found, body = answer.partition(b"\r\n\r\n")
        if found and len(body) >= int(head.lower().split(b"content-length: ")[1].split()[0]):
            return answer


def error_of(answer: bytes, status: int) -> dict:
    head, body = answer.split(b"\r\n\r\n", 1)
    assert head.startswith(f"HTTP/1.1 {status} ".encode()), head
    assert b"connection: close" in head.lower()
    error = json.loads(body)["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    return error


@pytest.mark.slow
def test_headers_in_drops_may_not_take_longer(slow):
    with live(slow, header_timeout=0.4) as url, connected(url) as connection:
        error = error_of(drip(connection, HEAD[:-2] + b"X-Drop: " + b"x" * 1000), 408)
    assert error["code"] == "header_timeout"
    assert "--header-timeout 0.4 s" in error["message"]


def test_who_says_nothing_is_not_waited_for(slow):
    with live(slow, header_timeout=0.3) as url, connected(url) as connection:
        assert rest(connection) == b""


@pytest.mark.slow
def test_a_second_request_has_its_own_time(slow):
    with live(slow, header_timeout=0.4) as url, connected(url) as connection:
        for _ in range(2):
            connection.sendall(HEAD + BODY)
            assert one_answer(connection).startswith(b"HTTP/1.1 200 ")
            time.sleep(0.3)
        error_of(drip(connection, HEAD[:-2] + b"X-Drop: " + b"x" * 1000), 408)


@pytest.mark.slow
def test_answers_and_bodies_may_take_longer_than_headers(slow):
    body = json.dumps({"prompt": "a", "max_tokens": 20}).encode()
    head = HEAD.replace(str(len(BODY)).encode(), str(len(body)).encode())
    with live(slow, header_timeout=0.3, body_timeout=60) as url, connected(url) as connection:
        connection.sendall(head + body[:5])
        time.sleep(0.4)
        connection.sendall(body[5:])
        assert one_answer(connection).startswith(b"HTTP/1.1 200 ")


@pytest.mark.slow
def test_a_head_that_begins_while_another_is_answered_waits_with_it(slow):
    body = json.dumps({"prompt": "a", "max_tokens": 20}).encode()
    head = HEAD.replace(str(len(BODY)).encode(), str(len(body)).encode())
    with live(slow, header_timeout=0.3) as url, connected(url) as connection:
        connection.sendall(head + body + HEAD[:20])
        answer = rest(connection)
    assert answer.startswith(b"HTTP/1.1 200 ")
    assert answer.count(b"HTTP/1.1 408 ") == 1


def test_requests_in_one_packet_are_both_answered(slow):
    with live(slow, header_timeout=0.3) as url, connected(url) as connection:
        connection.sendall((HEAD + BODY) * 2)
        connection.settimeout(60)
        answer = b""
        while answer.count(b'"usage"') < 2:
            answer += connection.recv(65536)
    assert answer.count(b"HTTP/1.1 200 ") == 2


@pytest.mark.slow
def test_without_a_limit_slow_headers_are_waited_for(slow):
    with live(slow, header_timeout=0) as url, connected(url) as connection:
        connection.sendall(HEAD[:30])
        connection.settimeout(0.5)
        with pytest.raises(TimeoutError):
            connection.recv(1)
        connection.settimeout(60)
        connection.sendall(HEAD[30:] + BODY)
        assert connection.recv(100).startswith(b"HTTP/1.1 200 ")


def test_headers_without_end_are_a_431(slow):
    with live(slow) as url, connected(url) as connection:
        with contextlib.suppress(ConnectionError):
            connection.sendall(HEAD[:-2])
            for _ in range(1000):
                connection.sendall(b"X-More: " + b"x" * 1000 + b"\r\n")
        # What was sent on meanwhile may have made the answer be lost.
        answer = rest(connection)
        assert answer == b"" or "65536 bytes" in error_of(answer, 431)["message"]


def test_long_headers_in_two_pieces_are_told(slow):
    with live(slow) as url, connected(url) as connection:
        connection.sendall(HEAD[:-2] + b"X-More: " + b"x" * 40_000)
        time.sleep(0.2)
        connection.sendall(b"x" * 40_000)
        assert "65536 bytes" in error_of(rest(connection), 431)["message"]


def test_what_is_no_http_is_a_400_of_the_usual_shape(slow):
    with live(slow) as url, connected(url) as connection:
        connection.sendall(b"\x16\x03\x01\x02\x00 hello\r\n\r\n")
        assert error_of(rest(connection), 400)["type"] == "invalid_request_error"


@pytest.mark.parametrize("chunked", [False, True])
def test_a_hundred_megabytes_are_refused_as_soon_as_they_are_known(slow, chunked):
    size = 100 * 2**20
    length = b"Transfer-Encoding: chunked" if chunked else f"Content-Length: {size}".encode()
    head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\n" + length + b"\r\n\r\n"
    piece = b" " * 2**20
    sent = 0
    flags = {"header_timeout": 1.0, "max_request_bytes": 2 * 2**20}
    with live(slow, **flags) as url, connected(url) as connection:
        connection.sendall(head)
        connection.settimeout(0.01)
        answer = b""
        while sent < size and not answer:
            connection.settimeout(60)
            connection.sendall(b"%x\r\n%s\r\n" % (len(piece), piece) if chunked else piece)
            sent += len(piece)
            connection.settimeout(0.05)
            with contextlib.suppress(TimeoutError):
                answer = connection.recv(65536)
    assert answer.startswith(b"HTTP/1.1 413 ")
    assert sent < 10 * 2**20


@pytest.mark.slow
def test_a_connection_is_kept_for_the_next_request_as_long_as_one_says(slow):
    """Many clients keep theirs for five seconds: ended then, they would ask into the end."""
    head = b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n"
    with live(slow) as url, connected(url) as connection:
        for pause in (5.5, 0):
            connection.sendall(head)
            assert one_answer(connection).startswith(b"HTTP/1.1 200 ")
            time.sleep(pause)
    with live(slow, keep_alive_timeout=1) as url, connected(url) as connection:
        connection.sendall(head)
        assert one_answer(connection).startswith(b"HTTP/1.1 200 ")


@pytest.mark.slow
def test_who_goes_on_sending_after_the_answer_is_cut_off(slow):
    head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 100000000000\r\n\r\n"
    with live(slow, header_timeout=0.4) as url, connected(url) as connection:
        connection.sendall(head)
        assert one_answer(connection).startswith(b"HTTP/1.1 413 ")
        assert drip(connection, b" " * 200) == b""


@pytest.mark.parametrize("sent", [HEAD[:20], HEAD[:-2], HEAD, HEAD + BODY[:5]])
def test_a_half_closed_connection_is_one_that_was_left(slow, sent):
    with live(slow) as url, connected(url) as connection:
        connection.sendall(sent)
        connection.shutdown(socket.SHUT_WR)
        assert rest(connection) == b""
    assert until(lambda: idle_and_whole(slow))


def test_a_request_of_a_half_closed_connection_is_aborted(slow):
    """A client that closes altogether looks just the same until something is written to it."""
    head = HEAD.replace(str(len(BODY)).encode(), str(len(LONG)).encode())
    aborted = slow.stats().requests_aborted
    with live(slow) as url, connected(url) as connection:
        connection.sendall(head + LONG)
        assert connection.recv(100)
        connection.shutdown(socket.SHUT_WR)
        assert until(lambda: slow.stats().requests_aborted == aborted + 1)
        assert until(lambda: idle_and_whole(slow))
