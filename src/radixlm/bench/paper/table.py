"""The rows as a table to look at, and as JSON lines to keep."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from itertools import groupby
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from radixlm.bench.paper.run import Row
from radixlm.bench.paper.summary import Runs, by_name, share_of_bound, speedup

_COLUMNS = (
    "workload",
    "mode",
    "hit %",
    "% of best",
    "computed",
    "wall s",
    "speedup",
    "out tok/s",
    "TTFT ms",
    "p99",
    "ITL ms",
    "p99",
)
# Wide enough for every column where the output is no terminal.
_WIDTH = 132


def show(title: str, rows: Sequence[Row], console: Console | None = None) -> None:
    """Print a table with one row per workload and mode. Latencies: median and 99th percentile."""
    runs = by_name(rows)
    table = Table(title=title, title_justify="left")
    for index, name in enumerate(_COLUMNS):
        table.add_column(name, justify="left" if index < 2 else "right", no_wrap=True)
    for _name, of_workload in groupby(rows, lambda row: row.workload):
        for index, row in enumerate(of_workload):
            table.add_row(row.workload if not index else "", *_cells(row, runs))
        table.add_section()
    (console or wide_console()).print(table)


def append_json(path: Path, row: Any) -> None:
    """Add a row, a dataclass, to a file: a run that is cut short keeps what it has measured."""
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(asdict(row)) + "\n")


def wide_console() -> Console:
    console = Console()
    return console if console.is_terminal else Console(width=_WIDTH)


def _cells(row: Row, runs: Runs) -> list[str]:
    share, faster = share_of_bound(row), speedup(runs, row.workload, row.mode)
    return [
        row.mode,
        f"{100 * row.hit_rate:.2f}",
        "–" if share is None else f"{100 * share:.2f}",
        f"{row.computed_tokens:,}",
        f"{row.wall_s:.2f}",
        "–" if faster is None else f"{faster:.2f}x",
        f"{row.output_tokens_per_s:,.0f}",
        *(
            "–" if value is None else f"{value:,.1f}"
            for value in (row.ttft_ms_p50, row.ttft_ms_p99, row.itl_ms_p50, row.itl_ms_p99)
        ),
    ]
