"""What a scheduling step costs while many requests wait, by order.

    python -m benchmarks.scheduler [--waiting 100,1000,10000,100000] [--orders lpm,fcfs,...]

Steady state: requests of 64 groups (192 tokens of prefix shared within a group, 64 of their own),
the prefixes cached, about eight requests running. In each step some end, the freed rows are given
to waiting ones, what was computed is committed, and as many new requests arrive as were admitted.
No model: the step's results are made up. Milliseconds of `schedule()` and `update()` per step and
microseconds of `add()` per request, median and p99. Ends in one JSON line.
"""

from __future__ import annotations

import argparse
import gc
import json
import time
from typing import get_args

import numpy as np
from tqdm import tqdm

from benchmarks.rows import show_rows
from radixlm.cache import RadixCache
from radixlm.core.batch import ScheduledBatch, StepResult
from radixlm.core.config import SchedulePolicy
from radixlm.core.request import GenerateRequest
from radixlm.core.sampling import SamplingParams
from radixlm.scheduler import Scheduler, WaitingRoom, make_order

GROUPS = 64
SHARED = 192
OWN = 64
OUT = 4
ROWS = 8
STEPS = 300
WARM_UP = 50
PARAMS = SamplingParams(max_tokens=OUT, temperature=0)
clock = time.perf_counter_ns


class Load:
    """A scheduler with a queue that is kept at the same length."""

    def __init__(self, policy: SchedulePolicy, waiting: int, seed: int = 0) -> None:
        self._draw = np.random.default_rng(seed)
        self._prefixes = self._draw.integers(0, 50_000, (GROUPS, SHARED), dtype=np.int32)
        self._made = 0
        cache = RadixCache(GROUPS * SHARED + 40 * (OWN + OUT) * ROWS, pin_budget=0)
        room = WaitingRoom(cache, make_order(policy))
        self.scheduler = Scheduler(room, chunked_prefill_size=2_048, max_running_requests=ROWS)
        self.times: dict[str, list[int]] = {"add": [], "schedule": [], "update": []}
        self.admitted = 0
        self._warm()
        self._fill(waiting)

    def step(self) -> None:
        """One step, and as many arrivals as it admitted."""
        before = len(self.scheduler.waiting)
        batch = self._timed_step()
        if not batch.rows:
            raise RuntimeError("nothing was scheduled")
        admitted = before - len(self.scheduler.waiting)
        self.admitted += admitted
        self._fill(admitted)

    def _timed_step(self) -> ScheduledBatch:
        started = clock()
        batch = self.scheduler.schedule()
        scheduled = clock()
        result = StepResult(tuple(1 if row.samples else None for row in batch.rows))
        ready = clock()
        self.scheduler.update(batch, result, {})
        self.times["schedule"].append(scheduled - started)
        self.times["update"].append(clock() - ready)
        return batch

    def _warm(self) -> None:
        """Serve one request of each group, so that all prefixes are cached."""
        for prefix in self._prefixes:
            self.scheduler.add(self._request(prefix))
        while self.scheduler.has_work:
            self._timed_step()

    def _fill(self, count: int) -> None:
        for group in self._draw.integers(0, GROUPS, count):
            request = self._request(self._prefixes[group])
            started = clock()
            self.scheduler.add(request)
            self.times["add"].append(clock() - started)

    def _request(self, prefix: np.ndarray[tuple[int], np.dtype[np.int32]]) -> GenerateRequest:
        self._made += 1
        own = self._draw.integers(0, 50_000, OWN, dtype=np.int32)
        key = np.concatenate((prefix, own))
        return GenerateRequest(f"r{self._made}", key, PARAMS, max_tokens=OUT, seed=0)


def measure(policy: SchedulePolicy, waiting: int) -> dict[str, float | int | str]:
    """Steps in steady state with `waiting` requests in the queue."""
    load = Load(policy, waiting)
    for _ in range(WARM_UP):
        load.step()
    load.admitted = 0
    arrival = float(np.median(load.times["add"])) / 1e3
    load.times = {name: [] for name in load.times}
    gc.collect()
    gc.disable()  # its pauses grow with the queue's objects, not with what a step does
    for _ in range(STEPS):
        load.step()
    gc.enable()
    row: dict[str, float | int | str] = {"order": policy, "waiting": waiting}
    row["admitted_per_step"] = round(load.admitted / STEPS, 2)
    for name in ("schedule", "update"):
        times = np.array(load.times[name]) / 1e6
        row[f"{name}_ms_p50"] = round(float(np.median(times)), 3)
        row[f"{name}_ms_p99"] = round(float(np.quantile(times, 0.99)), 3)
        row[f"{name}_ms_max"] = round(float(times.max()), 3)
        row[f"{name}_ms_mean"] = round(float(times.mean()), 3)
    row["add_us_p50"] = round(arrival, 1)
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else "")
    parser.add_argument("--waiting", default="100,1000,10000,100000")
    parser.add_argument("--orders", default=",".join(get_args(SchedulePolicy)))
    options = parser.parse_args()
    pairs = [
        (order, int(waiting))
        for order in options.orders.split(",")
        for waiting in options.waiting.split(",")
    ]
    rows = [measure(order, waiting) for order, waiting in tqdm(pairs, dynamic_ncols=True)]
    show_rows("scheduling step, milliseconds; arrival, microseconds", rows)
    print(json.dumps({"benchmark": "scheduler", "steps": STEPS, "rows": ROWS, "results": rows}))


if __name__ == "__main__":
    main()
