"""Ports of this machine for servers that a test or a script starts."""

from __future__ import annotations

import socket
import time


def free_port() -> int:
    """Find a port that nothing listens at; another process may take it meanwhile."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


def until_open(port: int, seconds: float) -> None:
    """Wait until something listens at `port`. Raises TimeoutError after `seconds`."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=5).close()
        except OSError:
            time.sleep(0.01)
        else:
            return
    raise TimeoutError(f"nothing listens at port {port} after {seconds} s")
