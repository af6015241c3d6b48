"""The rows of `radixlm bench paper --frontend`: a table, a picture, a summary."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from radixlm.bench.frontend_programs import AT_ONCE
from radixlm.bench.frontend_run import FrontendRow
from radixlm.bench.reporting import (
    GRAY,
    GREEN,
    SMALL,
    percent,
    print_table,
    share_of_bound,
    two_panels,
)

# In percent: hit rate over the best possible one, at least; wall time for the language, at most.
SHARE, OVERHEAD = 96.0, 3.0
_COLUMNS = (
    *("workload", "programs", "requests", "hit %", "best %", "% of best", "without: hit %"),
    *("wall s", "without: wall s", "overhead %"),
)


def show_frontend(title: str, rows: Sequence[FrontendRow]) -> None:
    """Print a table with one row per workload."""
    cells = [
        [
            row.workload,
            str(row.programs),
            f"{row.requests:,}",
            percent(row.hit_rate),
            percent(row.best_hit_rate),
            percent(share_of_bound(row)),
            percent(row.direct_hit_rate),
            f"{row.wall_s:.2f}",
            f"{row.direct_wall_s:.2f}",
            f"{100 * row.overhead:+.1f}",
        ]
        for row in rows
    ]
    print_table(title, _COLUMNS, [cells])


def draw_frontend(path: Path, title: str, rows: Sequence[FrontendRow]) -> None:
    """Write the picture. Left: overhead of the language; right: hit rates over the best."""
    upward = rows[::-1]
    with two_panels(path, title, [row.workload for row in upward]) as (left, right):
        left.set_title(f"more wall time than without it, in % (dotted: {OVERHEAD:g})", **SMALL)
        _bars(left, [100 * row.overhead for row in upward], "{:+.1f} ", OVERHEAD)
        left.axvline(0, color=GRAY, linewidth=0.8)
        left.margins(x=0.2)
        right.set_title(
            f"hit rate, in % of the best that any order could reach (dotted: {SHARE:g})", **SMALL
        )
        _bars(right, [100 * (share_of_bound(row) or 0.0) for row in upward], " {:.1f}", SHARE)


def _bars(axes: Any, values: Sequence[float], form: str, limit: float) -> None:
    bars = axes.barh(range(len(values)), values, height=0.62, color=GREEN)
    axes.bar_label(bars, [form.format(value) for value in values], fontsize=9, padding=2)
    axes.axvline(limit, color=GRAY, linewidth=0.8, linestyle=":")


def frontend_summary(rows: Sequence[FrontendRow]) -> dict[str, Any]:
    """The worst of the rows, and whether it is good enough."""
    shares = {row.workload: round(share, 4) for row in rows if (share := share_of_bound(row))}
    overheads = {row.workload: row.overhead for row in rows}
    return {
        "workload": "paper-frontend",
        "shape": rows[0].shape,
        "dtype": rows[0].dtype,
        "programs_at_once": AT_ONCE,
        "share_of_bound": shares,
        "overhead": overheads,
        "as_wanted": all(share >= SHARE / 100 for share in shares.values())
        and all(overhead <= OVERHEAD / 100 for overhead in overheads.values()),
    }
