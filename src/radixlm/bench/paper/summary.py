"""What all rows together say: the figures that the paper's claims are about."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

from radixlm.bench.paper.run import Row

# Below this rate there is nothing to share but chance, and a ratio of it says nothing.
WORTH_SHARING = 0.001
# Wall time off/lpm and time to first token off/lpm are asked for by name.
_WALL_RATIOS = ("multi-turn-short", "mmlu-few-shot", "batch-same-prompt", "tree-of-thought")
# Not one of the paper's, so not in the means.
_EXTRA = "warm-prefix"

Runs = Mapping[tuple[str, str], Row]


def by_name(rows: Iterable[Row]) -> Runs:
    """Rows by workload and mode."""
    return {(row.workload, row.mode): row for row in rows}


class Rates(Protocol):
    """What a row says of its hits."""

    @property
    def hit_rate(self) -> float: ...

    @property
    def best_hit_rate(self) -> float: ...


def share_of_bound(row: Rates) -> float | None:
    """Hit rate over the best possible one; None where there is nothing to share."""
    return row.hit_rate / row.best_hit_rate if row.best_hit_rate >= WORTH_SHARING else None


def speedup(runs: Runs, workload: str, mode: str) -> float | None:
    """Wall time with the cache off over wall time in this mode; None if either was not run."""
    off, other = runs.get((workload, "off")), runs.get((workload, mode))
    return off.wall_s / other.wall_s if off and other else None


def summary(rows: Sequence[Row]) -> dict[str, Any]:
    """The figures of one whole run; None where the runs that one needs are missing."""
    runs = by_name(rows)
    papers = [row for row in rows if row.workload != _EXTRA]
    workloads = list(dict.fromkeys(row.workload for row in papers))
    modes = [mode for mode in dict.fromkeys(row.mode for row in rows) if mode != "off"]
    shares = {
        mode: [
            share
            for row in papers
            if row.mode == mode and (share := share_of_bound(row)) is not None
        ]
        for mode in modes
    }
    speedups = [ratio for name in workloads if (ratio := speedup(runs, name, "lpm"))]
    return {
        "workload": "paper",
        "shape": rows[0].shape,
        "dtype": rows[0].dtype,
        "workloads": len(workloads),
        "share_of_bound": {mode: _rounded(_mean(of_mode)) for mode, of_mode in shares.items()},
        "off_over_lpm": _rounded(_geometric_mean(speedups)),
        "off_over_lpm_by_workload": {
            name: _rounded(speedup(runs, name, "lpm")) for name in _WALL_RATIOS
        },
        "warm_ttft_off_over_lpm": _rounded(_first_token_ratio(runs)),
    }


def _first_token_ratio(runs: Runs) -> float | None:
    off, lpm = (runs.get((_EXTRA, mode)) for mode in ("off", "lpm"))
    if not (off and lpm and off.ttft_ms_p50 and lpm.ttft_ms_p50):
        return None
    return off.ttft_ms_p50 / lpm.ttft_ms_p50


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


def _geometric_mean(values: Sequence[float]) -> float | None:
    return math.exp(sum(map(math.log, values)) / len(values)) if values else None


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)
