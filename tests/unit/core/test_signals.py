"""A process that takes a while to end is not torn apart by two signals that mean the same."""

from __future__ import annotations

import signal
import subprocess
import sys

PROGRAM = """
import signal
from radixlm.core.signals import SECONDS_AS_ONE, EndOnce

now = 0.0
EndOnce(lambda: now)
try:
    signal.raise_signal(signal.SIGINT)
except KeyboardInterrupt:
    signal.raise_signal(signal.SIGINT)
    now += SECONDS_AS_ONE
    signal.raise_signal(signal.SIGTERM)
    print("ends in order", flush=True)
    now += 0.1
    signal.raise_signal(signal.SIGINT)
print("was not ended")
"""


def test_the_first_ends_in_order_and_a_late_one_at_once() -> None:
    done = subprocess.run(  # noqa: S603
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False
    )
    assert (done.stdout, done.stderr) == ("ends in order\n", "")
    assert done.returncode == -signal.SIGINT
