"""Processes beside the tests; one for what would stay in theirs: Ray warns, and keeps threads."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
CHILD = """
import contextlib, io, json, os, sys, traceback

answers = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)
for line in sys.stdin:
    program, *arguments = json.loads(line)
    sys.argv = ["-c", *arguments]
    said, failed = io.StringIO(), ""
    with contextlib.redirect_stdout(said):
        try:
            exec(program, {"__name__": "__main__"})
        except BaseException:
            failed = traceback.format_exc()
    print(json.dumps([said.getvalue(), failed]), file=answers, flush=True)
"""


@contextmanager
def started(arguments: list[str], **options: Any) -> Iterator[subprocess.Popen[Any]]:
    """A program that does not outlive the block: a test that fails would wait for it for ever."""
    with subprocess.Popen(arguments, **options) as process:  # noqa: S603
        try:
            yield process
        finally:
            process.kill()


class Aside:
    """Runs programs, one after the other, each in names of its own."""

    def __init__(self) -> None:
        self._child = subprocess.Popen(  # noqa: S603
            [sys.executable, "-c", CHILD],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def run(self, program: str, *arguments: str) -> str:
        """What it prints. arguments: its sys.argv from the second on."""
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        self._child.stdin.write(json.dumps([program, *arguments]) + "\n")
        self._child.stdin.flush()
        said, failed = json.loads(self._child.stdout.readline())
        assert not failed, failed
        return str(said)

    def close(self) -> None:
        self._child.communicate(timeout=60)
