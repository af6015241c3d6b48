"""A `radixlm serve` of our own, and what can be seen of it from outside: memory, counters, log."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from radixlm.testing.ports import free_port

PATIENCE = 120.0
RADIXLM = str(Path(sys.executable).with_name("radixlm"))
_ALARMS = ("WARNING", "ERROR", "CRITICAL")


def memory(pid: int, name: str) -> int:
    """Bytes that /proc says: VmHWM is the largest resident memory so far, VmRSS what it is now."""
    status = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    found = re.search(rf"{name}:\s+(\d+) kB", status)
    return 1024 * int(found[1]) if found else 0


@dataclass(frozen=True, slots=True)
class Served:
    """A server that answers. seconds: from starting its process to its first 200."""

    port: int
    pid: int
    seconds: float
    log: Path
    key: str | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def state(self) -> dict[str, Any]:
        """The engine in numbers, as /server_info has them."""
        headers = {"Authorization": f"Bearer {self.key}"} if self.key else {}
        answer = httpx.get(f"{self.url}/server_info", headers=headers, timeout=PATIENCE)
        state: dict[str, Any] = answer.raise_for_status().json()["internal_states"][0]
        return state

    def idle_state(self, patience: float) -> dict[str, Any]:
        """The same once nothing is under way, or after `patience` seconds as it is then."""
        deadline = time.monotonic() + patience
        state = self.state()
        while (state["running"] or state["waiting"]) and time.monotonic() < deadline:
            time.sleep(0.1)
            state = self.state()
        return state

    def open_files(self) -> int:
        """How many files and sockets the process holds."""
        return len(list(Path(f"/proc/{self.pid}/fd").iterdir()))

    def alarms(self) -> list[str]:
        """The lines of its log that are warnings or worse."""
        found = []
        for line in self.log.read_text(encoding="utf-8").splitlines():
            try:
                level = json.loads(line).get("level")
            except ValueError:
                level = "CRITICAL"  # not written by a logger: a crash
            if level in _ALARMS:
                found.append(line)
        return found


@contextmanager
def serving(
    *flags: str,
    key: str | None = None,
    launcher: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
) -> Iterator[Served]:
    """Start `radixlm serve` with these flags; end it when the block ends.

    key: an API key that its own questions are to carry. launcher: a command that takes the whole
    command as its arguments. environment: the server's, where it is not this process's.
    """
    port = free_port()
    command = [*launcher, RADIXLM, "serve", "--port", str(port), "--log-format", "json", *flags]
    with tempfile.TemporaryDirectory() as scratch:
        log = Path(scratch) / "log"
        began = time.perf_counter()
        with log.open("wb") as sink:
            process = subprocess.Popen(
                command, stdout=subprocess.DEVNULL, stderr=sink, env=environment
            )
        try:
            while not _answers(port):
                if process.poll() is not None or time.perf_counter() - began > PATIENCE:
                    raise SystemExit(f"{' '.join(command)}:\n{log.read_text(encoding='utf-8')}")
                time.sleep(0.01)
            yield Served(port, process.pid, time.perf_counter() - began, log, key)
        finally:
            process.send_signal(signal.SIGINT)
            process.wait(timeout=60)


def _answers(port: int) -> bool:
    try:
        return httpx.get(f"http://127.0.0.1:{port}/health", timeout=5).is_success
    except httpx.TransportError:
        return False


@dataclass(slots=True)
class Trace:
    """Resident memory over time. seconds: since the block began; mb: millions of bytes."""

    seconds: list[float] = field(default_factory=list)
    mb: list[float] = field(default_factory=list)

    def growth(self, begin: float = 0.2, window: float = 0.1) -> float:
        """MB from the share `begin` of the time to its end, each the median of a `window`."""
        count = len(self.mb)
        width = max(int(window * count), 1)
        start = int(begin * count)
        return median(self.mb[-width:]) - median(self.mb[start : start + width])


@contextmanager
def traced(served: Served, every: float = 0.5) -> Iterator[Trace]:
    """Sample the server's resident memory while the block runs."""
    trace, stop, began = Trace(), threading.Event(), time.monotonic()

    def sample() -> None:
        while not stop.is_set():
            trace.seconds.append(time.monotonic() - began)
            trace.mb.append(memory(served.pid, "VmRSS") / 1e6)
            stop.wait(every)

    thread = threading.Thread(target=sample)
    thread.start()
    try:
        yield trace
    finally:
        stop.set()
        thread.join()


def median(values: Sequence[float]) -> float:
    return quantile(values, 0.5)


def quantile(values: Sequence[float], share: float) -> float:
    """The value below which `share` of them lie; nan without any."""
    if not values:
        return float("nan")
    return sorted(values)[min(int(share * len(values)), len(values) - 1)]
