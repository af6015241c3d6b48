"""What came of all clients: a table, and a JSON line with more."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from scripts.try_clients.outcome import Outcome
from scripts.try_clients.server import Served, Use

_RESULT = {True: "ok", False: "FAILED"}


class Report:
    """Rows as they come; at the end a table and a JSON line."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._rows: list[dict[str, Any]] = []

    @property
    def good(self) -> bool:
        return bool(self._rows) and all(row["passed"] for row in self._rows)

    def add(self, name: str, server: Served, use: Callable[[], Outcome]) -> None:
        """Run one client, then hold the server to its books."""
        task = self._progress.add_task(name, total=None)
        begun = time.monotonic()
        try:
            before = server.use()
            outcome = use()
            books = server.check_books()
            used = server.use().since(before)
        except Exception as error:  # whatever it is belongs into the report
            told = f"{type(error).__name__}: {error}"
            outcome, books, used, passed = Outcome(name, "", told), {}, Use(), False
        else:
            passed = True
        seconds = round(time.monotonic() - begun, 1)
        self._progress.remove_task(task)
        row = {
            **asdict(outcome),
            **asdict(used),
            "books": books,
            "passed": passed,
            "seconds": seconds,
        }
        self._rows.append(row)
        numbers = ", ".join(f"{name} {number}" for name, number in outcome.numbers.items())
        line = f"{outcome.client}: {_RESULT[passed]}: {numbers if passed else outcome.did}"
        self._progress.console.print(line.removesuffix(": "), markup=False)

    def print(self) -> None:
        table = Table("client", "version")
        for column in ("requests", "prompt tokens", "cached", "result", "seconds"):
            table.add_column(column, justify="right")
        for row in self._rows:
            table.add_row(
                str(row["client"]),
                str(row["version"]),
                f"{row['requests']:,}",
                f"{row['prompt_tokens']:,}",
                _share(row),
                _RESULT[bool(row["passed"])],
                str(row["seconds"]),
            )
        Console(width=100).print(table)
        print(json.dumps({"passed": self.good, "clients": self._rows}))


def _share(row: dict[str, Any]) -> str:
    prompt, cached = row["prompt_tokens"], row["cached_tokens"]
    return f"{cached / prompt:.1%}" if prompt else ""
