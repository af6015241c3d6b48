"""The threads that compiled workers run on."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from radixlm.assembly.resolve import processors_seen

LEAVES = """
import os, time
import torch
from radixlm.kernels.openmp import team

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


DOZES_WITH_MORE = """
import ctypes, time
import torch
from radixlm.kernels.openmp import team

torch.set_num_threads(ctypes.CDLL(None).omp_get_num_procs() + 3)
team().doze(True)
time.sleep(0.5)
team().doze(False)
print(int(torch.ones(1 << 20).sum()))
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="OpenMP's own threads")
def test_with_more_threads_than_processors_it_dozes_as_well() -> None:
    """`--threads 8` on four, or processors that were taken away later (taskset -p)."""
    run = subprocess.run(  # noqa: S603
        [sys.executable, "-c", DOZES_WITH_MORE], capture_output=True, text=True, timeout=120
    )
    assert (run.stdout, run.stderr) == (f"{1 << 20}\n", "")


DOZES = """
import os, time
import torch
from radixlm.kernels.openmp import team

def threads():
    return len(os.listdir("/proc/self/task"))

def until(count):
    deadline = time.monotonic() + 20
    while threads() != count and time.monotonic() < deadline:
        time.sleep(0.01)

def seconds_spun():
    torch.ones(1 << 22).add_(1)
    began = time.process_time()
    time.sleep(0.5)
    return time.process_time() - began

torch.set_num_threads(len(os.sched_getaffinity(0)))
awake, before = seconds_spun(), threads()
team().doze(True)
team().doze(True)
until(before + 2)
during, dozing = threads(), seconds_spun()
team().doze(False)
until(before)
print(awake, dozing, seconds_spun(), during - before, threads() - before)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="counts threads in /proc")
@pytest.mark.skipif(processors_seen() == 1, reason="one thread waits for nobody")
def test_a_dozing_team_waits_asleep_until_it_is_called_back() -> None:
    spinning = {**os.environ, "GOMP_SPINCOUNT": "infinite"}
    spinning.pop("OMP_WAIT_POLICY", None)
    run = subprocess.run(  # noqa: S603
        [sys.executable, "-c", DOZES],
        env=spinning,
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    awake, dozing, again, more, left = map(float, run.stdout.split())
    assert (more, left) == (2, 0)  # one that holds, one that is held
    assert dozing < awake / 3
    assert dozing < again / 3
