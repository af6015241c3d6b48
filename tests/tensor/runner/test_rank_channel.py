"""How a rank says that it lives."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import os
import socket
from radixlm.runner.rank_channel import beat

own, other = socket.socketpair()
beat(own)
other.setblocking(False)
print(other.recv(10), flush=True)
os._exit(0)
"""


@pytest.mark.slow
def test_a_rank_beats_at_once() -> None:
    """One that stops in its first second would be waited for as if it had not started yet."""
    done = subprocess.run(  # noqa: S603
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False
    )
    assert done.stdout.strip() == "b'.'", done.stderr
