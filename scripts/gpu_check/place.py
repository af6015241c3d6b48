"""Where a check runs, and how time is taken there."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch

# What a check found: one line of the report. `ok`: False where something is wrong.
Finding = Mapping[str, Any]


class Place(NamedTuple):
    """device: as torch names it. small: sizes of seconds on a CPU, which only show that the check
    runs. out: folder for files.
    """

    device: str
    small: bool
    out: Path

    @property
    def on_gpu(self) -> bool:
        return self.device != "cpu"

    def wait(self) -> None:
        """Until the device has done what it was asked."""
        if self.on_gpu:
            torch.cuda.synchronize(self.device)

    def seconds(self, work: Callable[[], object], *, calls: int = 10, rounds: int = 5) -> float:
        """Of one call, the median of rounds; as many calls follow each other without waiting."""
        if self.small:
            calls, rounds = 1, 1
        for _ in range(2):
            work()
        self.wait()
        found = []
        for _ in range(rounds):
            began = time.perf_counter()
            for _ in range(calls):
                work()
            self.wait()
            found.append((time.perf_counter() - began) / calls)
        return statistics.median(found)


def rounded(value: float) -> float:
    """Three digits, whatever its size."""
    return float(f"{value:.3g}")
