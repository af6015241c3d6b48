"""A running `radixlm deploy`, its client, and its processes."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

import httpx

from radixlm.testing.ports import free_port

REPLICA, ROUTER = "ray::ServeReplica:radixlm:replica", "ray::RouterActor"
INGRESS, PROXY = "ray::ServeReplica:radixlm:ingress", "ray::ProxyActor"
RANK = "radixlm.assembly.rank_process"  # of a replica with --tp-size
# As a script starts it in the background: SIGINT is ignored until it is asked for.
_START = """
import signal
signal.signal(signal.SIGINT, signal.SIG_IGN)
from radixlm.cli.start import main
main()
"""
_RADIXLM = (sys.executable, "-c", _START)
_SECONDS_TO_END = 180.0


class Deployed:
    """client: of its HTTP address."""

    def __init__(self, url: str, pid: int) -> None:
        self.client = httpx.Client(base_url=url, timeout=120)
        self._pid = pid

    def complete(self, prompt: str | list[str], **fields: Any) -> httpx.Response:
        """A greedy completion with its report."""
        body = {"prompt": prompt, "max_tokens": 12, "temperature": 0, "cache_report": True}
        return self.client.post("/v1/completions", json=body | fields)

    def replicas(self) -> dict[str, dict[str, Any]]:
        """The replicas that report, by name."""
        found = self.client.get("/router/replicas").json()["replicas"]
        return {each["replica"]: each for each in found if each["is_healthy"]}

    def pids(self, name: str) -> list[int]:
        """The processes whose titles have this in them."""
        parents, titles = {}, {}
        for folder in Path("/proc").iterdir():
            with suppress(OSError, ValueError):
                pid = int(folder.name)
                status = (folder / "status").read_text()
                parents[pid] = int(re.findall(r"PPid:\s+(\d+)", status)[0])
                titles[pid] = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()
        return [
            pid
            for pid, title in titles.items()
            if name in title and self._pid in _line(pid, parents)
        ]


def _line(pid: int, parents: dict[int, int]) -> Iterator[int]:
    while pid in parents:
        yield pid
        pid = parents[pid]


@contextmanager
def serving(command: str, *flags: str) -> Iterator[Deployed]:
    """command: `deploy`, or `serve`. On the demo model, unless flags say otherwise."""
    port = str(free_port())
    # Not a pipe: processes that outlive it a little would keep that open.
    with (
        tempfile.NamedTemporaryFile("r", encoding="utf-8") as said,
        Path(said.name).open("wb") as out,
    ):
        process = subprocess.Popen([*_RADIXLM, command, "--port", port, *flags], stdout=out)  # noqa: S603
        try:
            text = _heard(process, said)
            if "RadixLM serves" not in text:
                raise RuntimeError(f"radixlm {command} did not start: {text}")
            made = Deployed(f"http://127.0.0.1:{port}", process.pid)
            with made.client:
                yield made
        finally:
            process.send_signal(signal.SIGINT)
            try:
                process.wait(_SECONDS_TO_END)
            finally:
                process.kill()


def _heard(process: subprocess.Popen[bytes], said: IO[str]) -> str:
    """The lines that it prints until it is ready, or has ended."""
    text = ""
    while "RadixLM serves" not in text and process.poll() is None:
        time.sleep(0.1)
        text += said.read()
    return text


def until(holds: Callable[[], bool], seconds: float) -> float | None:
    """Wait until it holds; the seconds that took, None where it does not."""
    begun = time.monotonic()
    while time.monotonic() - begun < seconds:
        with suppress(httpx.HTTPError, KeyError, ValueError):
            if holds():
                return time.monotonic() - begun
        time.sleep(0.1)
    return None
