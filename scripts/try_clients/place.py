"""Where a recorded client is tried: its server, its scratch folder, and the processes it needs."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx

from scripts.try_clients.drivers.asked import QUESTIONS
from scripts.try_clients.environments import ROOT
from scripts.try_clients.server import KEY, MODEL

_PATIENCE = 300
_START_SECONDS = 120
_TAIL = 1500


@dataclass(frozen=True, slots=True)
class Place:
    """url: what the client is to ask, without /v1. work: a folder of the client's own.

    model: the folder of the model that is served. questions: one a turn, of one session.
    """

    url: str
    work: Path
    model: Path
    questions: Sequence[str] = QUESTIONS

    def environment(self) -> dict[str, str]:
        """That of a client: at home in its folder, with the key, and with no proxy in its way."""
        home = self.work / "me"
        home.mkdir(parents=True, exist_ok=True)
        kept = {name: os.environ[name] for name in ("PATH", "LANG") if name in os.environ}
        offline = {"HF_HUB_OFFLINE": "1", "NO_PROXY": "*", "PYTHONDONTWRITEBYTECODE": "1"}
        return {**kept, **offline, "HOME": str(home), "OPENAI_API_KEY": KEY}

    def drive(self, python: Path | None, driver: str, *more: str, url: str | None = None) -> None:
        """Run a module of `drivers` in that environment; None is our own.

        Raises RuntimeError with the end of its output when it fails.
        """
        module = ["-m", f"scripts.try_clients.drivers.{driver}"]
        self.run([str(python or sys.executable), *module, url or self.url, KEY, MODEL, *more], ROOT)

    def run(self, command: Sequence[str], folder: Path, text: str | None = None) -> str:
        """Run a command in a folder; gives its output. text: its standard input.

        Raises RuntimeError with the end of its output when it fails.
        """
        done = subprocess.run(
            command,
            cwd=folder,
            env=self.environment(),
            input=text or "",
            capture_output=True,
            text=True,
            timeout=_PATIENCE,
            check=False,
        )
        if done.returncode:
            told = (done.stdout + done.stderr)[-_TAIL:]
            raise RuntimeError(f"{Path(command[0]).name} ended with {done.returncode}:\n{told}")
        return done.stdout

    @contextmanager
    def beside(self, command: Sequence[str], ready: str) -> Iterator[None]:
        """Run a service until the block ends. ready: a URL that answers once it is up."""
        log = self.work / f"{Path(command[0]).name}.log"
        with log.open("w") as sink:
            process = subprocess.Popen(
                command, cwd=self.work, env=self.environment(), stdout=sink, stderr=sink
            )
        try:
            deadline = time.monotonic() + _START_SECONDS
            while not _answers(ready):
                if process.poll() is not None or time.monotonic() > deadline:
                    told = log.read_text(errors="replace")[-_TAIL:]
                    raise RuntimeError(f"{Path(command[0]).name} does not answer:\n{told}")
                time.sleep(0.2)
            yield
        finally:
            process.terminate()
            process.wait(timeout=30)


def _answers(url: str) -> bool:
    headers = {"Authorization": f"Bearer {KEY}"}
    try:
        return httpx.get(url, headers=headers, timeout=5).is_success
    except httpx.TransportError:
        return False
