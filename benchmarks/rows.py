"""Rows of a measurement as a table to look at."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.console import Console
from rich.table import Table

_WIDTH = 150


def show_rows(title: str, rows: Sequence[Mapping[str, object]]) -> None:
    """Print one line per row; all have the same fields, which head the columns."""
    table = Table(title=title)
    for column in rows[0]:
        table.add_column(column.replace("_", " "), justify="right")
    for row in rows:
        table.add_row(*(f"{v:,}" if isinstance(v, int) else str(v) for v in row.values()))
    Console(width=_WIDTH).print(table)
