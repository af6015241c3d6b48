"""Measurements as a table to look at and as JSON lines to keep."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from rich.console import Console
from rich.table import Table

from radixlm.bench.contrast import Contrast
from radixlm.bench.paper.table import wide_console
from radixlm.bench.shared_prefix import Measurement

_COLUMNS = ("cache", "wall s", "of the rounds", "computed", "cached", "possible", "out tok/s")


def show(title: str, rows: Sequence[Measurement], console: Console | None = None) -> None:
    """Print a table with one row per measurement, and what the difference is worth."""
    console = console or wide_console()
    table = Table(title=title, title_justify="left")
    for name in _COLUMNS:
        table.add_column(name, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(
            row.mode,
            f"{row.wall_s:.3f}",
            f"{min(row.walls_s):.3f} to {max(row.walls_s):.3f}",
            f"{row.computed_tokens:,}",
            f"{row.cached_tokens:,}",
            f"{row.expected_cached_tokens:,}",
            f"{row.output_tokens_per_s:,.0f}",
        )
    console.print(table)
    console.print(contrast(rows).sentence(), highlight=False, soft_wrap=True)


def contrast(rows: Sequence[Measurement]) -> Contrast:
    """The wall times without the cache beside those with it."""
    walls = {row.mode: row.walls_s for row in rows}
    return Contrast(off=walls["off"], on=walls["on"])


def json_lines(rows: Sequence[Measurement]) -> str:
    """One JSON object a line."""
    return "".join(json.dumps(asdict(row)) + "\n" for row in rows)


def save(path: Path, rows: Sequence[Measurement]) -> None:
    """Write the JSON lines to a file."""
    path.write_text(json_lines(rows))
