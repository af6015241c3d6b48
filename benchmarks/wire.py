"""HTTP/1.1 over plain asyncio streams, for clients that must cost little and can leave at any byte.

The clients of these benchmarks share the machine with the server that they measure; this takes a
fraction of the time of a full client, and whoever holds the connection can cut it where it likes.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass, field
from typing import Any

_LONGEST_LINE = 2**20
# The server closes a connection that has been idle for 5 s.
_KEPT_SECONDS = 3.0


class BrokenAnswerError(Exception):
    """The server closed the connection, or sent something that is not HTTP."""


@dataclass(slots=True)
class Answer:
    """What came back. Times in seconds since the request was begun.

    first: when the first byte of the body came; None when there was none. pieces: chunks of it.
    """

    status: int
    headers: dict[str, str]
    body: bytearray = field(default_factory=bytearray)
    pieces: int = 0
    first: float | None = None
    total: float = 0.0

    def json(self) -> Any:
        """The body, which is one JSON value."""
        return json.loads(self.body)


class Connection:
    """One connection to the server: a request at a time, any number of them."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def open(cls, port: int) -> Connection:
        """Connect to this machine's `port`. Raises OSError."""
        return cls(*await asyncio.open_connection("127.0.0.1", port, limit=_LONGEST_LINE))

    def send(self, data: bytes) -> None:
        """Send bytes as they are; `request_bytes` makes whole requests."""
        self._writer.write(data)

    async def head(self) -> Answer:
        """Wait for status and headers. Raises BrokenAnswerError."""
        try:
            lines = (await self._reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
            status = int(lines[0].split(" ")[1])
        except (asyncio.IncompleteReadError, OSError, ValueError, IndexError) as error:
            raise BrokenAnswerError(f"no head: {type(error).__name__}") from None
        pairs = (line.partition(":") for line in lines[1:] if line)
        return Answer(status, {name.lower(): value.strip() for name, _, value in pairs})

    async def pieces(self, answer: Answer) -> AsyncGenerator[bytes, None]:
        """The chunks of the body as they come. Raises BrokenAnswerError."""
        try:
            if answer.headers.get("transfer-encoding") != "chunked":
                size = int(answer.headers.get("content-length", "0"))
                if size:
                    yield await self._reader.readexactly(size)
                return
            while size := int(await self._reader.readuntil(b"\r\n"), 16):
                yield (await self._reader.readexactly(size + 2))[:-2]
            await self._reader.readexactly(2)
        except (asyncio.IncompleteReadError, OSError, ValueError) as error:
            raise BrokenAnswerError(f"no whole body: {type(error).__name__}") from None

    async def ask(self, request: bytes) -> Answer:
        """Send a request and wait for its whole answer. Raises BrokenAnswerError."""
        begun = time.perf_counter()
        self.send(request)
        answer = await self.head()
        async for piece in self.pieces(answer):
            if answer.first is None:
                answer.first = time.perf_counter() - begun
            answer.pieces += 1
            answer.body += piece
        answer.total = time.perf_counter() - begun
        return answer

    async def close(self) -> None:
        """Leave, whatever is under way."""
        self._writer.close()
        with contextlib.suppress(OSError):
            await self._writer.wait_closed()


class Pool:
    """Connections that are kept for the next request, as clients keep them."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._idle: list[tuple[float, Connection]] = []

    async def ask(self, request: bytes) -> Answer:
        """Send a request and wait for its whole answer. Raises BrokenAnswerError, OSError."""
        connection = await self._take()
        try:
            answer = await connection.ask(request)
        except BaseException:
            await connection.close()
            raise
        self._idle.append((time.monotonic(), connection))
        return answer

    async def _take(self) -> Connection:
        """The one that was used last, unless that is so long ago that the server may close it."""
        while self._idle:
            since, connection = self._idle.pop()
            if time.monotonic() - since < _KEPT_SECONDS:
                return connection
            await connection.close()
        return await Connection.open(self._port)

    async def close(self) -> None:
        """Close what is idle."""
        while self._idle:
            await self._idle.pop()[1].close()


def request_bytes(
    method: str,
    path: str,
    body: Mapping[str, Any] | bytes | None = None,
    *,
    key: str | None = None,
) -> bytes:
    """A whole request. key: an API key."""
    data = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
    head = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(data)}\r\n"
    if data:
        head += "Content-Type: application/json\r\n"
    if key is not None:
        head += f"Authorization: Bearer {key}\r\n"
    return head.encode() + b"\r\n" + data
