"""Rows of measurements: what is noise, tables, pictures, and the figures that claims are about."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from statistics import fmean, geometric_mean, median
from typing import Any

import torch

from radixlm.bench.frontend_programs import AT_ONCE, FrontendRow
from radixlm.bench.paper_run import WorkloadResult
from radixlm.bench.tables import GRAY, GREEN, SMALL, percent, print_table, say, two_panels
from radixlm.core.errors import counted
from radixlm.products.gemm_choice import GemmShape
from radixlm.products.product_table import COUNTS, Times, choose

# Below this rate there is nothing to share but chance, and a ratio of it says nothing.
_WORTH_SHARING = 0.001
# Of the paper's workloads, wall time off/lpm is asked for of these by name.
_WALL_RATIOS = ("multi-turn-short", "mmlu-few-shot", "batch-same-prompt", "tree-of-thought")
# Not one of the paper's, so not in the means.
_EXTRA = "warm-prefix"
_COLUMNS = (
    *("workload", "mode", "hit %", "% of best", "computed", "wall s", "±", "speedup"),
    *("out tok/s", "TTFT ms", "p99", "ITL ms", "p99"),
)
_COLOURS = {"fcfs": "#b8bfc6", "lpm": GREEN, "page16": "#d9a441"}
_LABELS = {"fcfs": "first come, first served", "lpm": "longest prefix", "page16": "pages of 16"}
_OF_FRONTEND = (
    *("workload", "programs", "requests", "hit %", "best %", "% of best", "without: hit %"),
    *("wall s", "without: wall s", "overhead %"),
)
_OF_SHARED_PREFIX = (
    *("cache", "wall s", "of the rounds", "computed", "cached", "possible", "out tok/s"),
)
# In percent: hit rate over the best possible one, at least; wall time for the language, at most.
SHARE, OVERHEAD = 96.0, 3.0

# Rows of `bench paper` by workload and mode.
Runs = Mapping[tuple[str, str], WorkloadResult]


@dataclass(frozen=True, slots=True)
class Contrast:
    """Wall times of two ways of doing the same work, in seconds, round by round.

    >>> Contrast(off=(8.0, 8.2, 8.8), on=(2.0, 2.0, 2.2)).ratio
    4.0
    >>> Contrast(off=(1.0, 1.3, 1.1), on=(1.2, 1.1, 1.0)).is_noise
    True
    """

    off: Sequence[float]
    on: Sequence[float]

    @property
    def ratios(self) -> list[float]:
        """Off over on, of each round."""
        return [off / on for off, on in zip(self.off, self.on, strict=True)]

    @property
    def ratio(self) -> float:
        """Off over on, the median round."""
        return median(self.ratios)

    @property
    def is_noise(self) -> bool:
        """Whether the rounds differ from each other by as much as both ways do."""
        return abs(self.ratio - 1) <= max(self.ratios) - min(self.ratios)

    def sentence(self) -> str:
        said = f"With the cache off it takes {self.ratio:.2f} times as long"
        if len(self.on) == 1:
            return f"{said}, in one round: --rounds 3 says whether that is noise."
        rounds = f"{min(self.ratios):.2f} to {max(self.ratios):.2f} in {len(self.on)} rounds"
        if self.is_noise:
            return (
                f"{said}, but the rounds differ as much ({rounds}): noise. Ask for more requests."
            )
        return f"{said} ({rounds})."


def share_of_bound(row: WorkloadResult | FrontendRow) -> float | None:
    """A row's `hit_rate` over its `best_hit_rate`; None where there is nothing to share."""
    return row.hit_rate / row.best_hit_rate if row.best_hit_rate >= _WORTH_SHARING else None


def show_products(title: str, found: Mapping[GemmShape, Times]) -> None:
    """Microseconds of each way by rows; `*` marks what is taken."""
    groups = []
    for shape, times in found.items():
        choice, name = choose(times), f"{shape.inputs} -> {shape.outputs}"
        rows = [
            [
                name,
                way,
                *(
                    f"{'*' if choice.way(n) == way else ''}{1e6 * by[n]:,.0f}" if n in by else "–"
                    for n in COUNTS
                ),
            ]
            for way, by in times.items()
        ]
        groups.append(rows)
    columns = ["in -> out", "way", *(counted(n, "row") for n in COUNTS)]
    print_table(f"{title}: microseconds of a product", columns, groups, left=2)


def products_summary(found: Mapping[GemmShape, Times]) -> dict[str, Any]:
    """steps: the way up to each number of rows."""
    return {
        "benchmark": "kernels",
        "threads": torch.get_num_threads(),
        "products": [
            {
                **shape._asdict(),
                "steps": choose(times).steps,
                "microseconds": {
                    way: {rows: round(1e6 * seconds, 1) for rows, seconds in by.items()}
                    for way, by in times.items()
                },
            }
            for shape, times in found.items()
        ],
    }


def _by_name(rows: Sequence[WorkloadResult]) -> Runs:
    return {(row.workload, row.mode): row for row in rows}


def _speedup(runs: Runs, workload: str, mode: str) -> float | None:
    """Wall time with the cache off over wall time in this mode; None if either was not run."""
    off, other = runs.get((workload, "off")), runs.get((workload, mode))
    return off.wall_s / other.wall_s if off and other else None


def show(title: str, rows: Sequence[WorkloadResult]) -> None:
    """Print a table with one row per workload and mode. Latencies: median and 99th percentile.

    ±: half of what the rounds' wall times differ. A speedup that differs from round to round by as
    much as from 1 is in brackets: it is noise.
    """
    runs = _by_name(rows)
    groups = [
        [[name if not place else "", *_cells(row, runs)] for place, row in enumerate(group)]
        for name, group in groupby(rows, lambda row: row.workload)
    ]
    print_table(title, _COLUMNS, groups, left=2)
    if len(rows[0].walls_s) > 1:
        say("± half of what the rounds differ; in (brackets): a speedup that is noise")
    else:
        say("one round: --rounds 3 says what is noise")


def _cells(row: WorkloadResult, runs: Runs) -> list[str]:
    apart = (max(row.walls_s) - min(row.walls_s)) / row.wall_s / 2
    latencies = (row.ttft_ms_p50, row.ttft_ms_p99, row.itl_ms_p50, row.itl_ms_p99)
    faster, off = "–", runs.get((row.workload, "off"))
    if off is not None:
        contrast = Contrast(off.walls_s, row.walls_s)
        noise = len(row.walls_s) > 1 and row is not off and contrast.is_noise
        ratio = f"{off.wall_s / row.wall_s:.2f}x"
        faster = f"({ratio})" if noise else ratio
    return [
        row.mode,
        percent(row.hit_rate),
        percent(share_of_bound(row)),
        f"{row.computed_tokens:,}",
        f"{row.wall_s:.2f}",
        f"{100 * apart:.0f} %" if len(row.walls_s) > 1 else "–",
        faster,
        f"{row.output_tokens_per_s:,.0f}",
        *("–" if value is None else f"{value:,.1f}" for value in latencies),
    ]


def summary(rows: Sequence[WorkloadResult]) -> dict[str, Any]:
    """The figures of one whole run; None where the runs that one needs are missing."""
    runs = _by_name(rows)
    papers = [row for row in rows if row.workload != _EXTRA]
    workloads = list(dict.fromkeys(row.workload for row in papers))
    shares: dict[str, list[float]] = {row.mode: [] for row in rows if row.mode != "off"}
    for row in papers:
        if row.mode in shares and (share := share_of_bound(row)) is not None:
            shares[row.mode].append(share)
    speedups = [ratio for name in workloads if (ratio := _speedup(runs, name, "lpm"))]
    off, lpm = (runs.get((_EXTRA, mode)) for mode in ("off", "lpm"))
    warm = None
    if off and lpm and off.ttft_ms_p50 and lpm.ttft_ms_p50:
        warm = off.ttft_ms_p50 / lpm.ttft_ms_p50
    return {
        "workload": "paper",
        "shape": rows[0].shape,
        "dtype": rows[0].dtype,
        "workloads": len(workloads),
        "share_of_bound": {
            mode: _rounded(fmean(found) if found else None) for mode, found in shares.items()
        },
        "off_over_lpm": _rounded(geometric_mean(speedups) if speedups else None),
        "off_over_lpm_by_workload": {
            name: _rounded(_speedup(runs, name, "lpm")) for name in _WALL_RATIOS
        },
        "warm_ttft_off_over_lpm": _rounded(warm),
    }


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)


def draw(path: Path, title: str, rows: Sequence[WorkloadResult]) -> None:
    """Write the picture. Left: wall time off/lpm; right: hit rates over the best possible."""
    runs = _by_name(rows)
    names = list(dict.fromkeys(row.workload for row in rows))[::-1]
    with two_panels(path, title, names) as (left, right):
        left.set_title("wall time with the cache off over wall time with it", **SMALL)
        ratios = [_speedup(runs, name, "lpm") for name in names]
        _bars(left, ratios, " {:.1f}x", limit=1)
        left.set_xlim(0, 1.15 * max(1.0, *(ratio or 0.0 for ratio in ratios)))
        _draw_shares(right, names, runs)


def _draw_shares(axes: Any, names: Sequence[str], runs: Runs) -> None:
    axes.set_title("hit rate, in % of the best that any order could reach (dotted: 96)", **SMALL)
    modes = [mode for mode in _COLOURS if any(key[1] == mode for key in runs)]
    height = 0.78 / max(len(modes), 1)
    for place, name in enumerate(names):
        shares = {mode: share_of_bound(runs[name, mode]) for mode in modes if (name, mode) in runs}
        if shares and not any(shares.values()):
            axes.text(1, place, "nothing to share", va="center", fontsize=8, color=GRAY)
        for mode, share in shares.items():
            at = place + 0.39 - height * (modes.index(mode) + 0.5)
            axes.barh(at, 100 * (share or 0.0), height=0.9 * height, color=_COLOURS[mode])
    for mode in modes:
        axes.barh(0, 0, color=_COLOURS[mode], label=_LABELS[mode])
    axes.set_xlim(0, 100)
    axes.axvline(96, color=GRAY, linewidth=0.8, linestyle=":")
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.06), ncols=3, frameon=False, fontsize=9)


def show_frontend(title: str, rows: Sequence[FrontendRow]) -> None:
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
    print_table(title, _OF_FRONTEND, [cells])


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


def _bars(axes: Any, values: Sequence[float | None], form: str, limit: float) -> None:
    """A bar with its number for each value that is there; a dotted line at the limit."""
    bars = axes.barh(
        range(len(values)), [value or 0.0 for value in values], height=0.62, color=GREEN
    )
    labels = ["" if value is None else form.format(value) for value in values]
    axes.bar_label(bars, labels, fontsize=9, padding=2)
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


def show_shared_prefix(title: str, rows: Sequence[Mapping[str, Any]]) -> Contrast:
    """Print a table with one row per mode, and what the difference is worth, which is returned."""
    cells = [
        [
            row["mode"],
            f"{row['wall_s']:.3f}",
            f"{min(row['walls_s']):.3f} to {max(row['walls_s']):.3f}",
            f"{row['computed_tokens']:,}",
            f"{row['cached_tokens']:,}",
            f"{row['expected_cached_tokens']:,}",
            f"{row['output_tokens_per_s']:,.0f}",
        ]
        for row in rows
    ]
    print_table(title, _OF_SHARED_PREFIX, [cells], left=0)
    contrast = Contrast(**{row["mode"]: row["walls_s"] for row in rows})
    say(contrast.sentence())
    return contrast
