"""A server that refuses whatever it is asked, at the least cost: what asking alone takes.

Whoever asks shares the machine with the server that is measured. The same questions sent here
instead show how much of what they cost is the asking.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import cast

import uvloop

from benchmarks.served import PATIENCE
from radixlm.testing.ports import free_port, until_open

_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
_REFUSAL = b"HTTP/1.1 429 Too Many Requests\r\nRetry-After: 1\r\nContent-Length: 0\r\n\r\n"


class Refusing(asyncio.Protocol):
    """One connection: a refusal for each whole request."""

    def __init__(self) -> None:
        self._come = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's own class is no subclass

    def data_received(self, data: bytes) -> None:
        self._come += data
        while (size := _size(self._come)) is not None and len(self._come) >= size:
            self._come = self._come[size:]
            self._transport.write(_REFUSAL)


def _size(come: bytes) -> int | None:
    """Bytes of the request that `come` begins with; None while its head is not whole."""
    end = come.find(b"\r\n\r\n")
    if end < 0:
        return None
    length = _LENGTH.search(come, 0, end)
    return end + 4 + (int(length[1]) if length else 0)


@contextmanager
def wall() -> Iterator[int]:
    """A wall in a process of its own; gives its port."""
    port = free_port()
    process = multiprocessing.get_context("spawn").Process(target=_serve, args=(port,))
    process.start()
    try:
        until_open(port, PATIENCE)
        yield port
    finally:
        process.terminate()
        process.join()


def _serve(port: int) -> None:
    async def serve() -> None:
        server = await asyncio.get_running_loop().create_server(Refusing, "127.0.0.1", port)
        await server.serve_forever()

    uvloop.run(serve())
