"""Pictures of measurements: plain panels below one another, one look for all."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
from cycler import cycler
from matplotlib.figure import Figure

SERIES = ["#2f7d4f", "#d9a441", "#3b6ea5", "#b0413e", "#59636e"]


def panels(count: int, title: str, height: float = 2.6) -> tuple[Figure, Sequence[Any]]:
    """A figure and its axes, from top to bottom."""
    with mpl.rc_context({"axes.prop_cycle": cycler(color=SERIES)}):
        figure = Figure(figsize=(9, 0.5 + height * count), layout="constrained")
        axes = list(figure.subplots(count, 1, squeeze=False)[:, 0])
    for each in axes:
        each.spines[["top", "right"]].set_visible(False)
    figure.suptitle(title, fontsize=11, x=0.01, ha="left")
    return figure, axes


def draw_memory(axes: Any, seconds: Sequence[float], mb: Sequence[float]) -> None:
    """Draw a server's resident memory over time, from zero on, so that growth has its true size."""
    axes.plot(seconds, mb, label="the server's resident memory, MB")
    axes.set_ylim(0, 1.3 * max(mb))
    axes.set_xlabel("seconds")
    axes.legend(loc="lower right")


def save(figure: Figure, path: Path) -> None:
    """Write a PNG."""
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
