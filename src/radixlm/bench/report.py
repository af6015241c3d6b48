"""Measurements as a table to look at and as JSON lines to keep."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from rich.console import Console
from rich.table import Table

from radixlm.bench.shared_prefix import Measurement

_COLUMNS = {
    "cache": "mode",
    "wall s": "wall_s",
    "tokens computed": "computed_tokens",
    "cached": "cached_tokens",
    "cached, expected": "expected_cached_tokens",
    "hit rate": "hit_rate",
    "output tokens/s": "output_tokens_per_s",
}


def show(title: str, rows: Sequence[Measurement], console: Console | None = None) -> None:
    """Print a table with one row per measurement."""
    table = Table(title=title)
    for name in _COLUMNS:
        table.add_column(name, justify="right")
    for row in rows:
        table.add_row(
            *(
                f"{getattr(row, field):,}" if field != "mode" else row.mode
                for field in _COLUMNS.values()
            )
        )
    (console or Console()).print(table)


def json_lines(rows: Sequence[Measurement]) -> str:
    """One JSON object a line."""
    return "".join(json.dumps(asdict(row)) + "\n" for row in rows)


def save(path: Path, rows: Sequence[Measurement]) -> None:
    """Write the JSON lines to a file."""
    path.write_text(json_lines(rows))


def on_off_ratio(rows: Sequence[Measurement]) -> float:
    """Wall time without the cache over wall time with it."""
    wall = {row.mode: row.wall_s for row in rows}
    return round(wall["off"] / wall["on"], 3)
