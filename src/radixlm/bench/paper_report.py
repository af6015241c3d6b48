"""The rows of `radixlm bench paper`: as a table, as a picture, and the figures that the paper's
claims are about.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path
from statistics import fmean, geometric_mean
from typing import Any

from radixlm.bench.paper_run import Row
from radixlm.bench.reporting import (
    GRAY,
    GREEN,
    SMALL,
    Contrast,
    percent,
    print_table,
    say,
    share_of_bound,
    two_panels,
)

# Wall time off/lpm and time to first token off/lpm are asked for by name.
_WALL_RATIOS = ("multi-turn-short", "mmlu-few-shot", "batch-same-prompt", "tree-of-thought")
# Not one of the paper's, so not in the means.
_EXTRA = "warm-prefix"
_COLUMNS = (
    *("workload", "mode", "hit %", "% of best", "computed", "wall s", "±", "speedup"),
    *("out tok/s", "TTFT ms", "p99", "ITL ms", "p99"),
)
_COLOURS = {"fcfs": "#b8bfc6", "lpm": GREEN, "page16": "#d9a441"}
_LABELS = {"fcfs": "first come, first served", "lpm": "longest prefix", "page16": "pages of 16"}

# Rows by workload and mode.
Runs = Mapping[tuple[str, str], Row]


def _by_name(rows: Sequence[Row]) -> Runs:
    return {(row.workload, row.mode): row for row in rows}


def _speedup(runs: Runs, workload: str, mode: str) -> float | None:
    """Wall time with the cache off over wall time in this mode; None if either was not run."""
    off, other = runs.get((workload, "off")), runs.get((workload, mode))
    return off.wall_s / other.wall_s if off and other else None


def show(title: str, rows: Sequence[Row]) -> None:
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


def _cells(row: Row, runs: Runs) -> list[str]:
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


def summary(rows: Sequence[Row]) -> dict[str, Any]:
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


def draw(path: Path, title: str, rows: Sequence[Row]) -> None:
    """Write the picture. Left: wall time off/lpm; right: hit rates over the best possible."""
    runs = _by_name(rows)
    names = list(dict.fromkeys(row.workload for row in rows))[::-1]
    with two_panels(path, title, names) as (left, right):
        _draw_speedups(left, names, runs)
        _draw_shares(right, names, runs)


def _draw_speedups(axes: Any, names: Sequence[str], runs: Runs) -> None:
    axes.set_title("wall time with the cache off over wall time with it", **SMALL)
    longest = 1.0
    for place, name in enumerate(names):
        ratio = _speedup(runs, name, "lpm")
        if ratio is not None:
            axes.barh(place, ratio, height=0.62, color=GREEN)
            axes.text(ratio, place, f" {ratio:.1f}x", va="center", fontsize=9)
            longest = max(longest, ratio)
    axes.axvline(1, color=GRAY, linewidth=0.8, linestyle=":")
    axes.set_xlim(0, 1.15 * longest)


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
