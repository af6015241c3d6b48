"""The rows as one picture: what the cache is worth, and how near it comes to what is possible."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from radixlm.bench.paper.run import Row
from radixlm.bench.paper.summary import Runs, by_name, share_of_bound, speedup
from radixlm.core.errors import ConfigError

COLOURS = {"fcfs": "#b8bfc6", "lpm": "#2f7d4f", "page16": "#d9a441"}
_LABELS = {"fcfs": "first come, first served", "lpm": "longest prefix", "page16": "pages of 16"}
GRAY = "#59636e"
SMALL: dict[str, Any] = {"fontsize": 9, "loc": "left", "color": GRAY}


def check_picture(path: Path) -> None:
    """Raise ConfigError where no picture could be made, before anything is measured."""
    if importlib.util.find_spec("matplotlib") is None:
        raise ConfigError("--picture needs matplotlib: pip install matplotlib")
    if path.suffix != ".png":
        raise ConfigError(f"--picture writes a .png, not {path}")


def draw(path: Path, title: str, rows: Sequence[Row]) -> None:
    """Write the picture. Left: wall time off/lpm; right: hit rates over the best possible."""
    runs = by_name(rows)
    names = list(dict.fromkeys(row.workload for row in rows))[::-1]
    with two_panels(path, title, names) as (left, right):
        _speedups(left, names, runs)
        _shares(right, names, runs)


@contextmanager
def two_panels(path: Path, title: str, names: Sequence[str]) -> Iterator[tuple[Any, Any]]:
    """Axes side by side with a row for each name, from the bottom up; written at the end."""
    mpl = importlib.import_module("matplotlib")
    mpl.use("Agg")
    plt = importlib.import_module("matplotlib.pyplot")
    figure, (left, right) = plt.subplots(
        1, 2, figsize=(10, 1.6 + 0.36 * len(names)), sharey=True, layout="constrained"
    )
    yield left, right
    left.set_yticks(range(len(names)), names)
    left.set_ylim(-0.6, len(names) - 0.4)
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
        axes.tick_params(axis="y", length=0)
    figure.suptitle(title, fontsize=11, x=0.01, ha="left")
    figure.savefig(path, dpi=150)
    plt.close(figure)


def _speedups(axes: Any, names: Sequence[str], runs: Runs) -> None:
    axes.set_title("wall time with the cache off over wall time with it", **SMALL)
    longest = 1.0
    for place, name in enumerate(names):
        ratio = speedup(runs, name, "lpm")
        if ratio is not None:
            axes.barh(place, ratio, height=0.62, color=COLOURS["lpm"])
            axes.text(ratio, place, f" {ratio:.1f}x", va="center", fontsize=9)
            longest = max(longest, ratio)
    axes.axvline(1, color=GRAY, linewidth=0.8, linestyle=":")
    axes.set_xlim(0, 1.15 * longest)


def _shares(axes: Any, names: Sequence[str], runs: Runs) -> None:
    axes.set_title("hit rate, in % of the best that any order could reach (dotted: 96)", **SMALL)
    modes = [mode for mode in COLOURS if any(key[1] == mode for key in runs)]
    height = 0.78 / max(len(modes), 1)
    for index, mode in enumerate(modes):
        offset = 0.39 - height * (index + 0.5)
        bars = [
            (place + offset, 100 * share)
            for place, name in enumerate(names)
            if (row := runs.get((name, mode))) and (share := share_of_bound(row)) is not None
        ]
        axes.barh(
            [place for place, _ in bars],
            [percent for _, percent in bars],
            height=0.9 * height,
            color=COLOURS[mode],
            label=_LABELS[mode],
        )
    for place, name in enumerate(names):
        found = [row for mode in modes if (row := runs.get((name, mode)))]
        if found and all(share_of_bound(row) is None for row in found):
            axes.text(1, place, "nothing to share", va="center", fontsize=8, color=GRAY)
    axes.set_xlim(0, 100)
    axes.axvline(96, color=GRAY, linewidth=0.8, linestyle=":")
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.06), ncols=3, frameon=False, fontsize=9)
