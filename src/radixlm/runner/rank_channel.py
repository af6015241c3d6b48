"""Messages between rank 0 and another rank, by which each also knows that the other is alive."""

from __future__ import annotations

import json
import os
import select
import socket
import struct
import threading
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

_HEAD = struct.Struct("<q")
BEAT_SECONDS = 1.0


class Channel:
    """Messages of bytes over a pair of sockets. Nothing is ever unpickled."""

    def __init__(self, own: socket.socket) -> None:
        self._socket = own

    def send(self, message: bytes) -> None:
        """Raises OSError where the other side is gone."""
        self._socket.sendall(_HEAD.pack(len(message)) + message)

    def receive(self) -> bytes:
        """Waits for one. Raises EOFError or OSError where the other side is gone."""
        (size,) = _HEAD.unpack(self._exactly(_HEAD.size))
        return self._exactly(size)

    def say(self, **values: Any) -> None:
        """Send an object of JSON."""
        self.send(json.dumps(values).encode())

    def heard(self) -> Mapping[str, Any]:
        """Receive what the other side has said."""
        values: Mapping[str, Any] = json.loads(self.receive())
        return values

    def close(self) -> None:
        self._socket.close()

    def _exactly(self, size: int) -> bytes:
        made = bytearray(size)
        view = memoryview(made)
        while view:
            count = self._socket.recv_into(view)
            if not count:
                raise EOFError
            view = view[count:]
        return bytes(made)


def beat(own: socket.socket) -> None:
    """Say now, and every second from a thread of its own, that this process lives; and end it at
    once when the other side is gone: whatever the main thread waits for would not come.
    """
    own.setblocking(False)
    with suppress(OSError):  # at once: who has never beaten is taken to be starting
        own.send(b".")

    def live() -> None:
        while not select.select([own], [], [], BEAT_SECONDS)[0]:  # nothing is ever said to it
            try:
                own.send(b".")
            except BlockingIOError:  # the other side is stopped, and has been for long
                continue
            except OSError:
                break
        os._exit(1)

    threading.Thread(target=live, name="radixlm-beat", daemon=True).start()
