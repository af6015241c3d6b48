"""The threads that compiled workers run on."""

from __future__ import annotations

import subprocess
import sys

import pytest

LEAVES = """
import os, time
import torch
from radixlm.attention.team import team

def threads():
    return len(os.listdir("/proc/self/task"))

torch.set_num_threads(3)
before = threads()
torch.ones(1 << 22).add_(1)
during = threads()
team().leave()
until = time.monotonic() + 20
while threads() > before and time.monotonic() < until:
    time.sleep(0.01)
left = threads()
torch.ones(1 << 22).add_(1)
print(before, during, left, threads())
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="counts threads in /proc")
def test_leaving_ends_the_callers_threads_until_it_computes_again() -> None:
    run = subprocess.run(  # noqa: S603
        [sys.executable, "-c", LEAVES], capture_output=True, text=True, timeout=120, check=True
    )
    before, during, left, again = map(int, run.stdout.split())
    assert (during - before, left - before, again - before) == (2, 0, 2)
