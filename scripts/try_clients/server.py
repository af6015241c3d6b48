"""A server of our own, in a process of its own, and what it says about its slots."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

KEY = "open-sesame"
MODEL = "demo"
_READY = re.compile(r"serves .* on (http://\S+)\n")
_STATUS = re.compile(r'(?<!\\)"status": (\d)')  # not one that a path holds
_START_SECONDS = 120
_OURS = "asked-by-make-clients"
_IDLE_SECONDS = 30
_TAIL = 1500


@dataclass(frozen=True, slots=True)
class Use:
    """What was asked of a server since it started, but by this script."""

    requests: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0

    def since(self, before: Use) -> Use:
        return Use(
            self.requests - before.requests,
            self.prompt_tokens - before.prompt_tokens,
            self.cached_tokens - before.cached_tokens,
        )


@dataclass(frozen=True, slots=True)
class Served:
    """A running server. log: its output. folder: the model's."""

    url: str
    folder: Path
    log: Path

    @property
    def v1(self) -> str:
        return f"{self.url}/v1"

    def get(self, path: str) -> Any:
        return self._send("GET", path).json()

    def post(self, path: str) -> None:
        self._send("POST", path)

    def _send(self, method: str, path: str) -> httpx.Response:
        headers = {"Authorization": f"Bearer {KEY}", "X-Request-Id": _OURS}
        answer = httpx.request(method, self.url + path, headers=headers, timeout=60)
        return answer.raise_for_status()

    def statuses(self) -> dict[str, int]:
        """How many requests of clients were answered, by the first digit of their status."""
        lines = self.log.read_text(errors="replace").splitlines()
        found = (_STATUS.search(line) for line in lines if _OURS not in line)
        return dict(sorted(Counter(f"{match[1]}xx" for match in found if match).items()))

    def use(self) -> Use:
        (stats,) = self.get("/server_info")["internal_states"]
        requests = sum(self.statuses().values())
        return Use(requests, stats["prompt_tokens"], stats["cached_tokens"])

    def check_books(self) -> dict[str, int]:
        """Wait until nothing runs, and hold that every slot is free, evictable or pinned.

        Raises AssertionError with the numbers.
        """
        deadline = time.monotonic() + _IDLE_SECONDS
        while True:
            (stats,) = self.get("/server_info")["internal_states"]
            books = {
                name: stats[f"kv_{name}"] for name in ("free", "evictable", "pinned", "capacity")
            }
            whole = books["free"] + books["evictable"] + books["pinned"] == books["capacity"]
            idle = stats["running"] == stats["waiting"] == 0
            if idle and whole and not stats["leaks"]:
                return books
            assert time.monotonic() < deadline, f"the books do not balance: {stats}"
            time.sleep(0.1)


@contextmanager
def served(work: Path, name: str, flags: Sequence[str]) -> Iterator[Served]:
    """Serve the demo model on a free port until the block ends. work: where the log is written.

    Raises RuntimeError with the end of the log when the server does not start.
    """
    log = work / f"{name}.log"
    command = Path(sys.executable).with_name("radixlm")
    always = ["--port", "0", "--served-model-name", MODEL, "--api-key", KEY]
    always += ["--log-format", "json", "--log-health"]
    with log.open("w") as sink:
        process = subprocess.Popen(
            [command, "serve", *always, *flags], stdout=sink, stderr=sink, text=True
        )
        try:
            url = _url_of(process, log)
            server = Served(url, Path(), log)
            folder = Path(server.get("/get_model_info")["model_path"])
            yield Served(url, folder, log)
        finally:
            process.terminate()
            process.wait(timeout=30)


def _url_of(process: subprocess.Popen[str], log: Path) -> str:
    """The address in the line that says that the server is ready."""
    deadline = time.monotonic() + _START_SECONDS
    while process.poll() is None and time.monotonic() < deadline:
        if found := _READY.search(log.read_text(errors="replace")):
            return found[1]
        time.sleep(0.1)
    told = log.read_text(errors="replace")[-_TAIL:]
    raise RuntimeError(f"the server did not start:\n{told}")
