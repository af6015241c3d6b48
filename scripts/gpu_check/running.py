"""Runs checks, each in a process of its own with a deadline, and keeps what they say."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, NamedTuple

NO_GPU = 3
_TAIL = 2_000
Row = dict[str, Any]


class Check(NamedTuple):
    """command: prints one JSON object a line, and exits with 0 unless it could not go on. seconds:
    its deadline.
    """

    name: str
    seconds: float
    command: Sequence[str]


class Report:
    """Rows in a file, one JSON object a line, written as they come; and shown."""

    def __init__(self, path: Path, show: Callable[[str], None] = print) -> None:
        self.rows: list[Row] = []
        self._path, self._show = path, show
        path.write_text("")

    def add(self, check: str, row: Mapping[str, Any]) -> None:
        made = {"check": check, **row}
        self.rows.append(made)
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(made) + "\n")
        self._show("  " + said(made))

    @property
    def failed(self) -> list[Row]:
        return [row for row in self.rows if row.get("ok") is False]

    def status(self, *, on_gpu: bool) -> int:
        """What the program ends with."""
        return 1 if self.failed else 0 if on_gpu else NO_GPU


def said(row: Mapping[str, Any]) -> str:
    """A row as a line of a table."""
    hidden = ("check", "what", "ok")
    values = "  ".join(f"{name} {value}" for name, value in row.items() if name not in hidden)
    mark = {True: "ok", False: "FAILED"}.get(row.get("ok", None), "")
    return f"{row['check']:<12}{row.get('what', ''):<52} {mark:<7}{values}"


def run_all(checks: Iterable[Check], report: Report, seconds: float) -> None:
    """One after the other, in order of worth; those for which no time is left are named.

    seconds: for all of them.
    """
    end = time.monotonic() + seconds
    for check in checks:
        left = end - time.monotonic()
        if left < 1:
            report.add(check.name, {"what": "not begun: no time is left", "ok": False})
        else:
            _run(check._replace(seconds=min(check.seconds, left)), report)


def _run(check: Check, report: Report) -> None:
    began, late = time.monotonic(), threading.Event()

    def end() -> None:
        late.set()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # with all that it has begun

    pipe, errors = subprocess.PIPE, list[bytes]()
    with subprocess.Popen(
        check.command, stdout=pipe, stderr=pipe, start_new_session=True
    ) as process:
        timer = threading.Timer(check.seconds, end)
        reader = threading.Thread(target=_keep_tail, args=(process.stderr, errors))
        timer.start()
        reader.start()
        try:
            for line in process.stdout or ():
                _take(check.name, line, report)
            process.wait()
        finally:
            timer.cancel()
            if process.poll() is None:
                end()
            reader.join()
    if late.is_set():
        what = f"ended at its deadline, {check.seconds:.0f} s"
        report.add(check.name, {"what": what, "ok": False})
    elif process.returncode:
        tail = b"".join(errors).decode(errors="replace")[-_TAIL:]
        what = f"status {process.returncode}"
        report.add(check.name, {"what": what, "ok": False, "said": tail})
    report.add(check.name, {"what": "took", "s": round(time.monotonic() - began, 1)})


def _take(name: str, line: bytes, report: Report) -> None:
    """What a check prints beside its rows is kept, too."""
    try:
        row = json.loads(line)
    except ValueError:
        row = None
    text = line.decode(errors="replace").strip()
    report.add(name, row if isinstance(row, dict) else {"what": "said", "text": text[:_TAIL]})


def _keep_tail(stream: IO[bytes], kept: list[bytes]) -> None:
    for line in stream:
        kept.append(line)
        del kept[:-50]
