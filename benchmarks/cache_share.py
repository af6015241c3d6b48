"""How much of a run is spent inside cache/ when nothing is shared.

    python -m benchmarks.cache_share [--shape 10m] [--rounds 3]

The paper's `no-sharing` workload: 32 requests of 1,000 random tokens, 16 out. Every public method
of RadixCache, Lease and RadixTree (the scheduler's prompt index is one, too) is wrapped in a
timer; calls inside of calls count once. Beside it the same workload with the cache off, in turns,
without timers. Ends in one JSON line.
"""

from __future__ import annotations

import argparse
import functools
import inspect
import json
import statistics
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from radixlm import Engine, SamplingParams
from radixlm.cache import Lease, RadixCache, RadixTree
from radixlm.testing.checkpoints import SHAPES, write_random_checkpoint

REQUESTS = 32
TOKENS = 1_000
OUT = 16
PARAMS = SamplingParams(max_tokens=OUT, temperature=0, ignore_eos=True)


class Meter:
    """Seconds spent inside the outermost calls of what it has wrapped, by name."""

    def __init__(self) -> None:
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self.calls: Counter[str] = Counter()
        self._depth = 0

    def wrap(self, owner: type) -> None:
        for name, member in list(vars(owner).items()):
            if isinstance(member, property) and member.fget is not None:
                timed = self._timed(f"{owner.__name__}.{name}", member.fget)
                setattr(owner, name, property(timed))
            elif inspect.isfunction(member) and not name.startswith("_"):
                setattr(owner, name, self._timed(f"{owner.__name__}.{name}", member))

    def _timed(self, label: str, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def timed(*args: Any, **options: Any) -> Any:
            if self._depth:
                return function(*args, **options)
            self._depth += 1
            started = time.perf_counter()
            try:
                return function(*args, **options)
            finally:
                self.seconds[label] += time.perf_counter() - started
                self.calls[label] += 1
                self._depth -= 1

        return timed


def run(folder: str, dtype: str, *, cache: bool, meter: Meter | None = None) -> float:
    """Seconds from the first submission to the last token."""
    with Engine(folder, dtype=dtype, kv_tokens=40_000, disable_radix_cache=not cache) as engine:
        draw = np.random.default_rng(0)
        prompts = draw.integers(0, engine.info.vocab_size, (REQUESTS, TOKENS)).tolist()
        engine.generate([[1, 2, 3]] * 2, PARAMS)
        engine.flush_cache()
        if meter is not None:
            meter.seconds.clear()
            meter.calls.clear()
        started = time.perf_counter()
        engine.generate(prompts, PARAMS)
        return time.perf_counter() - started


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else "")
    parser.add_argument("--shape", choices=list(SHAPES), default="10m")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / options.shape
        write_random_checkpoint(options.shape, folder, dtype=options.dtype)
        walls: dict[bool, list[float]] = {True: [], False: []}
        for _ in range(options.rounds):
            for cache in (True, False):
                walls[cache].append(run(str(folder), options.dtype, cache=cache))
        meter = Meter()
        for owner in (RadixCache, Lease, RadixTree):
            meter.wrap(owner)
        wall = run(str(folder), options.dtype, cache=True, meter=meter)
    inside = sum(meter.seconds.values())
    longest = sorted(meter.seconds.items(), key=lambda item: -item[1])
    for name, seconds in longest[:8]:
        print(f"{name:32} {1e3 * seconds:8.2f} ms in {meter.calls[name]:6} calls")
    on, off = (statistics.median(walls[cache]) for cache in (True, False))
    print(f"inside cache/: {1e3 * inside:.1f} ms of {wall:.2f} s = {100 * inside / wall:.3f} %")
    print(f"cache on {on:.2f} s, off {off:.2f} s: {on / off:.3f}")
    report = {
        "benchmark": "cache_share",
        "shape": options.shape,
        "dtype": options.dtype,
        "inside_cache_ms": round(1e3 * inside, 2),
        "wall_s": round(wall, 3),
        "share": round(inside / wall, 6),
        "wall_on_s": [round(value, 3) for value in walls[True]],
        "wall_off_s": [round(value, 3) for value in walls[False]],
        "on_over_off": round(on / off, 4),
    }
    print(json.dumps(report))


if __name__ == "__main__":
    main()
