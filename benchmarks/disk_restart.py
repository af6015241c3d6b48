"""Hit rate over time around a restart: without a disk cache, with one, and after a `kill -9`."""

from __future__ import annotations

import argparse
import os
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.disk_servers import Model
from benchmarks.peer_workloads import Ask, Draw
from benchmarks.pictures import SERIES, panels, save
from benchmarks.served import serving

# Prefixes, the more often asked for the lower their number; the pool holds half of their tokens.
PREFIXES, SHARED, OWN, OUT = 24, 1_024, 20, 4
WINDOW = 15


@dataclass(slots=True)
class Seen:
    """Of each request: seconds since the first 200 of the process after the restart, without the
    time in which there was none; how much of its prompt was cached.
    """

    seconds: list[float] = field(default_factory=list)
    hits: list[float] = field(default_factory=list)
    down: float = 0.0

    def rates(self, start: int, stop: int) -> list[float]:
        """The mean of each request and those before it, of its process."""
        hits = self.hits[start:stop]
        return [
            sum(hits[max(0, at - WINDOW) : at]) / min(at, WINDOW) for at in range(1, len(hits) + 1)
        ]


def asks_of(model: Model, options: argparse.Namespace) -> list[Ask]:
    """Equal for equal seeds, so that all see the same requests. Twice `requests`."""
    draw, chance = Draw(model.vocab, options.seed, 6), np.random.default_rng(options.seed)
    prefixes = [draw.tokens(SHARED) for _ in range(PREFIXES)]
    weights = 1 / np.arange(1, PREFIXES + 1)
    numbers = chance.choice(PREFIXES, 2 * options.requests, p=weights / weights.sum())
    return [Ask(prefixes[number] + draw.tokens(OWN), OUT) for number in numbers]


def around(model: Model, asks: Sequence[Ask], folder: Path | None, ending: signal.Signals) -> Seen:
    """Half of the requests before, half after. ending: how the first process ends."""
    seen, half = Seen(), len(asks) // 2
    flags = model.flags(PREFIXES * SHARED // 2, folder)
    for some in (asks[:half], asks[half:]):
        with serving(*flags) as served:
            began = time.perf_counter()
            for ask in some:
                (reply,) = model.ask(served, [ask])
                seen.hits.append((reply.cached or 0) / reply.prompt_tokens)
                seen.seconds.append(time.perf_counter() - began)
            if len(seen.hits) == half:
                lasted = time.perf_counter() - began
                seen.seconds = [each - lasted for each in seen.seconds]
                if ending is signal.SIGKILL:
                    os.kill(served.pid, ending)
            stopped = time.perf_counter()
        if len(seen.hits) == half:
            seen.down = time.perf_counter() - stopped
    return seen


def restart(model: Model, options: argparse.Namespace, place: Path) -> dict[str, Any]:
    """The part of benchmarks/disk_cache.py; writes the picture."""
    asks = asks_of(model, options)
    settings = {
        "with a disk cache": (place / "restart", signal.SIGINT),
        "with a disk cache, ended by kill -9": (place / "killed", signal.SIGKILL),
        "without": (None, signal.SIGINT),
    }
    seen = {name: around(model, asks, *setting) for name, setting in settings.items()}
    draw(options.picture, seen, model)
    half = options.requests
    rows = [
        {
            "setting": name,
            "before": round(float(np.mean(each.hits[half - WINDOW : half])), 3),
            "first_after": round(each.hits[half], 3),
            "after": round(float(np.mean(each.hits[half : half + WINDOW])), 3),
            "end": round(float(np.mean(each.hits[-WINDOW:])), 3),
            "to_stop_s": round(each.down, 2),
        }
        for name, each in seen.items()
    ]
    return {"requests": 2 * half, "window": WINDOW, "workloads": rows}


def draw(path: Path, seen: dict[str, Seen], model: Model) -> None:
    title = (
        f"Hit rate of {WINDOW} requests around a restart: {model.shape}, {PREFIXES} "
        f"prefixes of {SHARED:,} tokens, a pool for half"
    )
    figure, (axes,) = panels(1, title, 3.4)
    for number, (name, each) in enumerate(seen.items()):
        half = len(each.hits) // 2
        for start, stop in ((0, half), (half, len(each.hits))):
            rates = [100 * rate for rate in each.rates(start, stop)]
            label = name if start else None
            axes.plot(each.seconds[start:stop], rates, color=SERIES[number], label=label)
    axes.axvline(0, color="#59636e", linewidth=1, linestyle=":")
    axes.set_xlabel("seconds of serving, 0 being the restart", fontsize=9)
    axes.set_ylabel("hit rate, %", fontsize=9)
    axes.set_ylim(0, 101)
    axes.legend(loc="lower right", fontsize=8)
    save(figure, path)
