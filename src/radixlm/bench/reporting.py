"""What all measurements share: turns, what is noise, tables, JSON lines, pictures."""

from __future__ import annotations

import importlib
import importlib.util
import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any, TypeVar

from rich.console import Console
from rich.table import Table

from radixlm.core.errors import ConfigError

T = TypeVar("T")
# Below this rate there is nothing to share but chance, and a ratio of it says nothing.
_WORTH_SHARING = 0.001
# Wide enough for every column where the output is no terminal.
_WIDTH = 132
GRAY, GREEN = "#59636e", "#2f7d4f"
SMALL: dict[str, Any] = {"fontsize": 9, "loc": "left", "color": GRAY}


def in_turns(ways: Sequence[T], rounds: int) -> Iterator[T]:
    """Each way once a round. Which goes first changes from round to round, so that no way always
    pays for what the first one loads.
    """
    for number in range(rounds):
        yield from ways[:: -1 if number % 2 else 1]


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
        """What the rounds say, for people."""
        said = f"With the cache off it takes {self.ratio:.2f} times as long"
        if len(self.on) == 1:
            return f"{said}, in one round: --rounds 3 says whether that is noise."
        rounds = f"{min(self.ratios):.2f} to {max(self.ratios):.2f} in {len(self.on)} rounds"
        if self.is_noise:
            return (
                f"{said}, but the rounds differ as much ({rounds}): noise. Ask for more requests."
            )
        return f"{said} ({rounds})."


def share_of_bound(row: Any) -> float | None:
    """A row's `hit_rate` over its `best_hit_rate`; None where there is nothing to share."""
    rate: float = row.hit_rate
    return rate / row.best_hit_rate if row.best_hit_rate >= _WORTH_SHARING else None


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


def append_json(path: Path, row: Any) -> None:
    """Add a row, a dataclass, to a file: a run that is cut short keeps what it has measured."""
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(asdict(row)) + "\n")


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
