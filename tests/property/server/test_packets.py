"""However a stream of requests is cut into packets, the same requests are found in it."""

from __future__ import annotations

import asyncio
import logging
from itertools import pairwise
from typing import Any

import pytest
import uvicorn
from hypothesis import given, settings
from hypothesis import strategies as st
from starlette.types import Receive, Scope, Send
from uvicorn.server import ServerState

from radixlm.server.http.connection import connection_with

Found = list[tuple[str, str, bytes]]

TARGETS = [b"/", b"/a?b=c", b"*", b"http://x", b"http://x/a", b"a.b:80", b"/%00", b"/\xe9"]
FIELDS = [
    b"Host: x",
    b"Connection: Upgrade",
    b"Connection: close, Upgrade",
    b"Connection: close",
    b"Upgrade: h2c",
    b"Upgrade: websocket",
    b"Expect: 100-continue",
    b"Transfer-Encoding: chunked",
    b"Transfer-Encoding: gzip, chunked",
    b"Content-Length: 0",
    b"Content-Length: 5",
    b"Content-Length: 37",
    b"X: " + b"x" * 300,
]
BODIES = [b"", b"hello", b"5\r\nhello\r\n0\r\n\r\n", b"0\r\nx-trailer: a\r\n\r\n", b"\r\n", b"\x00"]
BODIES += [b"GET /smuggled HTTP/1.1\r\nHost: x\r\n\r\n"]

heads = st.builds(
    lambda method, target, version, fields: b"\r\n".join(
        [b"%s %s HTTP/%s" % (method, target, version), *fields, b"", b""]
    ),
    st.sampled_from([b"GET", b"POST", b"HEAD", b"OPTIONS", b"CONNECT", b"PRI"]),
    st.sampled_from(TARGETS),
    st.sampled_from([b"1.1", b"1.0", b"2.0", b"0.9"]),
    st.lists(st.sampled_from(FIELDS), max_size=4),
)
streams = st.lists(st.one_of(heads, st.sampled_from(BODIES)), min_size=1, max_size=6).map(b"".join)


class Wire(asyncio.Transport):
    """A transport that goes nowhere."""

    def __init__(self) -> None:
        super().__init__()
        self.closed = False
        self.sent = b""

    def write(self, data: Any) -> None:
        if not self.closed:
            self.sent += bytes(data)

    def close(self) -> None:
        self.closed = True

    def is_closing(self) -> bool:
        return self.closed

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...


async def found_in(packets: list[bytes]) -> tuple[Found, list[bytes]]:
    """The requests that reach the application, and the first line of each answer."""
    found: Found = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        body, more = b"", True
        while more:
            message = await receive()
            body += message.get("body", b"")
            more = message.get("more_body", False)
            if message["type"] == "http.disconnect":
                return
        found.append((scope["method"], scope["path"], body))
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"."})

    config = uvicorn.Config(app, lifespan="off", ws="none", log_config=None, access_log=False)
    config.load()
    wire, connection = Wire(), connection_with(0)(config, ServerState(), {})
    connection.connection_made(wire)
    for packet in packets:
        if not wire.closed:
            connection.data_received(packet)
        for _ in range(40):  # until everything is answered that can be
            await asyncio.sleep(0)
    wire.close()
    connection.connection_lost(None)
    await asyncio.gather(*connection.tasks)
    lines = wire.sent.split(b"\r\n")
    return found, [line for line in lines if b"HTTP/1.1 " in line and b"100 Continue" not in line]


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture):
    yield
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []


@settings(deadline=None, max_examples=60)
@given(stream=streams, cuts=st.lists(st.integers(0, 400), max_size=6))
def test_packets_make_no_difference(stream: bytes, cuts: list[int]) -> None:
    places = sorted({0, len(stream), *(cut for cut in cuts if cut < len(stream))})
    packets = [stream[start:stop] for start, stop in pairwise(places)]
    whole, in_pieces = asyncio.run(found_in([stream])), asyncio.run(found_in(packets))
    assert in_pieces == whole
