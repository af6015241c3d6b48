"""Tables and pictures of measurements, their rows as JSON lines, and the processor they are of."""

from __future__ import annotations

import importlib
import importlib.util
import json
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from radixlm.core.errors import ConfigError

# Wide enough for every column where the output is no terminal.
_WIDTH = 132
GRAY, GREEN = "#59636e", "#2f7d4f"
SMALL: dict[str, Any] = {"fontsize": 9, "loc": "left", "color": GRAY}


def print_table(
    title: str, columns: Sequence[str], groups: Iterable[Iterable[Sequence[str]]], *, left: int = 1
) -> None:
    """Print rows, with a line after each group. left: the columns that are aligned left."""
    table = Table(title=title, title_justify="left")
    for place, name in enumerate(columns):
        table.add_column(name, justify="left" if place < left else "right", no_wrap=True)
    for rows in groups:
        for row in rows:
            table.add_row(*row)
        table.add_section()
    say(table)


def say(what: object) -> None:
    """Print it, as wide as a table needs."""
    console = Console()
    console = console if console.is_terminal else Console(width=_WIDTH)
    console.print(what, highlight=False, soft_wrap=isinstance(what, str))


def append_json(path: Path, row: Mapping[str, Any]) -> None:
    """Add a row to a file: a run that is cut short keeps what it has measured."""
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(row) + "\n")


def percentile_ms(seconds: Sequence[float], percent: float) -> float | None:
    """A percentile in milliseconds; None of nothing."""
    return round(1_000 * float(np.percentile(seconds, percent)), 3) if seconds else None


def percent(share: float | None) -> str:
    return "–" if share is None else f"{100 * share:.2f}"


def check_picture(path: Path) -> None:
    """Raise ConfigError where no picture could be made, before anything is measured."""
    if importlib.util.find_spec("matplotlib") is None:
        raise ConfigError("--picture needs matplotlib: pip install matplotlib")
    if path.suffix != ".png":
        raise ConfigError(f"--picture writes a .png, not {path}")


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


def processor() -> str:
    """The processor's name, by Linux, with its family and model: names of virtual machines' are
    the same for many.
    """
    info = Path("/proc/cpuinfo")
    text = info.read_text(encoding="utf-8") if info.exists() else ""
    found = dict(re.findall(r"^(model name|cpu family|model)\s*: (.*)$", text, re.MULTILINE))
    if "model name" not in found:
        return "unknown processor"
    return "{model name} (family {cpu family}, model {model})".format_map(defaultdict(str, found))
