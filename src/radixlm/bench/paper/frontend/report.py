"""`radixlm bench paper --frontend`: a table, a picture, JSON lines."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
from rich.table import Table
from tqdm import tqdm

from radixlm.bench.paper.frontend.run import FrontendRow, run
from radixlm.bench.paper.frontend.workloads import AT_ONCE, CHANGES, make_twins
from radixlm.bench.paper.picture import COLOURS, GRAY, SMALL, two_panels
from radixlm.bench.paper.run import Setup
from radixlm.bench.paper.summary import share_of_bound
from radixlm.bench.paper.table import append_json, wide_console
from radixlm.text.tokenizer import Tokenizer

# In percent: hit rate over the best possible one, at least; wall time for the language, at most.
SHARE, OVERHEAD = 96.0, 3.0
_COLUMNS = (
    "workload",
    "programs",
    "requests",
    "hit %",
    "best %",
    "% of best",
    "without: hit %",
    "wall s",
    "without: wall s",
    "overhead %",
)


def check_choices(only: Sequence[str], *, frontend: bool) -> None:
    """Raise UsageError for what does not go with --frontend, or with nothing else."""
    if not frontend:
        return
    if _is_given("modes"):
        raise click.UsageError("--frontend has no --modes: it compares with and without")
    for name in only:
        if name not in CHANGES:
            raise click.UsageError(f"with --frontend there is no {name!r}: {', '.join(CHANGES)}")


def _is_given(option: str) -> bool:
    source = click.get_current_context().get_parameter_source(option)
    return source is not click.core.ParameterSource.DEFAULT


def compare(
    setup: Setup, only: Sequence[str], rounds: int, path: Path | None, picture: Path | None
) -> None:
    """Measure the workloads, all if none is named, and report."""
    tokenizer = Tokenizer.load(Path(setup.model))
    twins = make_twins(only or CHANGES, tokenizer, setup.vocab_size)
    total = 2 * rounds * sum(setup.plan(each.workload).requests for each in twins)
    rows = []
    with tqdm(total=total, unit=" requests", dynamic_ncols=True) as bar:
        for row in run(twins, setup, rounds, started=bar.set_description, done=bar.update):
            rows.append(row)
            if path is not None:
                append_json(path, row)
    title = f"Programs in the frontend language: {setup.shape} in {setup.dtype}, {AT_ONCE} at once"
    show(title, rows)
    if picture is not None:
        draw(picture, title, rows)
        click.echo(f"drew {picture}")
    if path is not None:
        click.echo(json.dumps(summary(rows)))


def show(title: str, rows: Sequence[FrontendRow]) -> None:
    """Print a table with one row per workload."""
    table = Table(title=title, title_justify="left")
    for place, name in enumerate(_COLUMNS):
        table.add_column(name, justify="right" if place else "left")
    for row in rows:
        rates = (row.hit_rate, row.best_hit_rate, share_of_bound(row), row.direct_hit_rate)
        table.add_row(
            row.workload,
            str(row.programs),
            f"{row.requests:,}",
            *("–" if rate is None else f"{100 * rate:.2f}" for rate in rates),
            f"{row.wall_s:.2f}",
            f"{row.direct_wall_s:.2f}",
            f"{100 * row.overhead:+.1f}",
        )
    wide_console().print(table)


def draw(path: Path, title: str, rows: Sequence[FrontendRow]) -> None:
    """Write the picture. Left: overhead of the language; right: hit rates over the best."""
    upward = rows[::-1]
    with two_panels(path, title, [row.workload for row in upward]) as (left, right):
        left.set_title(f"more wall time than without it, in % (dotted: {OVERHEAD:g})", **SMALL)
        _bars(left, [100 * row.overhead for row in upward], "{:+.1f} ")
        left.axvline(0, color=GRAY, linewidth=0.8)
        left.axvline(OVERHEAD, color=GRAY, linewidth=0.8, linestyle=":")
        left.margins(x=0.2)
        right.set_title(
            f"hit rate, in % of the best that any order could reach (dotted: {SHARE:g})", **SMALL
        )
        _bars(right, [100 * (share_of_bound(row) or 0.0) for row in upward], " {:.1f}")
        right.axvline(SHARE, color=GRAY, linewidth=0.8, linestyle=":")


def _bars(axes: Any, values: Sequence[float], form: str) -> None:
    bars = axes.barh(range(len(values)), values, height=0.62, color=COLOURS["lpm"])
    axes.bar_label(bars, [form.format(value) for value in values], fontsize=9, padding=2)


def summary(rows: Sequence[FrontendRow]) -> dict[str, Any]:
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
