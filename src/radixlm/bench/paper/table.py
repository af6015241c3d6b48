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

from radixlm.bench.contrast import Contrast
from radixlm.bench.paper.run import Row
from radixlm.bench.paper.summary import Runs, by_name, share_of_bound, speedup

_COLUMNS = (
    "workload",
    "mode",
    "hit %",
    "% of best",
    "computed",
    "wall s",
    "±",
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
    """Print a table with one row per workload and mode. Latencies: median and 99th percentile.

    ±: how far the rounds' wall times lie apart, half of it. A speedup that differs from round to
    round by as much as from 1 is in brackets: it is noise.
    """
    runs = by_name(rows)
    table = Table(title=title, title_justify="left")
    for index, name in enumerate(_COLUMNS):
        table.add_column(name, justify="left" if index < 2 else "right", no_wrap=True)
    for _name, of_workload in groupby(rows, lambda row: row.workload):
        for index, row in enumerate(of_workload):
            table.add_row(row.workload if not index else "", *_cells(row, runs))
        table.add_section()
    console = console or wide_console()
    console.print(table)
    if len(rows[0].walls_s) > 1:
        console.print("± half of what the rounds differ; in (brackets): a speedup that is noise")
    else:
        console.print("one round: --rounds 3 says what is noise")


def append_json(path: Path, row: Any) -> None:
    """Add a row, a dataclass, to a file: a run that is cut short keeps what it has measured."""
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(asdict(row)) + "\n")


def wide_console() -> Console:
    console = Console()
    return console if console.is_terminal else Console(width=_WIDTH)


def _cells(row: Row, runs: Runs) -> list[str]:
    share = share_of_bound(row)
    apart = (max(row.walls_s) - min(row.walls_s)) / row.wall_s / 2
    return [
        row.mode,
        f"{100 * row.hit_rate:.2f}",
        "–" if share is None else f"{100 * share:.2f}",
        f"{row.computed_tokens:,}",
        f"{row.wall_s:.2f}",
        f"{100 * apart:.0f} %" if len(row.walls_s) > 1 else "–",
        _speedup(row, runs),
        f"{row.output_tokens_per_s:,.0f}",
        *(
            "–" if value is None else f"{value:,.1f}"
            for value in (row.ttft_ms_p50, row.ttft_ms_p99, row.itl_ms_p50, row.itl_ms_p99)
        ),
    ]


def _speedup(row: Row, runs: Runs) -> str:
    faster, off = speedup(runs, row.workload, row.mode), runs.get((row.workload, "off"))
    if faster is None or off is None:
        return "–"
    noise = len(row.walls_s) > 1 and row is not off and Contrast(off.walls_s, row.walls_s).is_noise
    return f"({faster:.2f}x)" if noise else f"{faster:.2f}x"
