"""What a decoding step takes of the host beside a GPU: its thread's own time, without a model.

    python -m benchmarks.host_steps [--rows 1,64,256] [--steps 200] [--drafts auto] [--profile]

Requests with 1,000 tokens of their own; the same under 4,096 that all share, with 128 of their own.
Keys, values and heads are an 8B Llama's; the next step is scheduled while one is
under way. What is sent to the device goes nowhere. Milliseconds of a step, the least
and the median: of the whole (`EngineCore.step`), and of what lies in it: schedule, lay out (request
table, plan, reads, sampling), take (answers), update. Reads for kernels are made where Triton is
installed, of any system; without it only their plan is. --profile: also where the time goes. Ends
in one JSON line.
"""

from __future__ import annotations

import argparse
import cProfile
import gc
import json
import pstats
from collections import defaultdict
from collections.abc import Callable
from functools import partial, wraps
from importlib import import_module
from importlib.util import find_spec
from time import thread_time
from typing import Any

import numpy as np
import torch
from tqdm import tqdm

from benchmarks.rows import show_rows
from radixlm.attention.plan import Sharing, make_plan
from radixlm.cache import make_policy
from radixlm.core.batch import ScheduledBatch, StepResult
from radixlm.core.config import EngineConfig, Speculation
from radixlm.core.request import GenerateRequest
from radixlm.core.sampling import SamplingParams
from radixlm.engine.wiring import make_cache, make_core
from radixlm.memory.pools import KVPool, ReqToTokenPool
from radixlm.memory.staging import Staging
from radixlm.runner.model_runner import ForwardBatch
from radixlm.runner.step_answers import StepAnswers

HEADS, KEY_HEADS, SIZE, VOCAB = 32, 8, 128, 128_256
# Of each case, tokens that all requests share, and their own.
CASES = {"own": (0, 1_000), "under shared": (4_096, 128)}
WARM_UP = 20
# What is on it has no memory.
DEVICE = torch.device("meta")


class Host:
    """All that a step takes but the model. parts: seconds of each step, by what was done in it."""

    def __init__(self, rows: int, shared: int, own: int, steps: int, drafts: Speculation) -> None:
        self.parts: dict[str, list[float]] = defaultdict(list)
        most = WARM_UP + steps + 64
        length = shared + own + most
        capacity = shared + rows * (length + 256)
        config = EngineConfig(
            model="none",
            max_running_requests=rows,
            chunked_prefill_size=8_192,
            speculative_algorithm=drafts,
        )
        cache = make_cache(config, make_policy("lru"), capacity, 0)
        self._table = ReqToTokenPool(config.request_rows, length, DEVICE)
        self._staging = Staging(DEVICE)
        pool = KVPool(1, capacity, KEY_HEADS, SIZE, dtype=torch.bfloat16, device=DEVICE)
        self._sharing, self._prepare = attention(pool)
        self.core = make_core(config, cache, self, None, launch=self.launch)
        self._time("schedule", self.core.scheduler, "schedule")
        self._time("lay out", self, "_lay_out")
        self._time("take", self.core.outputs, "take")
        self._time("update", self.core.scheduler, "update")
        self._time("step", self.core, "step")
        draw = np.random.default_rng(0)
        prefix = draw.integers(0, VOCAB, shared, dtype=np.int32)
        params = SamplingParams(max_tokens=most, temperature=0)
        for row in range(rows):
            key = np.concatenate((prefix, draw.integers(0, VOCAB, own, dtype=np.int32)))
            self.core.add(GenerateRequest(f"r{row}", key, params, max_tokens=most, seed=0))
        while len(self.core.scheduler.running) < rows or not self._all_decode():
            self.core.step()
        for _ in range(WARM_UP):
            self.core.step()
        self.parts.clear()

    def execute(self, batch: ScheduledBatch) -> StepResult:
        return self.launch(batch)()

    def launch(self, batch: ScheduledBatch) -> Callable[[], StepResult]:
        """Lay a step out; its tokens are made up."""
        self._lay_out(batch)
        tokens = tuple(row.stop * 7 % VOCAB if row.samples else None for row in batch.rows)
        return partial(StepResult, tokens)

    def _all_decode(self) -> bool:
        return all(state.decodes for state in self.core.scheduler.running)

    def _lay_out(self, batch: ScheduledBatch) -> None:
        """As `ModelRunner.launch` does, up to the model."""
        sending, parts = self._staging, batch.parts
        sending.begin()
        self._table.apply(parts, sending)
        plan = make_plan(parts, self._sharing)
        forward = ForwardBatch.from_scheduled(batch, sending)
        self._prepare(plan, self._table.table, forward.slots, sending)
        StepAnswers(batch, forward.sampling, forward.prompts, VOCAB, sending)
        sending.send()

    def _time(self, name: str, owner: object, method: str) -> None:
        """Have a method's time be noted."""
        timed: Callable[..., Any] = getattr(owner, method)

        @wraps(timed)
        def noted(*given: Any, **named: Any) -> Any:
            began = thread_time()
            made = timed(*given, **named)
            self.parts[name].append(thread_time() - began)
            return made

        setattr(owner, method, noted)


def attention(pool: KVPool) -> tuple[Sharing, Callable[..., object]]:
    """What a GPU's backend shares, and what it makes of a plan."""
    if find_spec("triton") is None:
        return Sharing(16, 1, 64, 2_048, 1 << 62), lambda *_: None
    backend = import_module("radixlm.attention.gpu_backend").GpuBackend(pool, HEADS)
    backend.processors = 132
    return backend.sharing, backend.prepare


def measure(
    case: str, rows: int, steps: int, drafts: Speculation, *, profile: bool
) -> dict[str, float | int | str]:
    """Steps in which `rows` requests decode."""
    host = Host(rows, *CASES[case], steps, drafts)
    profiler = cProfile.Profile()
    gc.collect()
    gc.freeze()
    for _ in range(steps):
        host.core.step()
    if profile:
        for _ in range(WARM_UP):
            profiler.runcall(host.core.step)
        pstats.Stats(profiler).sort_stats("tottime").print_stats(30)
    found: dict[str, float | int | str] = {"case": case, "rows": rows}
    for name in ("step", "schedule", "lay out", "take", "update"):
        times = 1e3 * np.array(host.parts[name][:steps])
        found[f"{name}_ms_least"] = round(float(times.min()), 3)
        found[f"{name}_ms_p50"] = round(float(np.median(times)), 3)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else "")
    parser.add_argument("--rows", default="1,64,256")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--drafts", default="off", choices=["off", "auto", "tree"])
    parser.add_argument("--profile", action="store_true")
    options = parser.parse_args()
    asked = [(case, int(rows)) for case in CASES for rows in options.rows.split(",")]
    rows = [
        measure(*each, options.steps, options.drafts, profile=options.profile)
        for each in tqdm(asked, dynamic_ncols=True)
    ]
    show_rows("a step's own time, milliseconds", rows)
    reads = find_spec("triton") is not None
    print(json.dumps({"benchmark": "host_steps", "reads": reads, "results": rows}))


if __name__ == "__main__":
    main()
